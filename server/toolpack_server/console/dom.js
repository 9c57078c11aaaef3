// Elements, and what several views need of them.
// Whatever is shown goes through `h`, which makes text of it. Nothing that a session holds becomes markup,
// and characters that can't be seen, or that turn the direction of a text round, are written as \u202e.
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const UNSEEN_ONE = new RegExp(UNSEEN.source);
const escaped = (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`;
// A text that has such a code itself gets one more backslash; those below \u0020 JSON writes in this way already.
const CODE = /\\+u((?!00[01])[0-9a-f]{4})/g;
const marked = (found, code) =>
  UNSEEN_ONE.test(String.fromCharCode(Number.parseInt(code, 16))) ? `\\${found}` : found;
export const visible = (text) => String(text).replace(CODE, marked).replace(UNSEEN, escaped);
const isGiven = (value) => ![undefined, null, false].includes(value);

/** Make an element: `h("p.hint", {title}, ...children)`; attributes may be left out, `on…` are listeners. */
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

/** Replace an element's children; the focus stays on what has the same id there, or leads to the same address. */
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

/** Get the address of a view: the parts of its path, then a query without what is empty. */
export function address(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => isGiven(value) && value !== "");
  const search = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search && `?${search}`}`;
}

/** Keep how far the page is scrolled, for whoever comes back to it. */
export const keepPlace = () => history.replaceState({ scrolled: scrollY }, "");

let arrival = null; // what is to be said at the next address
/** Go to a view, and say something there. */
export function go(parts, query, text = null) {
  const to = address(parts, query),
    isHere = to === location.hash;
  arrival = text;
  if (isHere) return arrive();
  keepPlace();
  location.hash = to;
  return undefined;
}

/** Begin at another address: what was said belongs to the one before. */
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

/** Say something at the bottom of the page, to screen readers too. An error stays until it is dismissed, or is over. */
export function say(text, isError = false, isAway = false) {
  const note = h("div.note", { role: isError && "alert", "data-away": isAway }, text);
  note.classList.toggle("bad", isError);
  if (isError) note.append(h("button.quiet", { type: "button", onclick: () => note.remove() }, "Dismiss"));
  else setTimeout(() => note.remove(), 5000);
  fill(document.getElementById("status"), note);
}

/** A button that does nothing while its action runs, and that says why the action failed. */
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

/** A button that asks in a dialog, which Escape closes; only its `answer` begins the action. */
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
/** Give the person a file; `content` is its text, or its bytes. */
function download(name, content) {
  const url = URL.createObjectURL(new Blob([content]));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // milliseconds; a browser may ask where to put it
}

const REACHED = "a, button, input",
  STOP = "[data-stop]"; // that the tab key leads to
/** Let the tab key lead to this one of a list. */
export function stopAt(list, wanted) {
  for (const each of list.querySelectorAll(REACHED)) {
    each.tabIndex = each === wanted ? 0 : -1;
    each.toggleAttribute("data-stop", each === wanted);
  }
}

/** Make a list, or a table, one stop of the tab key; in it the arrows move, between rows and within one. `follow` hears
 *  which element an arrow has led to.
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

/** A field in which Enter looks for a text, shift and Enter backwards; `look` gets the text, 1 or -1, and a signal that
 *  the person looks for something else, and gives what is to be said.
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
  if (!navigator.clipboard) return prompt("Copy this; a page that isn't served securely can't:", text);
  await navigator.clipboard.writeText(text);
  return say("Copied.");
}

const LOOK_AGAIN = 2000, // milliseconds, which double
  LONGEST = 15_000;
const latest = new WeakMap(); // what is to be shown at a place: of several at the same time only the last

/** Show what `work` gives; meanwhile that it loads, and if it fails the error with a way to go on.
 *  A server that is away is asked again by itself, after pauses that grow. */
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
    if (error.name !== "Failure") console.error(error); // a mistake of the console's own
    const again = button("Try again", () => load(place, work));
    const problem = h("div.problem", { role: "alert" }, h("p", error.message), again);
    fill(place, problem);
    const longer = Math.min(wait * 2, LONGEST);
    if (error.isAway) pause(wait).then(() => problem.isConnected && load(place, work, longer));
  } finally {
    clearTimeout(slow);
    if (!isLate()) place.removeAttribute("aria-busy");
  }
}
