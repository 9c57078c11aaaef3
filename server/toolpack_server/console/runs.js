// Source of the runs view that reads this server's sessions: summaries in pages, verdicts and reviews.
// Shown sessions without a recorded verdict are evaluated, a few at a time. These verdicts are recorded only when the
// user asks for it. Until then this tab caches them. The cache ends when the session gets a new record, or when the
// user reads everything again.
import { batch, call } from "./rpc.js";
import { stateOf } from "./runs_model.js";

const PAGE = 1000,
  AT_ONCE = 10; // sessions in one request for verdicts
const REQUESTS = 3; // concurrent requests, because evaluators may wait, or run in several processes
const judged = new Map(); // cached verdicts that aren't recorded
/** Return the key of a session in the caches. It changes with each new record. */
const stage = ({ session_id: id, records }) => `${id} ${records}`;

/** Read a page of summaries, and add the cached verdicts. */
export async function summaries(asked, signal) {
  const page = await call("summarize_sessions", asked, signal);
  for (const each of page.sessions) {
    each.isRecorded = Boolean(each.verdict);
    each.verdict ??= judged.get(stage(each)) ?? null;
  }
  return page;
}

/** Yield the sessions with these labels and this text, a page at a time. */
export async function* sessions(labels, text, signal) {
  for (let after = ""; after !== undefined; ) {
    const page = await summaries({ labels, text, after, limit: PAGE }, signal);
    yield page.sessions;
    after = page.next;
  }
}

/** Evaluate the sessions without a verdict. With `record`, evaluate the sessions without a recorded verdict, and record
 *  it. Yield after each batch. */
export async function* judge(some, signal, record = false) {
  const needsVerdict = ({ verdict, isRecorded }) => (record ? !isRecorded : !verdict);
  const open = some.filter(needsVerdict),
    running = new Set();
  const ask = async (part) => {
    const answers = await batch(
      part.map(({ session_id: id }) => ["evaluate_session", { session_id: id, raise_on_error: false, record }]),
      signal,
    );
    for (const [at, { result, error }] of answers.entries()) {
      if (result) {
        Object.assign(part[at], { verdict: result, isRecorded: part[at].isRecorded || record });
        judged.set(stage(part[at]), result);
      } else part[at].problem ??= error.message;
    }
  };
  while (open.length || running.size) {
    while (open.length && running.size < REQUESTS) {
      const answers = ask(open.splice(0, AT_ONCE).filter(needsVerdict)).finally(() => running.delete(answers));
      running.add(answers);
    }
    yield await Promise.race(running);
  }
}

/** Evaluate the sessions without a recorded verdict, and record the verdicts. */
export const record = (some, signal) => judge(some, signal, true);
const places = new Map(); // cached `lost_at` of failed rollouts: the place where the rollout was lost

/** Review the rollouts that failed, record the reviews, and set their `lost_at`. Yield the number of reviews left. */
export async function* lost(some, signal) {
  for (const each of some) each.lost_at = places.get(stage(each)) ?? each.lost_at;
  const open = some.filter((each) => stateOf(each) === "failed" && each.lost_at === undefined);
  for (const [at, each] of open.entries()) {
    yield open.length - at;
    const [{ result, error }] = await batch(
      [["review_session", { session_id: each.session_id, record: true }]],
      signal,
    );
    each.lost_at = error ? `no review: ${error.message}` : (result.lost_at ?? "passed");
    if (result) places.set(stage(each), each.lost_at);
  }
  yield 0;
}

/** Clear the cached verdicts and places. */
export const forget = () => {
  judged.clear();
  places.clear();
};
