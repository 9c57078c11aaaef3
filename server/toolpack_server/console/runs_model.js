// Statistics of runs, by task.
// The console and the file of `evaluate --html` share these functions, so they show the numbers that `evaluate` prints.
// Invalid rollouts, and rollouts that aren't evaluated, are left out of each share and each mean reward.

export const STATES = { passed: "✓", failed: "✗", invalid: "!", open: "·" };
export const WORDS = { passed: "passed", failed: "failed", invalid: "invalid", open: "not evaluated" };
export const stateOf = ({ verdict }) =>
  !verdict ? "open" : !verdict.valid ? "invalid" : verdict.passed ? "passed" : "failed";
export const isCounted = (session) => ["passed", "failed"].includes(stateOf(session));
const mean = (numbers) => (numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : null);

/** Return whether a session is a fork that a review created. */
export const isOfReview = ({ labels, parent }) => parent !== undefined && labels.review === parent.session_id;
/** Return whether a session counts as a rollout. A session that the console or a review created doesn't count, unless
 *  the labels `selected`, by which the user chose the sessions, contain the label `console` or `review`. */
export const isRollout = (session, selected) =>
  (!("console" in session.labels) || "console" in selected) && (!isOfReview(session) || "review" in selected);

/** Compare texts in natural order: step 9 before step 10. */
export const inOrder = new Intl.Collator("en", { numeric: true }).compare;

/** Return the keys of all labels that can name a run, the most frequent ones first. */
export function keysOf(sessions) {
  const counts = new Map();
  for (const { labels } of sessions) for (const key of Object.keys(labels)) counts.set(key, (counts.get(key) ?? 0) + 1);
  const rank = (key) => (key === "run" ? Infinity : key === "rollout" ? -1 : counts.get(key));
  return [...counts.keys()].sort((a, b) => rank(b) - rank(a) || inOrder(a, b));
}

/** Return the statistics of sessions. A mean of no values is null. */
export function figures(sessions) {
  const counts = { passed: 0, failed: 0, invalid: 0, open: 0 };
  for (const session of sessions) counts[stateOf(session)] += 1;
  const counted = sessions.filter(isCounted);
  return {
    ...counts,
    rollouts: sessions.length,
    counted: counted.length,
    share: counted.length ? counts.passed / counted.length : null,
    reward: mean(counted.map(({ verdict }) => verdict.reward)),
    calls: mean(sessions.map(({ calls }) => calls)),
    seconds: mean(sessions.map(({ duration_ms: duration }) => duration / 1000)),
  };
}

/** Group sessions by task and variant. Rollouts are sorted by their numbers, then by creation time. */
export function tasksOf(sessions) {
  const number = ({ labels }) => labels.rollout ?? "";
  const before = (a, b) =>
    inOrder(number(a), number(b)) || inOrder(a.created_at, b.created_at) || inOrder(a.session_id, b.session_id);
  const groups = Map.groupBy(sessions, ({ task, variant }) => `${task ?? ""} ${variant ?? ""}`);
  const rows = [...groups].map(([key, some]) => {
    const { task, variant } = some[0];
    return { key, task, variant, sessions: some.toSorted(before), ...figures(some) };
  });
  return rows.sort((a, b) => inOrder(a.key, b.key));
}

/** Estimate the probability that all of k rollouts pass (pass^k), and that at least one of k passes (pass@k). */
const choices = (some, of, k) =>
  Array.from({ length: k }, (_, i) => Math.max(some - i, 0) / (of - i)).reduce((a, b) => a * b, 1);
export const allOf = ({ passed, counted }, k) => choices(passed, counted, k);
export const anyOf = ({ failed, counted }, k) => 1 - choices(failed, counted, k);

/** Return the largest k for which all tasks have enough counted rollouts; 0 if no rollout counts. */
export function mostK(rows) {
  const counts = rows.map(({ counted }) => counted).filter((count) => count > 0);
  return counts.length ? Math.min(...counts) : 0;
}

/** Return the mean of pass^k or pass@k over the tasks. */
export const overTasks = (rows, chance, k) =>
  mean(rows.filter(({ counted }) => counted >= k).map((row) => chance(row, k)));

/** Pair the rollouts of two runs by task and variant, and by the rollout's number or position. Return the state of the
 *  other run's rollout by the session id of this run's rollout. */
export function before(rows, others) {
  const states = new Map(),
    byKey = new Map(others.map((row) => [row.key, row]));
  for (const { key, sessions } of rows) {
    const other = byKey.get(key)?.sessions ?? [];
    const numbers = new Map(other.map((session) => [session.labels.rollout, session]));
    for (const [place, session] of sessions.entries()) {
      const pair = session.labels.rollout === undefined ? other[place] : numbers.get(session.labels.rollout);
      if (pair) states.set(session.session_id, stateOf(pair));
    }
  }
  return states;
}

/** Return the reason why a session hasn't passed, in one line. */
export function reason({ verdict, problem }) {
  if (problem) return problem;
  if (!verdict) return "";
  if (verdict.failure) return `${verdict.failure.kind}: ${verdict.failure.message}`;
  return verdict.checks
    .filter(({ passed }) => !passed)
    .map(({ name, detail }) => (detail ? `${name}: ${detail}` : name))
    .join("; ");
}

/** Return the names of a session's failed checks, or why it has no reward. */
export function faultsOf({ verdict, problem }) {
  if (problem || !verdict || verdict.passed) return problem ? [problem] : [];
  if (!verdict.valid) return [`invalid: ${verdict.failure?.kind ?? "unknown"}`];
  const names = verdict.checks.filter(({ passed }) => !passed).map(({ name }) => name);
  return names.length ? [...new Set(names)] : ["failed without a check"];
}

/** Sort things by a column; `-name` sorts descending. Things without a value come last. */
export function sorted(things, columns, wanted) {
  const name = wanted?.replace(/^-/, ""),
    sign = wanted?.startsWith("-") ? -1 : 1;
  if (!Object.hasOwn(columns, name ?? "")) return things;
  const value = columns[name],
    has = (thing) => ![null, undefined, ""].includes(value(thing));
  const compare = (a, b) => (typeof a === "number" ? a - b : inOrder(String(a), String(b)));
  return things.toSorted(
    (a, b) => Number(has(b)) - Number(has(a)) || (has(a) ? sign * compare(value(a), value(b)) : 0),
  );
}
