// Panel of a session's forks: a tree with the session's first ancestor at the top, and below each session its forks.
// The panel tells the number of sessions, and where forks are omitted. Forks that estimate the values of steps are
// shown as a table instead, and forks that store a review aren't shown.
import { count, h, labelsOf, link, short, time } from "./dom.js";
import { outcome } from "./evaluation.js";
import { batch, call } from "./rpc.js";
import { details, isCall, title } from "./trace.js";
import { isForValues, isNote, valuesOf } from "./values.js";

const MAX_SESSIONS = 300; // in the tree
const PAGE = 1000; // sessions in one answer of list_sessions
const VERDICTS_AT_ONCE = 10; // sessions in one request for verdicts
const NOT_FOUND = -32001;

/** Return the forks of a session, the newest first, up to the first fork with an id in `known`. */
export async function forksOf(id, signal, known = new Set()) {
  const forks = [];
  for (let after = ""; ; after = forks.at(-1).session_id) {
    const params = { parent: id, order: "-created", limit: PAGE, after };
    const part = await call("list_sessions", params, signal);
    const end = part.findIndex(({ session_id: one }) => known.has(one));
    forks.push(...part.slice(0, end < 0 ? part.length : end));
    if (end >= 0 || !part.length) return forks;
  }
}

const inOrder = (forks) =>
  forks.toSorted((a, b) => a.parent.version - b.parent.version || (a.created_at < b.created_at ? -1 : 1));

/** Return a session's ancestors from the first to its parent, then the session. Stop at a parent that is deleted. */
async function lineOf(session, signal) {
  const line = [session];
  while (line[0].parent) {
    const [{ result, error }] = await batch([["get_session", { session_id: line[0].parent.session_id }]], signal);
    if (error && error.code !== NOT_FOUND) throw error;
    if (!result) break;
    line.unshift(result);
  }
  return line;
}

/** Create the panel of a session's forks. */
export async function openForks({ id, session, signal }) {
  const line = await lineOf(session, signal),
    isOnLine = new Set(line.map(({ session_id: one }) => one));
  const forks = new Map(); // by the session's id
  let known = 1;
  for (let next = [line[0].session_id]; next.length; ) {
    const lists = await Promise.all(next.map((one) => forksOf(one, signal)));
    for (const [at, list] of lists.entries()) forks.set(next[at], inOrder(list));
    known += lists.flat().filter((fork) => !isNote(fork)).length;
    const below = lists.flat().map(({ session_id: one }) => one);
    next = known <= MAX_SESSIONS ? below : below.filter((one) => isOnLine.has(one));
  }
  const values = await valuesOf(id, forks.get(id) ?? [], signal);
  const places = new Map(); // the element for the verdict and the first call of each shown session
  let room = MAX_SESSIONS;
  const nodeOf = (one) => {
    room -= 1;
    const own = forks
      .get(one.session_id)
      ?.filter((each) => isOnLine.has(each.session_id) || !(isForValues(each) || isNote(each)));
    const first = own?.filter(({ session_id: each }) => isOnLine.has(each)) ?? [];
    const shown = [...first, ...(own ?? []).filter((each) => !first.includes(each))].slice(0, Math.max(room, 1));
    const rest = (own?.length ?? 0) - shown.length;
    const below = inOrder(shown).map(nodeOf);
    const more = rest > 0 && h("li.hint", `and ${count(rest, "fork")} more`);
    const unread = !own && link(["sessions", one.session_id], { forks: " " }, "its forks");
    places.set(one, h("span"));
    const row = rowOf(one, id, unread, places.get(one));
    return h("li", row, one.session_id === id && values, own?.length > 0 && h("ul", below, more));
  };
  const { parent } = line[0];
  const missing = parent && h("p.hint", `Forked from ${short(parent.session_id)}, which is deleted or has expired.`);
  const all = count(known, "session");
  const total = known > MAX_SESSIONS ? `At least ${all}: the forks of some weren't searched.` : `${all} in all.`;
  const tree = nodeOf(line[0]);
  addVerdicts([...places], signal).catch(() => {}); // the tree is useful without verdicts, so it shows no error
  return [h("h2", "Forks"), missing, h("p.hint", total), h("ul.family", tree)];
}

/** Add the verdicts of sessions, and the first call of each fork, to their places. */
async function addVerdicts(places, signal) {
  for (let start = 0; start < places.length; start += VERDICTS_AT_ONCE) {
    const part = places.slice(start, start + VERDICTS_AT_ONCE);
    const requests = part.flatMap(([{ session_id: one, task, parent }, place]) => [
      ...(parent ? [{ place, call: ["get_trace", { session_id: one, limit: 1 }] }] : []),
      ...(task ? [{ place, call: ["evaluate_session", { session_id: one, raise_on_error: false }] }] : []),
    ]);
    const answers = await batch(
      requests.map(({ call: request }) => request),
      signal,
    );
    for (const [at, { result }] of answers.entries()) {
      const [record] = Array.isArray(result) ? result : [];
      if (record && isCall(record))
        requests[at].place.append(h("span.hint", ` begins with ${title(record)}(${details(record)}) `));
      else if (result?.checks) requests[at].place.append(...h("span", outcome(result)).childNodes, " ");
    }
  }
}

/** Create the row of a session. `place` is the element for its verdict and its first call. */
function rowOf({ session_id: one, parent, labels, task, version, created_at: created }, id, unread, place) {
  const isThis = one === id;
  const name = link(["sessions", one], { forks: " " }, h("code", short(one)));
  name.ariaCurrent = isThis ? "true" : null;
  return h(
    isThis ? "p.this" : "p",
    name,
    " ",
    isThis && [h("span.tag", "this session"), " "],
    h("span.hint", parent && `from version ${parent.version}, `, count(version, "change"), ", ", time(created)),
    h("span.hint", task && `, ${task}`),
    " ",
    place,
    labelsOf(labels),
    !isThis && [link(["compare", id, one], { traces: " " }, "Compare"), " "],
    unread,
  );
}
