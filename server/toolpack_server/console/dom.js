// Helpers to create elements, and widgets that several views use.
// All content goes through `h`, which inserts it as text. So data of a session never becomes markup. Invisible
// characters, and characters that change the direction of a text, are shown as escapes such as \u202e.
// biome-ignore lint/suspicious/noControlCharactersInRegex: the expression searches for them
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const UNSEEN_ONE = new RegExp(UNSEEN.source);
const escaped = (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`;
// An escape that is in the text itself gets one more backslash. JSON already writes codes below \u0020 as escapes.
const CODE = /\\+u((?!00[01])[0-9a-f]{4})/g;
const marked = (found, code) =>
  UNSEEN_ONE.test(String.fromCharCode(Number.parseInt(code, 16))) ? `\\${found}` : found;
export const visible = (text) => String(text).replace(CODE, marked).replace(UNSEEN, escaped);
const isGiven = (value) => ![undefined, null, false].includes(value);

/** Create an element: `h("p.hint", {title}, ...children)`. Attributes are optional; `on…` attributes are listeners. */
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
  const given = children.flat(Infinity).filter(isGiven);
  element.replaceChildren(...given.map((child) => (child instanceof Node ? child : visible(child))));
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

/** Return the address of a view: the parts of its path, then a query without empty values. */
export function address(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => isGiven(value) && value !== "");
  const search = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search && `?${search}`}`;
}

/** Store the scroll position of the page, for when the user returns to it. */
export const keepPlace = () => history.replaceState({ scrolled: scrollY }, "");

let arrival = null; // text to show at the next address
/** Go to a view, and show a text there. */
export function go(parts, query, text = null) {
  const to = address(parts, query),
    isHere = to === location.hash;
  arrival = text;
  if (isHere) return arrive();
  keepPlace();
  location.hash = to;
  return undefined;
}

/** Replace the text in the status bar when the address has changed. */
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
  const shown = new Date(text).toLocaleString("en-GB", { day: "numeric", month: "short", ...clock });
  return h("time", { datetime: text, title: text }, shown);
}

/** Show that a view is as of now, and isn't updated by itself. */
export const notLive = () => h("span.hint", "As of ", time(new Date().toISOString()), ", not live.");

/** Let screen readers read a text that the page shows elsewhere. */
export const announce = (text) => fill(document.getElementById("announced"), text);

/** Show a text at the bottom of the page; screen readers read it. An error stays until it is dismissed or resolved. */
export function say(text, isError = false, isAway = false) {
  const note = h("div.note", { role: isError && "alert", "data-away": isAway }, text);
  note.classList.toggle("bad", isError);
  if (isError) note.append(h("button.quiet", { type: "button", onclick: () => note.remove() }, "Dismiss"));
  else setTimeout(() => note.remove(), 5000);
  fill(document.getElementById("status"), note);
}

/** Create a button. It is disabled while its action runs, and shows the error if the action fails. */
export function button(label, action, kind) {
  const made = h("button", { type: "button", class: kind }, label);
  made.addEventListener("click", async () => {
    if (made.ariaDisabled) return;
    made.ariaDisabled = "true";
    await Promise.resolve(made)
      .then(action)
      .catch((error) => error.name === "AbortError" || say(error.message, true, error.isAway));
    made.ariaDisabled = null;
  });
  return made;
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
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // milliseconds; the browser may ask the user for a folder
}

const REACHED = "a, button, input",
  STOP = "[data-stop]"; // the element that the tab key reaches
/** Make this element the one of a list that the tab key reaches. */
export function stopAt(list, wanted) {
  for (const each of list.querySelectorAll(REACHED)) {
    each.tabIndex = each === wanted ? 0 : -1;
    each.toggleAttribute("data-stop", each === wanted);
  }
}

/** Make a list or a table one stop of the tab key. In it, the arrow keys move between rows and within a row.
 *  `follow` is called with the element that an arrow key has reached.
 * @param {HTMLElement} list @param {string} rows @param {(to: HTMLElement | undefined, key: string) => void} follow */
export function oneTabStop(list, rows, follow = () => {}) {
  const stops = (row) => [...row.querySelectorAll(REACHED)];
  const of = ({ target }) => /** @type {HTMLElement} */ (target);
  list.addEventListener("focusin", (event) => of(event).matches(REACHED) && stopAt(list, of(event)));
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
  const settle = () => {
    const shown = [...list.querySelectorAll(REACHED)];
    stopAt(list, shown.find((each) => each.matches(STOP)) ?? shown[0]);
  };
  new MutationObserver(settle).observe(list, { childList: true, subtree: true });
  settle();
  return list;
}

/** Create a search field. Enter searches forwards, shift and Enter backwards. `look` gets the text, 1 or -1, and a
 *  signal that aborts when the user starts another search. It returns the text to show.
 * @param {string} hint @param {(text: string, by: number, signal: AbortSignal) => string | Promise<string>} look */
export function searchField(hint, look) {
  const said = h("span.hint", { "aria-live": "polite" });
  let looking = new AbortController();
  const step = async (by) => {
    looking.abort();
    looking = new AbortController();
    const { signal } = looking;
    fill(said, "Looking…");
    const answer = await (async () => input.value && look(input.value, by, signal))().catch(({ message }) => message);
    if (!signal.aborted) fill(said, answer);
  };
  const onkeydown = ({ key, shiftKey }) => key === "Enter" && step(shiftKey ? -1 : 1);
  const input = h("input", { type: "search", placeholder: hint, "aria-label": hint, onkeydown });
  const turn = (label, by) => h("button.quiet", { type: "button", onclick: () => step(by) }, label);
  return h("div.search", input, turn("Previous", -1), turn("Next", 1), said);
}

export const copyButton = (label, text) => button(label, async () => copy(await text()), "quiet");
async function copy(text) {
  if (!navigator.clipboard) return prompt("Copy this text. A page without HTTPS can't do it for you:", text);
  await navigator.clipboard.writeText(text);
  return say("Copied.");
}

const LOOK_AGAIN = 2000, // milliseconds before the first retry; the delay doubles each time
  LONGEST = 15_000;
const latest = new WeakMap(); // the newest `work` for each place; results of older ones are dropped

/** Show the result of `work`, "Loading…" meanwhile, and an error with a button to try again if it fails.
 *  If the server is unavailable, try again automatically, with growing delays. */
export async function load(place, work, wait = LOOK_AGAIN) {
  const isLate = () => latest.get(place) !== work;
  latest.set(place, work);
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => place.childElementCount || fill(place, h("p.hint", "Loading…")), 200);
  try {
    const shown = await work();
    if (isLate()) return;
    if (shown !== undefined) refill(place, shown);
  } catch (error) {
    if (error.name === "AbortError" || isLate()) return;
    if (error.name !== "Failure") console.error(error); // a bug of the console
    const again = button("Try again", () => load(place, work));
    // A whole view gets a heading, and a way out. A part of one has both already.
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
    const longer = Math.min(wait * 2, LONGEST);
    if (error.isAway) pause(wait).then(() => problem.isConnected && load(place, work, longer));
  } finally {
    clearTimeout(slow);
    if (!isLate()) place.removeAttribute("aria-busy");
  }
}
