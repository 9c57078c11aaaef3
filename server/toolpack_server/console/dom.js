// Helpers to create elements, and widgets that several views use.
// All content goes through `h`, which inserts content as text, so data of a session never becomes markup. `visible`
// shows invisible characters, and characters that change the direction of a text, as escapes such as \u202e.
// biome-ignore lint/suspicious/noControlCharactersInRegex: the expression searches for them
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const UNSEEN_ONE = new RegExp(UNSEEN.source);
const escapeOf = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
// A text may itself contain the letters of an escape. They get one more backslash, so that the user can tell them from
// an escape that `visible` wrote. Codes below \u0020 get none, because JSON writes these characters as escapes.
const WRITTEN_ESCAPE = /\\+u((?!00[01])[0-9a-f]{4})/g;
const withBackslash = (written, code) =>
  UNSEEN_ONE.test(String.fromCharCode(Number.parseInt(code, 16))) ? `\\${written}` : written;
/** Return a text in which each invisible character is an escape. */
export const visible = (text) => String(text).replace(WRITTEN_ESCAPE, withBackslash).replace(UNSEEN, escapeOf);
const isGiven = (value) => ![undefined, null, false].includes(value);

/** Create an element: `h("p.hint", {title}, ...children)`. The attributes may be omitted. An attribute such as
 *  `onclick` is a listener. An attribute or a child that is undefined, null or false is left out. */
export function h(names, ...children) {
  const [tag, ...classes] = names.split(".");
  const element = document.createElement(tag);
  element.classList.add(...classes);
  const attributes = Object.getPrototypeOf(children[0] ?? "") === Object.prototype ? children.shift() : {};
  for (const [name, value] of Object.entries(attributes).filter(([, given]) => isGiven(given))) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  return fill(element, children);
}

