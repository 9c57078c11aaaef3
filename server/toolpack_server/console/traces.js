// Comparison of two traces side by side. Equal steps share one row, and the first difference is marked.
// The comparison covers the calls and messages in the histories of two versions, but not their times.
import { changesOf, common, difference } from "./difference.js";
import { button, count, h, link } from "./dom.js";
import { stringify } from "./rpc.js";
import { details, isCall, records, title, who } from "./trace.js";
import { brief } from "./tree.js";

const AROUND = 2; // equal steps that are shown before and after a step that differs
const FOLDED = 6; // longer runs of equal steps are folded
const CLIENT = "client"; // sender of calls at /rpc
const CHANGES = 4; // differences that are shown within a step
const NOT_COMPARED = new Set([
  "index",
  "version",
  "started_at",
  "duration_ms",
  "state",
  "path_index",
  "session_id",
  "call_id",
]);

/** Return the members of a record that are compared. */
const compared = (record) => Object.fromEntries(Object.entries(record).filter(([member]) => !NOT_COMPARED.has(member)));
const sameStep = (record) => stringify(compared(record));
const sameName = (record) => `${title(record)} ${who(record)}`;

/** Align the steps of two traces as pairs `{a, b}`. Equal steps are paired first. Between them, steps with the same
 *  name are paired. A step that only one trace has is a pair with one member.
 * @param {any[]} one @param {any[]} other @param {((record: any) => string)[]} keys
 * @returns {{a?: any, b?: any, change?: any}[]} */
function aligned(one, other, [key, ...keys] = [sameStep, sameName]) {
  if (!key) return [...one.map((a) => ({ a })), ...other.map((b) => ({ b }))];
  const pairs = [];
  let [i, j] = [0, 0];
  for (const [a, b] of [...common(one.map(key), other.map(key)), [one.length, other.length]]) {
    pairs.push(...aligned(one.slice(i, a), other.slice(j, b), keys));
    if (a < one.length)
      pairs.push({ a: one[a], b: other[b], change: difference(compared(one[a]), compared(other[b])) });
    [i, j] = [a + 1, b + 1];
  }
  return pairs;
}

const isDifferent = ({ a, b, change }) => !a || !b || Boolean(change);

/** Create the comparison of two sessions' traces, each up to a version. */
export async function comparedTraces(ids, versions, signal) {
  const traces = await Promise.all(
    ids.map(async (id, side) => {
      const path = await records(id, 0, Infinity, signal, true);
      return path.filter((record) => record.session_id !== id || record.version <= versions[side]);
    }),
  );
  const pairs = aligned(traces[0], traces[1]),
    first = pairs.findIndex(isDifferent);
  const steps = traces.map(({ length }) => count(length, "step"));
  if (first < 0) return [h("h2", "Both traces are equal"), tableOf(pairs, -1)];
  const differing = pairs.filter(isDifferent).length;
  const summary = `${count(differing, "difference")} in ${steps[0]} of A and ${steps[1]} of B`;
  const jump = button("Go to the first difference", () => reveal(document.getElementById("first-difference")), "quiet");
  return [h("div.heading", h("h2", summary), jump), tableOf(pairs, first)];
}

function reveal(row) {
  row.scrollIntoView({ block: "center" });
  row.querySelector("a").focus({ preventScroll: true });
}

function tableOf(pairs, first) {
  const rows = [];
  const isNear = (at) => pairs.slice(Math.max(at - AROUND, 0), at + AROUND + 1).some(isDifferent);
  for (let at = 0; at < pairs.length; at += 1) {
    let end = at;
    while (end < pairs.length && !isNear(end)) end += 1;
    if (end - at > FOLDED) {
      rows.push(foldOf(pairs.slice(at, end)));
      at = end - 1;
    } else rows.push(rowOf(pairs[at], at === first));
  }
  const head = ["A", "B"].map((side) => h("th", { scope: "col" }, side));
  return h("table.traces", h("thead", h("tr", head)), h("tbody", rows));
}

/** Create a row with a button that unfolds equal steps. */
function foldOf(pairs) {
  const open = button(
    count(pairs.length, "equal step"),
    () => row.replaceWith(...pairs.map((pair) => rowOf(pair))),
    "quiet",
  );
  const row = h("tr.fold", h("td", { colspan: 2 }, open));
  return row;
}

function rowOf({ a, b, change }, isFirst = false) {
  const mark = isFirst && h("p", h("span.tag.mark", "first difference"));
  if (!isDifferent({ a, b, change })) return h("tr", h("td", { colspan: 2 }, stepOf(a, b)));
  return h(
    "tr.differs",
    { id: isFirst && "first-difference" },
    h("td", { "data-side": "A " }, mark, a ? stepOf(a) : h("p.hint", "–"), change && changesIn(change, "old", "del")),
    h("td", { "data-side": "B " }, b ? stepOf(b) : h("p.hint", "–"), change && changesIn(change, "now", "ins")),
  );
}

/** Create the element of a step. If both traces have the step, it shows the step's indexes in both. */
function stepOf(record, other = null) {
  const to = ({ session_id: id, index, version }) =>
    link(["sessions", id], { version, record: index }, h("span.at", String(index)));
  const both = other && (other.session_id !== record.session_id || other.index !== record.index);
  return h(
    "p.step",
    to(record),
    both && [" ", to(other)],
    " ",
    h("strong", title(record)),
    h("span.args", " ", ![CLIENT, ""].includes(who(record)) && h("b", `${who(record)} `), details(record)),
    isCall(record) && h("span.args", " → ", record.error ? h("span.error", record.error) : brief(record.result, 80)),
  );
}

/** Create the list of the differences within a step of both traces, for one of the two sides.
 * @param {any} change @param {"old" | "now"} side @param {string} tag */
function changesIn(change, side, tag) {
  /** @type {any[]} */
  const changes = changesOf(change);
  const more = changes.length - CHANGES;
  const shown = changes
    .slice(0, CHANGES)
    .map(({ pointer, [side]: value }) =>
      h("p.within", h("code", pointer), " ", value !== undefined && h(tag, brief(value))),
    );
  return [shown, more > 0 && h("p.hint", `and ${more.toLocaleString("en")} more`)];
}
