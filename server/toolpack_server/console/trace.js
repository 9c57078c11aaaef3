// Records of a session: reading, counting, searching and showing them.
import { isContainer } from "./difference.js";
import { h } from "./dom.js";
import { batch, call, stringify } from "./rpc.js";
import { brief } from "./tree.js";

const PROBES = 20; // records or versions that one batch reads to narrow a search
const AT_ONCE = 500; // records of one request
const KINDS = await (await fetch("kinds.json")).json(); // the server's description of each kind of record
const kindOf = (record) => KINDS[record.kind] ?? { title: record.kind, content: "" };
export const isCall = (record) => Boolean(kindOf(record).is_call);
export const contentOf = (record) => record[kindOf(record).content];
export const isMessage = (record) => Boolean(kindOf(record).is_message);
/** Return the title of a record. A participant's message has its name, not its role. */
export const title = (record) =>
  isMessage(record) && record.by
    ? `message of ${record.by}`
    : kindOf(record).title.replace(/\{(\w+)\}/g, (_, member) => record[member]);

/** Return the first index from `low` on that has no record, or a record for which `isLate` is true. The first batch
 *  reads at growing distances. Each further batch divides the range that is left. */
async function firstIndex(id, isLate, signal, low = 0, path = undefined) {
  let high = 2 ** 24; // more records than a session can have
  for (let isFirst = true; low < high; isFirst = false) {
    const step = (n) => (isFirst ? 2 ** n - 1 : Math.floor(((high - low) * n) / PROBES));
    const places = [...new Set(Array.from({ length: PROBES }, (_, n) => low + step(n)))].filter(
      (place) => place < high,
    );
    const calls = places.map((place) => ["get_trace", { session_id: id, after: place - 1, limit: 1, path }]);
    const answers = await batch(calls, signal);
    const end = answers.findIndex(({ result, error }) => error || !result.length || isLate(result[0]));
    if (answers[end]?.error) throw answers[end].error;
    if (end >= 0) high = places[end];
    if (end !== 0) low = places.at(end < 0 ? -1 : end - 1) + 1;
  }
  return low;
}

/** Return the number of a session's records, which is at least `atLeast`. */
export const countRecords = (id, signal, atLeast) => firstIndex(id, () => false, signal, atLeast);
/** Return the index of the record that created a version. Return -1 for version 0, which no record created. */
export const indexOf = async (id, at, signal) => (at < 1 ? -1 : firstIndex(id, ({ version }) => version >= at, signal));

const NOT_KEPT = -32011,
  NOT_THERE = -32602;
/** Find the step that set the value at a pointer: go back from a version to the first version with the same value, or
 *  also without a value. `isOldest` is set if the server no longer stores the version before that.
 * @returns {Promise<{version: number, isOldest?: boolean}>} */
export async function setAt({ session_id: id, version }, pointer) {
  let latest = null;
  for (let from = version; from >= 0; from -= PROBES) {
    const versions = Array.from({ length: Math.min(PROBES, from + 1) }, (_, n) => from - n);
    const requests = versions.map((at) => ["get_environment", { session_id: id, version: at, pointer }]);
    for (const [at, { result, error }] of (await batch(requests)).entries()) {
      const isOldest = error?.code === NOT_KEPT;
      if (error && !isOldest && error.code !== NOT_THERE) throw error;
      const value = [error ? undefined : stringify(result)];
      latest ??= value;
      if (isOldest || value[0] !== latest[0]) return { version: versions[at] + 1, isOldest };
    }
  }
  return { version: 0 };
}

/** Return whether a step's call, message or answer contains a text. The text must be in lower case. */
function hasText(record, text) {
  const has = (value) =>
    isContainer(value)
      ? Object.entries(value).flat().some(has)
      : String(value ?? "")
          .toLowerCase()
          .includes(text);
  const { kwargs, result, error, nested } = record;
  return [title(record), who(record), contentOf(record), kwargs, result, error, nested].some(has);
}

/** Return the index of the next record that contains a text, or of the previous one if `by` is -1. The search wraps
 *  around once.
 * @returns {Promise<number | undefined>} */
export async function indexWith(text, id, { after, total, by }, signal) {
  const needle = text.toLowerCase();
  for (let at = after + by, left = total; left > 0; ) {
    at = (at + total) % total;
    const size = Math.min(AT_ONCE, left, by > 0 ? total - at : at + 1);
    const part = await records(id, by > 0 ? at : at + 1 - size, by > 0 ? at + size : at + 1, signal);
    const match = by > 0 ? part.find((each) => hasText(each, needle)) : part.findLast((each) => hasText(each, needle));
    if (match) return match.index;
    [at, left] = [at + by * size, left - size];
  }
  return undefined;
}

/** Return two numbers of records in a session's history: all records, and the records of its ancestors. */
export async function countPath(id, signal) {
  const ofParents = await firstIndex(id, (record) => record.session_id === id, signal, 0, true);
  return { ofParents, all: await firstIndex(id, () => false, signal, ofParents, true) };
}

/** Return the records from one index up to another. With `path`, the indexes are those of the current version's
 *  history, which includes records of ancestors. */
export async function records(id, from, to, signal, path = undefined) {
  const all = [];
  for (let after = from - 1; after < to - 1; after = all.at(-1).path_index ?? all.at(-1).index) {
    const part = await call(
      "get_trace",
      { session_id: id, after, path, limit: Math.min(to - 1 - after, AT_ONCE) },
      signal,
    );
    if (!part.length) break;
    all.push(...part);
  }
  return all;
}

export function details(record) {
  if (!isCall(record)) return contentOf(record) ? brief(contentOf(record)) : "";
  return Object.entries(record.kwargs)
    .map(([name, value]) => `${name}: ${brief(value, 60)}`)
    .join(", ");
}

/** Create a tag with the rules that applied to a call, if any. */
export const rulesMet = (record) =>
  isCall(record) &&
  record.perturbed &&
  h(
    "span.tag.mark",
    { title: "These rules applied to the call." },
    record.perturbed.rules.map((name) => (/^\d+$/.test(name) ? `rule ${name}` : name)).join(", "),
  );
/** Return the sender and the recipient of a record as text. It is empty in a session without participants. */
export const who = ({ by, to }) => (by && to ? `${by} to ${to}` : (by ?? ""));

/** Return a record's outcome as the arguments of `h`. `before` is the session's version before the record. */
export function outcome(record, before) {
  if (!isCall(record)) return ["span.tag.mark", record.kind];
  if (record.error) return ["span.tag.bad", "error"];
  return record.version > before ? ["span.tag.good", "changed"] : ["span.tag", "read"];
}
