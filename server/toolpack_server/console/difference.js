// Difference of two JSON values, for a tree that shows both.
// The difference of equal values is null. Another difference has a `kind`. With the kind "added", "removed" or
// "changed", it has the values `old` and `now`. With the kind "inside", its `entries` are all members in display order,
// each with its own change.

/** A number with its exact digits: 1.0 differs from 1, and 1e2 from 100. */
export class Exact extends Number {
  constructor(source) {
    super(source);
    this.source = source;
  }
  toString() {
    return this.source;
  }
}

export const isContainer = (value) => value !== null && typeof value === "object" && !(value instanceof Exact);
const isSame = (a, b) => a === b || (a instanceof Exact && b instanceof Exact && a.source === b.source);
const sameKind = (a, b) => isContainer(a) && isContainer(b) && Array.isArray(a) === Array.isArray(b);
const kept = (key, old, value) => ({ key, value, change: difference(old, value) });
const added = (key, value) => ({ key, value, change: { kind: "added", now: value } });
const removed = (key, value) => ({ key, value, change: { kind: "removed", old: value } });

/** Return the difference of two values; null if they are equal. */
export function difference(old, now) {
  if (isSame(old, now)) return null;
  if (!sameKind(old, now)) return { kind: "changed", old, now };
  const entries = Array.isArray(now) ? ofLists(old, now) : ofObjects(old, now);
  return entries.some(({ change }) => change) ? { kind: "inside", entries } : null;
}

function ofObjects(old, now) {
  const entries = Object.entries(now);
  const gone = Object.keys(old).filter((key) => !Object.hasOwn(now, key));
  return [
    ...entries.map(([key, value]) => (Object.hasOwn(old, key) ? kept(key, old[key], value) : added(key, value))),
    ...gone.map((key) => removed(key, old[key])),
  ];
}

/** Compare two lists. Equal members are matched in order. Between two matches, members that may be the same are
 *  paired. */
function ofLists(old, now) {
  const written = (member) => (typeof member === "bigint" || member instanceof Exact ? `${member}n` : member);
  const text = (value) => JSON.stringify(value, (_key, member) => written(member));
  const entries = [];
  let i = 0,
    j = 0;
  for (const [a, b] of [...common(old.map(text), now.map(text)), [old.length, now.length]]) {
    while (i < a || j < b) {
      if (i < a && j < b && mayBeSame(old[i], now[j])) entries.push(kept(j, old[i++], now[j++]));
      else if (i < a) entries.push(removed(i, old[i++]));
      else entries.push(added(j, now[j++]));
    }
    if (b < now.length) entries.push({ key: b, value: now[b], change: null });
    [i, j] = [a + 1, b + 1];
  }
  return entries;
}

/** Return whether two members may be states of the same thing: they have the same id, or no id to tell. */
function mayBeSame(a, b) {
  if (!sameKind(a, b) || Array.isArray(a)) return !isContainer(a) && !isContainer(b);
  const id = ["id", "id_", "uuid", "name"].find((name) => Object.hasOwn(a, name) && Object.hasOwn(b, name));
  return id === undefined || a[id] === b[id];
}

/** Return the longest common subsequence of two lists of texts, as pairs of indices. */
export function common(a, b) {
  const places = Map.groupBy(a.keys(), (i) => a[i]);
  const chains = []; // for each length, the last pair of the best chain so far
  b.forEach((text, j) => {
    const i = places.get(text)?.shift();
    if (i === undefined) return;
    const length = chains.findLastIndex((pair) => pair.i < i) + 1;
    chains[length] = { i, j, before: chains[length - 1] };
  });
  const pairs = [];
  for (let pair = chains.at(-1); pair; pair = pair.before) pairs.push([pair.i, pair.j]);
  return pairs.reverse();
}

/** Return the JSON Pointer (RFC 6901) of a member. */
export const join = (pointer, key) => `${pointer}/${String(key).replaceAll("~", "~0").replaceAll("/", "~1")}`;

/** Return a pointer for display, with the original names. */
export const readable = (pointer) => pointer.replaceAll("~1", "/").replaceAll("~0", "~");

/** Return the changes of single values inside a change, each with its pointer. */
export function changesOf(change, pointer = "") {
  if (change?.kind !== "inside") return change ? [{ pointer, ...change }] : [];
  return change.entries.flatMap((entry) => (entry.change ? changesOf(entry.change, join(pointer, entry.key)) : []));
}
