// JSON value as a collapsible tree that marks the differences from another value. As WAI-ARIA describes, the tree is
// one stop of the tab key, and the arrow keys move within the tree.
// The tree creates the elements of a node's members only when the user opens the node, and shows many members in
// groups, so that large worlds stay fast.
import { changesOf, isContainer, join } from "./difference.js";
import { button, count, fill, h } from "./dom.js";
import { inFolders, nameOf, sizeOf } from "./files.js";
import { stringify } from "./rpc.js";
import { isText, textChange, textSummary } from "./text.js";

const GROUP = 100; // members that are shown at once
const LONG = 120; // characters of a value that are shown in its line
const FOLDED = 5; // longer runs of equal members between changed ones are folded
const MOST_ROWS = 10_000; // rows of a table: the server's maximum for one answer
const OPENED = 40; // changes that a new tree shows unfolded
const keyed = (value) => (Array.isArray(value) ? [...value.entries()] : Object.entries(value));

/** Write a value in one line of about `limit` characters. */
export function brief(value, limit = LONG) {
  if (typeof value === "string") return `${JSON.stringify(value.slice(0, limit))}${value.length > limit ? "…" : ""}`;
  if (!isContainer(value)) return String(value);
  const isList = Array.isArray(value),
    parts = [];
  let room = limit;
  for (const [key, member] of keyed(value)) {
    parts.push(room < 0 ? "…" : `${isList ? "" : `${key}: `}${brief(member, Math.max(room, 12))}`);
    if (room < 0) break;
    room -= parts.at(-1).length + 2;
  }
  return isList ? `[${parts.join(", ")}]` : `{${parts.join(", ")}}`;
}

/** Return a whole value as JSON, but a string without quotation marks. */
export const full = (value) => (typeof value === "string" ? value : stringify(value, 2));
/** A node of a tree, or a group of nodes. Only a file has a `path`, and only a folder has `files`, their number.
 * @typedef {{key: string | number, pointer: string | null, value?: any, change?: any, changes: number, path?: string,
 *   group?: TreeNode[], files?: number}} TreeNode */

/** Return the nodes below a node: its members, or groups of its members.
 * @param {TreeNode} node @param {Set<string>} [files] @returns {TreeNode[]} */
function below({ group, value, change, pointer }, files) {
  if (group) return grouped(group);
  const entries =
    change?.kind === "inside" ? change.entries : keyed(value).map(([key, member]) => ({ key, value: member }));
  const place = (entry) => ({ pointer: join(pointer, entry.key), changes: changesOf(entry.change).length });
  const nodes = entries.map((entry) => ({ ...entry, ...place(entry) }));
  if (files?.has(pointer)) return grouped(inFolders(nodes.map((node) => ({ ...node, path: node.key }))));
  return grouped(change ? folded(nodes) : nodes);
}

/** Replace each long run of equal members between changed members by a group. */
function folded(nodes) {
  const runs = [];
  for (const node of nodes) {
    if (runs.length && !node.change && !runs.at(-1)[0].change) runs.at(-1).push(node);
    else runs.push([node]);
  }
  return runs.flatMap((run) => (run.length > FOLDED ? groupOf(run) : run));
}

function groupOf(group) {
  const changes = group.reduce((sum, node) => sum + node.changes, 0);
  return { key: `${group[0].key} … ${group.at(-1).key}`, pointer: null, group, changes };
}

/** Return the nodes, but in at most 100 groups if there are more nodes than that.
 * @param {TreeNode[]} nodes */
function grouped(nodes) {
  if (nodes.length <= GROUP) return nodes;
  const size = GROUP ** Math.ceil(Math.log(nodes.length) / Math.log(GROUP) - 1);
  const starts = Array.from({ length: Math.ceil(nodes.length / size) }, (_, place) => place * size);
  return starts.map((start) => groupOf(nodes.slice(start, start + size)));
}

/** Return whether a node has members to show.
 * @param {TreeNode} node */
function canOpen({ group, value, change, path }) {
  if (path !== undefined && isContainer(value)) return false; // bytes, a link, or an empty folder
  if (change?.kind === "changed") return isText(change);
  if (typeof value === "string") return value.length > LONG || value.includes("\n");
  return Boolean(group) || (isContainer(value) && (keyed(value).length > 0 || change?.kind === "inside"));
}

/** Return whether a node, or a member of a group, is on the way to a pointer. */
const leadsTo = ({ group, pointer }, wanted) =>
  group ? group.some((member) => leadsTo(member, wanted)) : `${wanted}/`.startsWith(`${pointer}/`);

/** Create a tree. Return its element, and a function that opens the tree at a pointer. `words` are the names of the
 *  kinds of change. `onSelect` is called with the node that the user selects. For a table of which the world has only
 *  the number of rows, `rowsOf` reads the first rows. `files` has the pointers of trees of files. */
