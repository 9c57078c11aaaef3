// Timeline of a session: a page of its records, each with its changes.
// Each row is a link, so each step has an address. The changes are read in the background, but only while the server
// answers quickly. In a large world, where answers are slow, a step shows its changes only when it is chosen.
import { readable } from "./difference.js";
import { address, button, count, fill, h, link, oneTabStop, searchField, short, stopAt } from "./dom.js";
import { batch } from "./rpc.js";
import { decimal } from "./runs_parts.js";
import { countPath, details, indexWith, isCall, outcome, records, rulesMet, title, who } from "./trace.js";
import { brief } from "./tree.js";

const PAGE = 100,
  AT_ONCE = 8; // steps in one request for changes
const SLOW = 1500; // milliseconds; after a slower answer, no further changes are read
const LINES = 3; // changes that are shown below a step
const INHERITED = 10; // steps of a fork's parent that are shown at first

export function timeline(state) {
  const { id, signal } = state;
  const live = h("span.hint"),
    pager = h("div.pager"),
    list = oneTabStop(h("ol.steps"), "li:not([hidden])", (to, key) => follow(to, key));
  const rows = new Map(); // elements of the rows by the record's index; -1 is the start
  const patches = new Map(); // changes by the version that they led to
  let first = 0,
    shown = [],
    chosen = null,
    versionBefore = 0; // version of the last record before this page

  const before = (index) => (index > first ? shown[index - first - 1].version : index < 0 ? 0 : versionBefore);
  const indexOfChosen = () => chosen?.index ?? -1;
  const page = () => {
    const end = first + shown.length;
    const turn = (label, to) => button(label, () => open(Math.max(to, 0)), "quiet");
    const back = first > 0 && [turn("First", 0), turn("Earlier", first - PAGE)];
    const forth = end < state.total && [turn("Later", end), turn("Last", state.total - PAGE)];
    const where = state.total ? `${first} to ${end - 1} of ${count(state.total, "step")}` : "no steps yet";
    fill(pager, h("h2", "Timeline"), h("span.hint", where), live, h("span.turns", back, forth));
  };
  const append = (record) => {
    shown.push(record);
    rows.set(record.index, rowOf(record, before(record.index), state));
    list.append(rows.get(record.index));
  };
  const open = async (from) => {
    const loaded = await records(id, Math.max(from - 1, 0), Math.min(from + PAGE, state.total), signal);
    versionBefore = from > 0 ? loaded.shift().version : 0;
    [first, shown] = [from, []];
    rows.clear();
    if (from === 0) rows.set(-1, startRow(state));
    fill(list, [...rows.values()]);
    loaded.forEach(append);
    page();
    mark();
    if (from === 0 && state.session.parent) await inherit();
    explain();
  };
  /** Show the steps that a fork inherits from its ancestors, above the start. */
  const inherit = async () => {
    state.inherited ??= (await countPath(id, signal)).ofParents;
    const more = h("li");
    const show = async (from, to) => {
      const inherited = await records(id, Math.max(from - 1, 0), to, signal, true);
      const passed = from > 0 ? inherited.splice(0, 1) : [];
      const rowAfter = (record) => {
        const { session_id: of, version } = passed.at(-1) ?? {};
        passed.push(record);
        return rowOf(record, of === record.session_id ? version : 0, state, ".inherited");
      };
      more.after(...inherited.map(rowAfter));
      const earlier = () => show(Math.max(from - PAGE, 0), from);
      fill(more, from > 0 && button(`Show earlier steps: ${from.toLocaleString("en")} more`, earlier, "quiet"));
      more.hidden = from === 0;
    };
    list.prepend(more);
    await show(Math.max(state.inherited - INHERITED, 0), state.inherited);
  };
  /** Mark each step with its recorded value and the number of forks after it. */
  const mark = () => {
    const counts = Map.groupBy(state.forks, ({ parent }) => parent.version);
    for (const [index, row] of rows) {
      const at = index < 0 ? 0 : shown[index - first].version;
      fill(row.querySelector(".worth"), (index < 0 || at > before(index)) && worthOf(at, state.values));
      const isLast = index < 0 || shown[index - first].version > before(index);
      const forks = (isLast && counts.get(at)?.length) || 0;
      fill(row.querySelector(".forks"), forks > 0 && h("span.tag", count(forks, "fork")));
    }
  };
  /** Choose the record with an index and return it, or null for the start. If needed, turn to the record's page. */
  const choose = async (index) => {
    const hasFocus = list.contains(document.activeElement);
    if (!rows.has(index)) await open(Math.max(Math.min(index - PAGE / 2, state.total - PAGE), 0));
    for (const [at, row] of rows) row.firstElementChild.ariaCurrent = at === index ? "step" : null;
    stopAt(list, rows.get(index).firstElementChild);
    if (hasFocus) rows.get(index).firstElementChild.focus({ preventScroll: true });
    chosen = { index, row: rows.get(index), until: performance.now() + 2 * SLOW };
    reveal();
    return index < 0 ? null : shown[index - first];
  };
  const searching = searchField("Search in the steps", async (text, by, stopped) => {
    const chosenAt = indexOfChosen(),
      after = by < 0 && chosenAt < 0 ? state.total : chosenAt;
    const index = await indexWith(text, id, { after, total: state.total, by }, AbortSignal.any([signal, stopped]));
    if (index === undefined) return "Nothing found.";
    location.replace(address(["sessions", id], { record: index }));
    return `Step ${index}.`;
  });
  /** Show the step that an arrow key has reached, also on the next page. A parent's step is shown only after Enter,
   *  because it belongs to another view. */
  const follow = (to, key) => {
    const chosenAt = indexOfChosen();
    const beyond = { ArrowDown: chosenAt + 1, ArrowUp: chosenAt - 1 }[key];
    if (to?.matches("a") && !to.closest(".inherited")) location.replace(to.href);
    else if (!to && beyond >= 0 && beyond < state.total)
      location.replace(address(["sessions", id], { record: beyond }));
  };
  /** Scroll to the chosen row. `explain` calls this again, because the changes that it adds move the row. */
  const reveal = () => {
    const { offsetTop: top, offsetHeight: height } = chosen.row;
    list.scrollTop = Math.max(Math.min(list.scrollTop, top - 40), top + height + 40 - list.clientHeight);
  };
  /** Append new records if the last page is shown. */
  const add = (news) => {
    if (!news.length) return;
    if (first + shown.length === news[0].index && shown.length < 5 * PAGE) {
      news.forEach(append);
      explain();
    }
    page();
  };
  /** Show the changes below each step, from the newest step to the oldest. Stop if the server is slow or the page
   *  turns. */
  const explain = async () => {
    const here = shown;
    const changing = here.filter((record) => isCall(record) && record.version > before(record.index)).reverse();
    const missing = changing.filter(({ version }) => !patches.has(version));
    changing.forEach(write);
    for (let start = 0, isLate = false; start < missing.length && here === shown && !isLate; start += AT_ONCE) {
      const part = missing.slice(start, start + AT_ONCE),
        began = performance.now();
      const ends = ({ version }) => ({
        session_id: id,
        from_version: version - 1,
        to_version: version,
        limit: LINES,
      });
      const answers = await batch(
        part.map((record) => ["summarize_changes", ends(record)]),
        signal,
      ).catch(() => []);
      for (const [place, { result }] of answers.entries()) if (result) patches.set(part[place].version, result);
      part.forEach(write);
      if (performance.now() < chosen?.until) reveal();
      isLate = performance.now() - began > SLOW || !answers.every(({ result }) => result);
    }
  };
  const write = ({ index, version }) => {
    const did = rows.get(index)?.querySelector(".did"),
      { total, changes } = patches.get(version) ?? { total: 0, changes: [] };
    const more = total > changes.length && h("span", `and ${(total - changes.length).toLocaleString("en")} more`);
    if (did)
      fill(
        did,
        changes.map((one) => changeOf(one, state.session.toolpacks.length)),
        more,
      );
  };
  return {
    element: h("section.timeline", { "aria-label": "Timeline" }, pager, searching, list),
    choose,
    add,
    before,
    live,
    mark,
  };
}

