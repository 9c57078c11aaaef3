// The records of a session: how many there are, which one made a version, and how they are written.
import { isContainer } from "./difference.js";
import { h } from "./dom.js";
import { batch, call, stringify } from "./rpc.js";
import { brief } from "./tree.js";

const PROBES = 20; // records, or versions, that are asked for at once
const AT_ONCE = 500; // records of one request
const KINDS = await (await fetch("kinds.json")).json(); // what the server says of the kinds of records
const kindOf = (record) => KINDS[record.kind] ?? { title: record.kind, content: "" };
export const isCall = (record) => Boolean(kindOf(record).is_call);
export const contentOf = (record) => record[kindOf(record).content];
export const isMessage = (record) => Boolean(kindOf(record).is_message);
/** Get the name of a record; what a participant has said is its message, whatever the role that it stands for. */
export const title = (record) =>
  isMessage(record) && record.by
    ? `message of ${record.by}`
    : kindOf(record).title.replace(/\{(\w+)\}/g, (_, member) => record[member]);

/** Find the first index, from `low` on, that has no record or one that `isLate`: by doubling, then by dividing. */
async function firstIndex(id, isLate, signal, low = 0, path = undefined) {
  let high = 2 ** 24; // a session can't store as many
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

export const countRecords = (id, signal, atLeast) => firstIndex(id, () => false, signal, atLeast);
/** Find the index of the record that made a version; -1 for version 0. */
export const indexOf = async (id, at, signal) => (at < 1 ? -1 : firstIndex(id, ({ version }) => version >= at, signal));

const NOT_KEPT = -32011,
  NOT_THERE = -32602;
/** Find the version since which the value at a pointer, or that there is none, is as at `version`, looking back;
 *  `isOldest` if that of the version before isn't kept.
 * @returns {Promise<{version: number, isOldest?: boolean}>} */
export async function setAt({ session_id: id, version }, pointer) {
  let wanted = null;
  for (let from = version; from >= 0; from -= PROBES) {
    const versions = Array.from({ length: Math.min(PROBES, from + 1) }, (_, n) => from - n);
    const asked = versions.map((at) => ["get_environment", { session_id: id, version: at, pointer }]);
    for (const [at, { result, error }] of (await batch(asked)).entries()) {
      const isOldest = error?.code === NOT_KEPT;
      if (error && !isOldest && error.code !== NOT_THERE) throw error;
      const value = [error ? undefined : stringify(result)];
      wanted ??= value;
      if (isOldest || value[0] !== wanted[0]) return { version: versions[at] + 1, isOldest };
    }
  }
  return { version: 0 };
}

/** Whether what was called, said or answered in a step has a text, in small letters. */
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

/** Find the next of all records that has a text, or with `by` -1 the one before, going round once.
 * @returns {Promise<number | undefined>} */
export async function indexWith(text, id, { after, total, by }, signal) {
  const wanted = text.toLowerCase();
  for (let at = after + by, left = total; left > 0; ) {
    at = (at + total) % total;
    const size = Math.min(AT_ONCE, left, by > 0 ? total - at : at + 1);
    const part = await records(id, by > 0 ? at : at + 1 - size, by > 0 ? at + size : at + 1, signal);
    const found = by > 0 ? part.find((each) => hasText(each, wanted)) : part.findLast((each) => hasText(each, wanted));
    if (found) return found.index;
    [at, left] = [at + by * size, left - size];
  }
  return undefined;
}

/** Count the records on the path of a session: all, and those of the sessions that it was forked from. */
export async function countPath(id, signal) {
  const ofParents = await firstIndex(id, (record) => record.session_id === id, signal, 0, true);
  return { ofParents, all: await firstIndex(id, () => false, signal, ofParents, true) };
}

/** Get the records from one index up to another; with `path` those that led to the present version, of parents too. */
export async function records(id, from, to, signal, path = undefined) {
  const found = [];
  for (let after = from - 1; after < to - 1; after = found.at(-1).place ?? found.at(-1).index) {
    const part = await call(
      "get_trace",
      { session_id: id, after, path, limit: Math.min(to - 1 - after, AT_ONCE) },
      signal,
    );
    if (!part.length) break;
    found.push(...part);
  }
  return found;
}

export function details(record) {
  if (!isCall(record)) return contentOf(record) ? brief(contentOf(record)) : "";
  return Object.entries(record.kwargs)
    .map(([name, value]) => `${name}: ${brief(value, 60)}`)
    .join(", ");
}

/** Get the rules that a call has met, as a tag; nothing if it has met none. */
export const rulesMet = (record) =>
  isCall(record) &&
  record.perturbed &&
  h(
    "span.tag.mark",
    { title: "It has met these rules." },
    record.perturbed.rules.map((name) => (/^\d+$/.test(name) ? `rule ${name}` : name)).join(", "),
  );
/** Say who has made a record, and to whom it was said, in a session with participants. */
export const who = ({ by, to }) => (by && to ? `${by} to ${to}` : (by ?? ""));

/** Get how a record ended, as a tag; `before` is the session's version before it. */
export function outcome(record, before) {
  if (!isCall(record)) return ["span.tag.mark", record.kind];
  if (record.error) return ["span.tag.bad", "error"];
  return record.version > before ? ["span.tag.good", "changed"] : ["span.tag", "read"];
}