export function tree(value, change, { label, words, onSelect, rowsOf, files }) {
  const nodes = new WeakMap();
  const element = h("ul.tree", { role: "tree", "aria-label": label });
  const isOpen = (item) => item.ariaExpanded === "true";

  function itemOf(node) {
    const attributes = {
      role: "treeitem",
      tabindex: "-1",
      class: node.change?.kind,
      "aria-expanded": canOpen(node) && "false",
    };
    const item = h("li", attributes, rowOf(node, words));
    nodes.set(item, node);
    return item;
  }
  function toggle(item, open = !isOpen(item)) {
    if (!item.ariaExpanded || open === isOpen(item)) return;
    const node = nodes.get(item);
    item.ariaExpanded = String(open);
    if (!open) item.lastElementChild.remove();
    else if (node.change && isText(node.change)) item.append(textChange(node.change));
    else if (typeof node.value === "string") item.append(h("pre", node.value));
    else
      item.append(
        h("ul", { role: "group" }, below(node, files).map(itemOf), rowsOf && node.value?.$rows && pagesOf(node)),
      );
  }
  function pagesOf({ pointer, value: { $rows: all, ...shown } }) {
    let limit = 0;
    const more = button(
      "Show 100 rows more",
      async () => {
        limit += GROUP;
        const rows = Object.entries(await rowsOf(pointer, limit)).filter(([key]) => !Object.hasOwn(shown, key));
        Object.assign(shown, Object.fromEntries(rows));
        page.before(...rows.map(([key, value]) => itemOf({ key, value, pointer: join(pointer, key), changes: 0 })));
        if (limit >= Math.min(all, MOST_ROWS)) page.remove();
      },
      "quiet",
    );
    const page = h("li", { role: "none" }, more);
    return page;
  }
  function select(item, takesFocus = true) {
    for (const other of element.querySelectorAll("[tabindex='0']")) [other.tabIndex, other.ariaSelected] = [-1, null];
    [item.tabIndex, item.ariaSelected] = [0, "true"];
    if (takesFocus) item.focus({ preventScroll: true });
    item.firstElementChild.scrollIntoView({ block: "nearest" });
    if (!nodes.get(item).group) onSelect(nodes.get(item));
  }
  /** Open the nodes on the way to a pointer, and return the last item. */
  function openTo(pointer) {
    for (let list = element, item = null; ; list = item.lastElementChild) {
      const next = [...list.children].find((child) => nodes.has(child) && leadsTo(nodes.get(child), pointer));
      if (!next || nodes.get(next).pointer === pointer) return next ?? item;
      toggle(next, true);
      item = next;
    }
  }
  element.addEventListener("click", ({ target }) => {
    const item = target.closest("[role=treeitem]");
    if (!item || target.closest("pre, button, .lines") || String(getSelection())) return;
    select(item);
    toggle(item);
  });
  element.addEventListener("keydown", (event) => {
    const item = event.target.closest("[role=treeitem]");
    const shown = [...element.querySelectorAll("[role=treeitem]")],
      at = shown.indexOf(item);
    const moves = {
      ArrowDown: () => shown[at + 1],
      ArrowUp: () => shown[at - 1],
      Home: () => shown[0],
      End: () => shown.at(-1),
      ArrowRight: () => (isOpen(item) ? item.querySelector("li") : toggle(item, true)),
      ArrowLeft: () => (isOpen(item) ? toggle(item, false) : item.parentElement.closest("[role=treeitem]")),
      Enter: () => toggle(item),
      " ": () => toggle(item),
    };
    if (!item || !moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    select(moves[event.key]() ?? item);
  });

  const root = { key: "value", pointer: "", value, change, changes: 0 };
  fill(element, canOpen(root) && isContainer(value) ? below(root, files).map(itemOf) : itemOf(root));
  if (element.childElementCount === 1) toggle(element.firstElementChild, true);
  for (const { pointer, ...one } of changesOf(change).slice(0, OPENED)) {
    const item = openTo(pointer);
    if (isText(one)) toggle(item, true);
  }
  element.firstElementChild.tabIndex = 0;
  return { element, reveal: (pointer) => select(openTo(pointer), false) };
}

/** Create the row of a node: its name, its value or its changes.
 * @param {TreeNode} node @param {object} words */
function rowOf({ key, value, change, group, changes, path, files }, words) {
  const text = changes > 0 && (group || change.kind === "inside") ? count(changes, words.change) : words[change?.kind];
  const mark = text && h("span.mark", text),
    size = path !== undefined && sizeOf(value),
    named = path === undefined ? String(key) : nameOf(path);
  const name = [h("span.key", named, !group && ": "), size && h("span.hint", `${size} `)];
  if (group)
    return h("div.row", name, h("span.preview", files ? count(files, "file") : count(group.length, "item")), mark);
  if (path !== undefined && isContainer(value) && change?.kind !== "changed")
    return h("div.row", name, value.$link && `→ ${value.$link}`, value.$dir && h("span.hint", "an empty folder"), mark);
  if (change?.kind === "changed") {
    const { old, now } = change;
    if (isText(change)) return h("div.row", name, h("span.hint", textSummary(change)), mark);
    return h("div.row", name, h("del", words.old, brief(old)), " → ", h("ins", words.now, brief(now)), mark);
  }
  if (!isContainer(value)) return h("div.row", name, brief(value), mark);
  const members = keyed(value).length,
    preview = h("span.preview", members > 0 && brief(value, 60));
  return h("div.row", name, h("span.hint", count(members, Array.isArray(value) ? "item" : "field")), preview, mark);
}

/** Return the pointers of the members that contain a text in their name or value, in display order. */
export function search(value, text, limit = 1000) {
  const has = (part) => String(part).toLowerCase().includes(text.toLowerCase());
  const pointers = [];
  const look = (inner, pointer) => {
    for (const [key, member] of pointers.length < limit ? keyed(inner) : []) {
      if ((!Array.isArray(inner) && has(key)) || (!isContainer(member) && has(member)))
        pointers.push(join(pointer, key));
      if (isContainer(member)) look(member, join(pointer, key));
    }
  };
  if (isContainer(value)) look(value, "");
  return pointers;
}
