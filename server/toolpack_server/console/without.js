// Replay without a call: fork the session before the call, run the later calls in the fork, and compare both.
import { go } from "./dom.js";
import { all, change, stringify } from "./rpc.js";
import { isCall, records } from "./trace.js";

const AT_ONCE = 10; // calls in one request

/** Fork before a record, run the later calls in the fork, and go to the comparison. `progress` is called with a text to
 *  show. Throw an error if a reset has undone the record, or if a later call can't be repeated. */
export async function replayWithout({ id, session, signal }, record, progress) {
  const path = await records(id, 0, Infinity, signal, true);
  const place = path.findIndex((one) => one.session_id === id && one.index === record.index);
  if (place < 0) throw new Error("A reset has undone this step, so the current world doesn't depend on it.");
  const calls = path.slice(place + 1).filter((one) => isCall(one) && !one.event); // the fork repeats events itself
  const cut = calls.find(({ kwargs }) => [kwargs, ...Object.values(kwargs)].some((value) => value?.$cut));
  if (cut) throw new Error(`Step ${cut.index} can't be run again: its arguments are too long to be recorded in full.`);
  const labels = { console: `without step ${record.index} ${record.function}`.slice(0, 200) };
  const [fork] = await change("fork_session", { session_id: id, version: record.version - 1, labels });
  let different = 0;
  for (let start = 0; start < calls.length; start += AT_ONCE) {
    progress(`Replaying ${start} of ${calls.length} calls…`);
    const part = calls.slice(start, start + AT_ONCE);
    const again = part.map((one) => ({ session_id: fork.session_id, function: one.function, kwargs: one.kwargs }));
    const answers = await all(
      again.map((params) => ["run_function", params]),
      signal,
    );
    const ended = (one) => stringify(one.error ?? [one.result]);
    different += answers.filter((answer, at) => ended(answer) !== ended(part[at])).length;
  }
  const run = `Without step ${record.index}, ${calls.length} later calls were run in a fork`;
  const summary = `${run}; ${different} ended differently.`;
  go(["compare", id, fork.session_id], { a: session.version }, summary);
}
