// Difference of two texts: the changed lines with some lines around them, and in each line the changed words.
// All changes are shown, even in long texts. For the other equal lines, only their number is shown.
import { count, h } from "./dom.js";
import { diffLines } from "./vendored/jsdiff/diff/line.js";
import { diffWordsWithSpace } from "./vendored/jsdiff/diff/word.js";

const LONG = 80; // characters; shorter texts are shown side by side
const AROUND = 2; // equal lines that are shown before and after a change
const NEAR = 60; // equal characters that are shown beside a changed word
const MAX_LINES = 400; // that are shown
const LONG_WORD = 60; // characters; in a longer word, only the letters that differ are marked
const MAX_LETTERS = 1000; // that are shown of one piece of a line
const TIMEOUT = 500; // milliseconds for one comparison

/** Return whether a change is shown by lines and words: both values are texts, and long enough. */
export const isText = ({ kind, old, now }) =>
  kind === "changed" &&
  typeof old === "string" &&
  typeof now === "string" &&
  (old + now).length > LONG &&
  old !== "" &&
  now !== "";

const linesOf = (text) => text.replace(/\n$/, "").split("\n");

/** Return the changes of a text by lines: `{kind, lines, other}`. `other` has the lines that replace `lines`. */
function chunksOf(old, now) {
  const whole = [
    { removed: true, value: old },
    { added: true, value: now },
  ];
  const parts = diffLines(old, now, { timeout: TIMEOUT }) ?? whole;
  const chunks = parts.map(({ added, removed, value }) => ({
    kind: added ? "added" : removed ? "removed" : "equal",
    lines: linesOf(value),
    isOpen: !value.endsWith("\n"),
  }));
  for (const [at, chunk] of chunks.entries()) {
    const next = chunks[at + 1];
    if (chunk.kind !== "removed" || next?.kind !== "added" || chunk.lines.length !== next.lines.length) continue;
    [chunk.other, next.other] = [next.lines, chunk.lines];
  }
  return chunks;
}

/** Return in a few words how many lines of a text were removed and added. */
export function textSummary({ old, now }) {
  const lines = (kind) => chunksOf(old, now).flatMap((chunk) => (chunk.kind === kind ? chunk.lines : [])).length;
  const [removed, added, all] = [lines("removed"), lines("added"), linesOf(now).length];
  return all === 1 && removed === 1 ? "a part of the text" : `-${removed} +${added} of ${count(all, "line")}`;
}

/** Create the words of a line, and mark those that differ from another line. */
function wordsOf(line, other, kind) {
  if (other === undefined) return shortened(line);
  const [before, after] = kind === "removed" ? [line, other] : [other, line];
  const whole = [
    { removed: true, value: before },
    { added: true, value: after },
  ];
  const words = diffWordsWithSpace(before, after, { timeout: TIMEOUT }) ?? whole;
  const own = words.flatMap(lettersOf).filter((part) => part[kind] || (!part.added && !part.removed));
  return own.map((part, at) =>
    part[kind] ? h("mark", shortened(part.value)) : near(part.value, at > 0, at < own.length - 1),
  );
}

/** Narrow a pair of long words down to the letters between their common start and end. */
function lettersOf(part, at, parts) {
  const [old, now] = part.removed ? [part, parts[at + 1]] : [parts[at - 1], part];
  if (!old?.removed || !now?.added || Math.max(old.value.length, now.value.length) <= LONG_WORD) return [part];
  const [a, b] = [old.value, now.value],
    least = Math.min(a.length, b.length);
  // A character beyond U+FFFF is two units in JavaScript. A cut must not divide it.
  const isHalf = (letter) => /[\ud800-\udfff]/.test(letter ?? "");
  let start = 0,
    end = 0;
  while (start < least && a[start] === b[start]) start += 1;
  while (start > 0 && isHalf(a[start - 1])) start -= 1;
  while (end < least - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  while (end > 0 && isHalf(a.at(-end))) end -= 1;
  const changed = { ...part, value: part.value.slice(start, part.value.length - end) };
  const equal = part.removed ? [{ value: a.slice(0, start) }, changed] : [changed, { value: a.slice(a.length - end) }];
  return equal.filter(({ value }) => value);
}

/** Cut the middle out of a long piece of text. */
function shortened(text) {
  const cut = text.length - MAX_LETTERS;
  if (cut <= 0) return text;
  const half = MAX_LETTERS / 2;
  return [text.slice(0, half), h("span.hint", ` … ${count(cut, "character")} … `), text.slice(-half)];
}

/** Cut equal text so that only the part near changed words is left. */
function near(text, isAfter, isBefore) {
  const room = NEAR * (Number(isAfter) + Number(isBefore));
  if (!room || text.length <= room + NEAR) return shortened(text);
  const start = isAfter ? text.slice(0, NEAR) : "";
  return [start, h("span.hint", ` … ${count(text.length - room, "character")} … `), isBefore ? text.slice(-NEAR) : ""];
}

/** Show what differs between two texts, with the number of each line. */
export function textChange({ old, now }) {
  const rows = [];
  const at = { removed: 1, added: 1 };
  const rowOf = (kind, number, text) => {
    const sign = { removed: "-", added: "+", equal: " " }[kind];
    const tag = { removed: "del", added: "ins", equal: "span" }[kind];
    rows.push(h(`div.line.${kind}`, h("span.at", String(number)), h("span.sign", sign), h(tag, text)));
  };
  const chunks = chunksOf(old, now),
    all = Math.max(linesOf(old).length, linesOf(now).length);
  for (const [place, { kind, lines, other, isOpen }] of chunks.entries()) {
    const first = place > 0 ? AROUND : 0,
      last = place < chunks.length - 1 ? AROUND : 0;
    for (const [index, line] of lines.entries()) {
      const isNear = kind !== "equal" || index < first || index >= lines.length - last;
      const end = isOpen && kind !== "equal" && index === lines.length - 1 && all > 1;
      const text = [wordsOf(line, other?.[index], kind), end && h("span.hint", " (no line break at the end)")];
      if (isNear) rowOf(kind, kind === "removed" ? at.removed : at.added, text);
      else if (index === first) rows.push(h("div.line.hint", count(lines.length - first - last, "equal line")));
      if (kind !== "added") at.removed += 1;
      if (kind !== "removed") at.added += 1;
    }
  }
  const more = rows.length - MAX_LINES;
  return h("div.lines", rows.slice(0, MAX_LINES), more > 0 && h("p.hint", `And ${count(more, "line")} more.`));
}
