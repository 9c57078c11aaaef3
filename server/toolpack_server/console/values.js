// Values of a session's steps: estimates of the reward that a rollout can still get after the step. The Python client's
// `values` records the rewards of forks in a *ledger*, which is a fork itself. The console only reads ledgers, and
// evaluates nothing. A mean leaves out invalid forks, and the table shows their number.
import { count, h, labelsOf, link } from "./dom.js";
import { call } from "./rpc.js";
import { isOfReview } from "./runs_model.js";

const AT_ONCE = 1000; // records of a ledger in one request

/** Return whether a fork was created to estimate the values of its parent. */
export const isForValues = ({ labels, parent }) => parent !== undefined && labels.values === parent.session_id;
/** Return whether a fork only stores the review of its parent. */
export const isNote = (fork) => isOfReview(fork) && "records" in fork.labels;
const isLedger = (fork) => isForValues(fork) && !("step" in fork.labels);
/** Return whether a fork stores values of its parent's steps. */
export const hasValues = (fork) => isNote(fork) || isLedger(fork);

/** Create a table for each ledger among the forks of a session.
 * @param {string} id @param {any[]} forks @param {AbortSignal} signal */
export async function valuesOf(id, forks, signal) {
  const ledgers = forks.filter(isLedger);
  const tables = await Promise.all(ledgers.map(async (ledger) => tableOf(id, ledger, await notesOf(ledger, signal))));
  const open = forks.filter(isForValues).length - ledgers.length;
  return [tables, open > 0 && h("p.hint", `${count(open, "fork")} of steps ${open === 1 ? "is" : "are"} open.`)];
}

/** Return the notes of a ledger: the recorded reward of each fork. */
async function notesOf({ session_id: ledger }, signal) {
  const notes = [];
  for (let after = -1; ; ) {
    const part = await call("get_trace", { session_id: ledger, after, limit: AT_ONCE }, signal);
    if (!part.length) return notes;
    notes.push(...part.map(({ metadata }) => metadata?.values).filter((note) => note));
    after = Number(part.at(-1).index);
  }
}

/** Return the recorded values of a session's steps by version: the values of a review of all current records, or else
 *  the largest mean among the ledgers.
 * @param {string} id @param {any[]} forks @param {number} total @param {AbortSignal} signal */
export async function recordedValues(id, forks, total, signal) {
  const values = new Map();
  const isCurrent = (fork) => isNote(fork) && fork.labels.records === String(total);
  for (const { session_id } of forks.filter(isCurrent)) {
    const [first] = await call("get_trace", { session_id, limit: 1 }, signal);
    const review = first?.metadata?.review;
    if (review?.session_id !== id) continue; // no review: a user may have given these labels to an ordinary fork
    for (const { version, value } of review.steps) values.set(version, value ?? null);
    return values;
  }
  for (const ledger of forks.filter(isLedger))
    for (const [step, notes] of Map.groupBy(await notesOf(ledger, signal), ({ step }) => Number(step))) {
      const { mean, n } = estimate(notes);
      if (n) values.set(step, Math.max(mean, values.get(step) ?? mean));
    }
  return values;
}

/** Return the mean of rewards and the square of its standard error. The result is NaN where it needs more rewards. */
function estimate(notes = []) {
  const rewards = notes.filter(({ reward }) => reward !== null).map(({ reward }) => Number(reward)),
    n = rewards.length;
  const mean = rewards.reduce((sum, each) => sum + each, 0) / n;
  const squares = rewards.reduce((sum, each) => sum + (each - mean) ** 2, 0);
  return { n, mean, squared: n > 1 ? squares / (n - 1) / n : Number.NaN, invalid: notes.length - n };
}

const written = (value, squared) =>
  Number.isNaN(value) ? "" : `${value.toFixed(2)}${Number.isNaN(squared) ? "" : ` ± ${Math.sqrt(squared).toFixed(2)}`}`;

function tableOf(id, { session_id: ledger, labels: { values: _, finish, ...labels } }, notes) {
  const steps = Map.groupBy(notes, ({ step }) => Number(step));
  const row = (step) => {
    const { n, mean, squared, invalid } = estimate(steps.get(step)),
      before = estimate(steps.get(step - 1));
    return h(
      "tr",
      h("td", link(["sessions", id], { version: step }, `version ${step}`)),
      h("td.number", written(mean, squared)),
      h("td.number", written(mean - before.mean, squared + before.squared)),
      h("td.number", n, invalid > 0 && [" ", h("span.tag", `${invalid} invalid`)]),
    );
  };
  const head = h(
    "tr",
    ["Step", "Value ± standard error", "Advantage of the call before it", "Forks"].map((name) => h("th", name)),
  );
  const rows = [...steps.keys()].sort((a, b) => a - b).map(row);
  return [
    h("h3", link(["sessions", ledger], {}, "Values"), ` with the finish ${finish} `, labelsOf(labels)),
    h("table.changes.values", h("thead", head), h("tbody", rows)),
  ];
}
