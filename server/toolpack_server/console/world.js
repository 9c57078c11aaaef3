// Panel of a world: the tree of its values, a search, and actions on the chosen value.
import { changesOf, isContainer, readable } from "./difference.js";
import { button, copyButton, count, downloadButton, fill, go, h, searchField } from "./dom.js";
import { contentOf, nameOf } from "./files.js";
import { batch, call, parse, stringify } from "./rpc.js";
import { isText, textChange } from "./text.js";
import { setAt } from "./trace.js";
import { full, search, tree } from "./tree.js";

const WORDS = { changed: "changed", added: "added", removed: "removed", change: "change", old: "", now: "" };

/** Create the panel for a session's world, with its changes marked. `ends` are the parameters that name the session and
 *  the version. */
export function worldPanel(value, change, { label, words = WORDS, files, ends }) {
  const bar = h("div.bar", h("span.hint", "Choose a value to copy it, or to see which step set it."));
  const onSelect = ({ pointer, value: chosen, path }) => {
    const content = () => contentOf(chosen, { ...ends, pointer });
    const copies = [
      copyButton("Copy pointer", () => pointer),
      copyButton("Copy value", () => full(chosen)),
      canBeTraced(chosen) && stepButton(ends, pointer),
      path !== undefined && !chosen?.$dir && !chosen?.$link && downloadButton("Download", nameOf(path), content),
    ];
    fill(bar, h("code.pointer", { title: pointer }, readable(pointer)), copies);
  };
  const rowsOf = (pointer, limit) => call("get_environment", { ...ends, pointer, limit });
  const shown = tree(value, change, { label, words, onSelect, rowsOf, files });
  return h("div.world", searchBox(value, shown.reveal), bar, shown.element);
}

const MOST = 40; // max number of differing rows to add

/** Return two worlds with the rows that differ added to their large tables. A world has only the number of rows of a
 *  large table, so the comparison would miss these rows. `ends` are the parameters that name the sessions and
 *  versions. */
export async function withRows(ends, worlds) {
  if (!stringify(worlds).includes('{"$rows":')) return worlds;
  const [from, to] = ends;
  const params = {
    session_id: from.session_id,
    from_version: from.version,
    to_session_id: to.session_id,
    to_version: to.version,
  };
  const changes = await call("diff_environment", params),
    copies = parse(stringify(worlds));
  const pointers = new Set(changes.map(({ path }) => worlds.map((one) => rowIn(one, path).pointer).find(Boolean)));
  const wanted = [...pointers].filter(Boolean).slice(0, MOST);
  for (const [place, end] of ends.entries()) {
    const rows = await batch(wanted.map((pointer) => ["get_environment", { ...end, pointer }]));
    for (const [at, { result }] of rows.entries()) {
      const { table, key } = rowIn(copies[place], wanted[at]);
      if (table && result !== undefined) table[key] = result;
    }
  }
  return copies;
}

/** Return the row at a pointer, if it is in a table that shows only the number of rows. */
function rowIn(value, path) {
  const steps = path.split("/").map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
  for (let at = 1, table = value; at < steps.length; table = table?.[steps[at++]]) {
    if (table?.$rows) return { table, key: steps[at], pointer: path.split("/", at + 1).join("/") };
  }
  return {};
}

function searchBox(value, reveal) {
  let text = "",
    pointers = [],
    at = -1;
  return searchField("Search in the world", (wanted, by) => {
    if (wanted !== text) [text, pointers, at] = [wanted, search(value, wanted), by > 0 ? -1 : 0];
    if (!pointers.length) return "Nothing found.";
    at = (at + by + pointers.length) % pointers.length;
    reveal(pointers[at]);
    return `${at + 1} of ${pointers.length}`;
  });
}

const SMALL = 100_000; // max characters of a value whose step is searched, because the search reads many versions
/** Return whether a value can be compared with its older versions: it is small, and the world has all of it. */
function canBeTraced(value) {
  const text = stringify(value) ?? "";
  return text.length < SMALL && !(isContainer(value) && /"\$(rows|size)":/.test(text));
}

/** Create a button that goes to the step that set a value, or says that no step set it. */
function stepButton(ends, pointer) {
  const result = h("span.hint", { "aria-live": "polite" });
  const find = async () => {
    const { version, isOldest } = await setAt(ends, pointer);
    if (!result.isConnected) return; // the user has chosen another value meanwhile
    if (version === 0) fill(result, "Unchanged since the start.");
    else if (isOldest) fill(result, `Unchanged since version ${version}. The version before isn't kept.`);
    else go(["sessions", ends.session_id], { version }, `This step set ${readable(pointer)}.`);
  };
  return [button("Which step?", find, "quiet"), result];
}

const LONGEST = 2000; // characters
const cut = (text) =>
  text.length > LONGEST ? `${text.slice(0, LONGEST)}… and ${count(text.length - LONGEST, "character")} more` : text;

/** Create a table of single changes, with old and new values. */
export function changeList(change, limit = 12) {
  const changes = changesOf(change),
    more = changes.length - limit;
  const shown = (tag, value) => value !== undefined && h(tag, cut(full(value)));
  const rows = changes.slice(0, limit).flatMap(({ pointer, kind, old, now }) => {
    const place = [h("td", h("code", { title: pointer }, readable(pointer))), h("td.hint", WORDS[kind])];
    if (isText({ kind, old, now }))
      return [h("tr", place, h("td")), h("tr", h("td", { colspan: 3 }, textChange({ old, now })))];
    return h("tr", place, h("td", shown("del", old), kind === "changed" && " → ", shown("ins", now)));
  });
  return [
    h("table.changes.cards", h("tbody", rows)),
    more > 0 && h("p.hint", `And ${more} more: the world shows them.`),
  ];
}
