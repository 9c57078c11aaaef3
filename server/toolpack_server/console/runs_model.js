// Runs in figures: what sessions come to, by task.
// Pure, so that the console and a file of `evaluate --html` say the same, as does `evaluate` on a terminal.
// A rollout that is invalid, or isn't evaluated, counts in no share and in no mean reward.

export const STATES = { passed: "✓", failed: "✗", invalid: "!", open: "·" };
export const WORDS = { passed: "passed", failed: "failed", invalid: "invalid", open: "not evaluated" };
export const stateOf = ({ verdict }) =>
  !verdict ? "open" : !verdict.valid ? "invalid" : verdict.passed ? "passed" : "failed";
export const isCounted = (session) => ["passed", "failed"].includes(stateOf(session));
const mean = (numbers) => (numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : null);

/** Compare texts as people do: step 9 before step 10. */
export const inOrder = new Intl.Collator("en", { numeric: true }).compare;

/** Get the keys of all labels that can name a run, those that most sessions have first. */
export function keysOf(sessions) {
  const counts = new Map();
  for (const { labels } of sessions) for (const key of Object.keys(labels)) counts.set(key, (counts.get(key) ?? 0) + 1);
  const rank = (key) => (key === "run" ? Infinity : key === "rollout" ? -1 : counts.get(key));
  return [...counts.keys()].sort((a, b) => rank(b) - rank(a) || inOrder(a, b));
}

/** Get what sessions come to together; a mean is null where there is nothing to count. */
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

/** Group sessions by task and variant; rollouts are in the order of their numbers, then of their creation. */
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

/** How probable it is that all of k rollouts pass (pass^k), and that at least one does (pass@k). */
const choices = (some, of, k) =>
  Array.from({ length: k }, (_, i) => Math.max(some - i, 0) / (of - i)).reduce((a, b) => a * b, 1);
export const allOf = ({ passed, counted }, k) => choices(passed, counted, k);
export const anyOf = ({ failed, counted }, k) => 1 - choices(failed, counted, k);

/** Get the largest k up to which all tasks have rollouts: 0 if none has one that counts. */
export function mostK(rows) {
  const counts = rows.map(({ counted }) => counted).filter((count) => count > 0);
  return counts.length ? Math.min(...counts) : 0;
}

/** Get the mean of pass^k or pass@k over the tasks. */
export const overTasks = (rows, chance, k) =>
  mean(rows.filter(({ counted }) => counted >= k).map((row) => chance(row, k)));

/** Pair the rollouts of a run with those of another: by task, variant and place. Gets the other state, by session. */
export function before(rows, others) {
  const found = new Map(),
    byKey = new Map(others.map((row) => [row.key, row]));
  for (const { key, sessions } of rows) {
    const other = byKey.get(key)?.sessions ?? [];
    const numbers = new Map(other.map((session) => [session.labels.rollout, session]));
    for (const [place, session] of sessions.entries()) {
      const pair = session.labels.rollout === undefined ? other[place] : numbers.get(session.labels.rollout);
      if (pair) found.set(session.session_id, stateOf(pair));
    }
  }
  return found;
}

/** Why a session hasn't passed, in a line. */
export function reason({ verdict, problem }) {
  if (problem) return problem;
  if (!verdict) return "";
  if (verdict.failure) return `${verdict.failure.kind}: ${verdict.failure.message}`;
  return verdict.checks
    .filter(({ passed }) => !passed)
    .map(({ name, detail }) => (detail ? `${name}: ${detail}` : name))
    .join("; ");
}

/** Get what was wrong in a session, by name: the checks that failed, or why it has no reward. */
export function faultsOf({ verdict, problem }) {
  if (problem || !verdict || verdict.passed) return problem ? [problem] : [];
  if (!verdict.valid) return [`invalid: ${verdict.failure?.kind ?? "unknown"}`];
  const names = verdict.checks.filter(({ passed }) => !passed).map(({ name }) => name);
  return names.length ? [...new Set(names)] : ["failed without a check"];
}

/** Put things in an order by one of these columns: `-name` is from the largest. What has no value comes last. */
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