/** Replace an element's children. */
export function fill(element, ...children) {
  const content = children.flat(Infinity).filter(isGiven);
  element.replaceChildren(...content.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** Replace an element's children. The focus moves to the new child with the same id or the same URL. */
export function refill(element, ...children) {
  const active = /** @type {HTMLAnchorElement} */ (document.activeElement);
  const { id, href } = element.contains(active) ? active : { id: "", href: "" };
  fill(element, children);
  if (id || href)
    [...element.querySelectorAll("[id], a")]
      .find((each) => (id ? each.id === id : each.href === href))
      ?.focus({ preventScroll: true });
}

export const short = (id) => id.slice(0, 8);
export const count = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Return the address of a view from the parts of the view's path and its query. Empty values are omitted. */
export function address(parts, query = {}) {
  const values = Object.entries(query).filter(([, value]) => isGiven(value) && value !== "");
  const search = new URLSearchParams(values).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search && `?${search}`}`;
}

/** Store the scroll position of the page in the browser's history, so that the router can restore the position. */
export const keepPlace = () => history.replaceState({ scrolled: scrollY }, "");

let arrival = null; // text to show at the next address
/** Go to a view, and show a text in its status bar. */
export function go(parts, query, text = null) {
  const to = address(parts, query),
    isHere = to === location.hash;
  arrival = text;
  if (isHere) return arrive();
  keepPlace();
  location.hash = to;
  return undefined;
}

/** Replace the text in the status bar by the text for the new address. */
export function arrive() {
  fill(document.getElementById("status"));
  if (arrival) say(arrival);
  arrival = null;
}

export const agentsAddress = (path) => new URL(`..${path}`, document.baseURI).href;
export const link = (parts, query, ...children) => h("a", { href: address(parts, query) }, children);
export const labelsOf = (labels) =>
  Object.entries(labels).map(([name, value]) => [h("span.label", `${name}=${value}`), " "]);

export function time(text) {
  /** @type {Intl.DateTimeFormatOptions} */
  const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  const localTime = new Date(text).toLocaleString("en-GB", { day: "numeric", month: "short", ...clock });
  return h("time", { datetime: text, title: text }, localTime);
}

/** Create a hint with the current time: the view shows the data of that time, and isn't updated automatically. */
export const notLive = () => h("span.hint", "As of ", time(new Date().toISOString()), ", not live.");

/** Make screen readers read a text. The text must also be visible elsewhere on the page. */
export const announce = (text) => fill(document.getElementById("announced"), text);

/** Show a text in the status bar, which screen readers read aloud. An error stays until the user dismisses it. An error
 *  with `isAway`, a server that doesn't answer, also goes when the server answers again. */
export function say(text, isError = false, isAway = false) {
  const note = h("div.note", { role: isError && "alert", "data-away": isAway }, text);
  note.classList.toggle("bad", isError);
  if (isError) note.append(h("button.quiet", { type: "button", onclick: () => note.remove() }, "Dismiss"));
  else setTimeout(() => note.remove(), 5000);
  fill(document.getElementById("status"), note);
}

/** Create a button. The button is disabled while its action runs. If the action fails, the status bar shows the
 *  error. */
export function button(label, action, kind) {
  const element = h("button", { type: "button", class: kind }, label);
  element.addEventListener("click", async () => {
    if (element.ariaDisabled) return;
    element.ariaDisabled = "true";
    await Promise.resolve(element)
      .then(action)
      .catch((error) => error.name === "AbortError" || say(error.message, true, error.isAway));
    element.ariaDisabled = null;
  });
  return element;
}

/** Create a button that opens a dialog with a question. Only the button `answer` starts the action; Escape cancels. */
export function askingButton(label, question, answer, action) {
  return button(label, () => {
    const decide = button(
      answer,
      () => {
        dialog.close();
        return action();
      },
      "danger",
    );
    const cancel = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Cancel");
    const dialog = h("dialog", { "aria-label": label }, h("p", question), h("p.actions", decide, cancel));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const downloadButton = (label, name, content) =>
  button(label, async () => download(name, await content()), "quiet");
/** Download a file; `content` is its text or its bytes. */
function download(name, content) {
  const url = URL.createObjectURL(new Blob([content]));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // milliseconds: the browser may first ask the user for a folder
}

const FOCUSABLE = "a, button, input",
  STOP = "[data-stop]"; // the only element of a list that the tab key reaches
/** Make an element the only element of a list that the tab key reaches. */
export function stopAt(list, stop) {
  for (const each of list.querySelectorAll(FOCUSABLE)) {
    each.tabIndex = each === stop ? 0 : -1;
    each.toggleAttribute("data-stop", each === stop);
  }
}

/** Make a list or a table a single stop of the tab key. Within the list, the arrow keys move between and within rows.
 *  `follow` is called with the element that an arrow key has reached, or undefined at the end, and with the key.
 * @param {HTMLElement} list @param {string} rows @param {(to: HTMLElement | undefined, key: string) => void} follow */
export function oneTabStop(list, rows, follow = () => {}) {
  const stops = (row) => [...row.querySelectorAll(FOCUSABLE)];
  const of = ({ target }) => /** @type {HTMLElement} */ (target);
  list.addEventListener("focusin", (event) => of(event).matches(FOCUSABLE) && stopAt(list, of(event)));
  list.addEventListener("keydown", (event) => {
    const all = [...list.querySelectorAll(rows)],
      row = of(event).closest(rows),
      place = all.indexOf(row);
    if (place < 0 || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const own = stops(row),
      column = own.indexOf(of(event));
    const inRow = (other) => other && (stops(other)[column] ?? stops(other).at(-1));
    const moves = {
      ArrowDown: () => inRow(all[place + 1]),
      ArrowUp: () => inRow(all[place - 1]),
      ArrowRight: () => own[column + 1],
      ArrowLeft: () => own[column - 1],
      Home: () => inRow(all[0]),
      End: () => inRow(all.at(-1)),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    const to = moves[event.key]();
    to?.focus();
    follow(to, event.key);
  });
  const keepOneStop = () => {
    const elements = [...list.querySelectorAll(FOCUSABLE)];
    stopAt(list, elements.find((each) => each.matches(STOP)) ?? elements[0]);
  };
  new MutationObserver(keepOneStop).observe(list, { childList: true, subtree: true });
  keepOneStop();
  return list;
}

/** Create a search field. Enter searches forwards, and shift and Enter search backwards. `look` gets the text, the
 *  direction 1 or -1, and a signal that aborts when the user starts another search. `look` returns the text to show.
 * @param {string} hint @param {(text: string, by: number, signal: AbortSignal) => string | Promise<string>} look */
export function searchField(hint, look) {
  const result = h("span.hint", { "aria-live": "polite" });
  let looking = new AbortController();
  const step = async (by) => {
    looking.abort();
    looking = new AbortController();
    const { signal } = looking;
    fill(result, "Looking…");
    const answer = await (async () => input.value && look(input.value, by, signal))().catch(({ message }) => message);
    if (!signal.aborted) fill(result, answer);
  };
  const onkeydown = ({ key, shiftKey }) => key === "Enter" && step(shiftKey ? -1 : 1);
  const input = h("input", { type: "search", placeholder: hint, "aria-label": hint, onkeydown });
  const turn = (label, by) => h("button.quiet", { type: "button", onclick: () => step(by) }, label);
  return h("div.search", input, turn("Previous", -1), turn("Next", 1), result);
}

export const copyButton = (label, text) => button(label, async () => copy(await text()), "quiet");
async function copy(text) {
  if (!navigator.clipboard) return prompt("Copy this text yourself, because a page without HTTPS can't copy it:", text);
  await navigator.clipboard.writeText(text);
  return say("Copied.");
}

const FIRST_DELAY = 2000, // milliseconds before the first retry; the delay doubles each time, up to the longest
  LONGEST_DELAY = 15_000;
const latest = new WeakMap(); // the newest `work` for each place: results of older work are dropped

/** Show the result of `work` in a place, and "Loading…" until then. If `work` fails, show the error and a button to try
 *  again. If the server is unavailable, also try again automatically, with growing delays. */
export async function load(place, work, wait = FIRST_DELAY) {
  const isLate = () => latest.get(place) !== work;
  latest.set(place, work);
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => place.childElementCount || fill(place, h("p.hint", "Loading…")), 200);
  try {
    const content = await work();
    if (isLate()) return;
    if (content !== undefined) refill(place, content);
  } catch (error) {
    if (error.name === "AbortError" || isLate()) return;
    if (error.name !== "Failure") console.error(error); // a bug of the console
    const again = button("Try again", () => load(place, work));
    // A failed view gets a heading and a link to the sessions. If only a part failed, the rest of the view has them.
    const isView = !document.querySelector("main h1");
    const out = h("p.actions", h("a", { href: "#/sessions" }, "Go to the sessions"));
    const problem = h(
      "div.problem",
      { role: "alert" },
      isView && h("h1", "This page can't be shown"),
      h("p", error.message),
      again,
      isView && out,
    );
    fill(place, problem);
    const longer = Math.min(wait * 2, LONGEST_DELAY);
    if (error.isAway) pause(wait).then(() => problem.isConnected && load(place, work, longer));
  } finally {
    clearTimeout(slow);
    if (!isLate()) place.removeAttribute("aria-busy");
  }
}
