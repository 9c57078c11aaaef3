// A world with its tools: search in it, and what can be done with the value that is chosen.
import { changesOf } from "./difference.js";
import { button, copyButton, fill, h } from "./dom.js";
import { full, search, tree } from "./tree.js";

const WORDS = { changed: "changed", added: "added", removed: "removed", change: "change", old: "", now: "" };

/** Show a world, and mark what has changed in it. */
export function worldPanel(value, change, { label, words = WORDS }) {
  const bar = h("div.bar", h("span.hint", "Choose a value to copy it, or its place."));
  const onSelect = ({ pointer, value: chosen }) => {
    const copies = [copyButton("Copy pointer", () => pointer), copyButton("Copy value", () => full(chosen))];
    fill(bar, h("code.pointer", pointer), copies);
  };
  const shown = tree(value, change, { label, words, onSelect });
  return h("div.world", searchBox(value, shown.reveal), bar, shown.element);
}

function searchBox(value, reveal) {
  let text = "", found = [], at = -1;
  const said = h("span.hint", { "aria-live": "polite" });
  const step = (by) => {
    if (input.value !== text) [text, found, at] = [input.value, search(value, input.value), by > 0 ? -1 : 0];
    if (!found.length || !text) return fill(said, text && "Nothing found.");
    at = (at + by + found.length) % found.length;
    reveal(found[at]);
    return fill(said, `${at + 1} of ${found.length}`);
  };
  const onkeydown = ({ key, shiftKey }) => key === "Enter" && step(shiftKey ? -1 : 1);
  const hint = "Search in the world";
  const input = h("input", { type: "search", placeholder: hint, "aria-label": hint, onkeydown });
  const turns = [button("Previous", () => step(-1), "quiet"), button("Next", () => step(1), "quiet")];
  return h("div.search", input, turns, said);
}

/** List single changes, old value and new one. */
export function changeList(change, limit = 12) {
  const changes = changesOf(change), more = changes.length - limit;
  const shown = (tag, value) => value !== undefined && h(tag, full(value).slice(0, 2000));
  const rows = changes.slice(0, limit).map(({ pointer, kind, old, now }) => {
    const sides = [shown("del", old), kind === "changed" && " → ", shown("ins", now)];
    return h("tr", h("td", h("code", pointer)), h("td.hint", WORDS[kind]), h("td", sides));
  });
  return [h("table.changes.cards", h("tbody", rows)), more > 0 && h("p.hint", `And ${more} more: the world shows them.`)];
}