/** Create a short text for an operation of a JSON Patch. If the session has a single toolpack, omit its name. */
function changeOf({ op, path, from, value }, toolpacks) {
  const place = h("b", toolpacks === 1 ? readable(path.split("/").slice(2).join("/")) : readable(path.slice(1)));
  const texts = { remove: ["− ", place], move: [place, ` from ${from}`], add: ["+ ", place, " ", brief(value, 50)] };
  return h("span", texts[op] ?? [place, " = ", brief(value, 50)]);
}

/** Create the tag with the value of a version. The tag is red if the version before has a higher value. */
function worthOf(version, values) {
  const value = values.get(version) ?? null;
  if (value === null) return null;
  const fell = value < (values.get(version - 1) ?? value);
  return h(fell ? "span.tag.bad" : "span.tag", { title: "Recorded value after this step" }, `value ${decimal(value)}`);
}

function startRow({ id, session: { parent } }) {
  const from = parent ? `fork of ${short(parent.session_id)} at version ${parent.version}` : "before the first step";
  const name = [h("span.at"), h("strong", "Start"), h("span.tags", h("span.worth"), " ", h("span.forks"))];
  return h("li", link(["sessions", id], { version: 0 }, name, h("span.args", from)));
}

/** Create the row of a step, which may belong to another session. */
function rowOf(record, before, { id, session }, kind = "") {
  const { index, version, error, duration_ms: duration, session_id: of = id } = record;
  const name = [
    h("span.at", String(index)),
    h("strong", title(record)),
    h("span.tags", h("span.worth"), " ", h("span.forks"), " ", h(...outcome(record, before)), " ", rulesMet(record)),
  ];
  const moved = session.events && [record.event && who(record), record.at?.slice(11, 19)].filter(Boolean).join(" ");
  const whose = session.participants ? who(record) : moved;
  const milliseconds = h("span.ms", duration === undefined ? "" : `${Math.round(duration * 10) / 10} ms`);
  const below = [
    h("span.args", whose && [h("b", whose), " "], details(record)),
    error ? h("span.did.bad", error.slice(0, 200)) : h("span.did"),
  ];
  return h(
    `li${kind}`,
    link(["sessions", of], { version, record: index }, name, milliseconds, h("span.v", `v${version}`), below),
  );
}
