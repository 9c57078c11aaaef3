// The router: each view has an address after the #, so that a link can go into a bug report.
// A view is `open(place, ids, query, signal)`. It fills the place, and may give a function that takes another
// query at the same path. What it still asks for when the person leaves is given up by the signal.
import { openCompare } from "./compare.js";
import { arrive, fill, h, keepPlace, link, say, short } from "./dom.js";
import { openNew } from "./new.js";
import { offerToForget } from "./rpc.js";
import { openSession } from "./session.js";
import { openSessions } from "./sessions.js";
import { openToolpacks } from "./toolpacks.js";

const VIEWS = {
  sessions: [openSessions, openSession],
  new: [openNew],
  compare: [openCompare],
  toolpacks: [openToolpacks],
};
const nav = document.querySelector("nav");
for (const [name, module] of Object.entries(await (await fetch("views.json")).json())) {
  try {
    VIEWS[name] = [(await import(module)).open];
    nav.append(" ", h("a", { href: `#/${name}` }, titleOf(name)));
  } catch (error) {
    say(`The page ${name} can't be loaded: ${error.message}`, true);
  }
}
const main = document.getElementById("main");
let shown = { path: null, hash: null, leave: new AbortController(), update: null };

function titleOf(name) {
  return name[0].toUpperCase() + name.slice(1);
}

function show() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(search));
  arrive();
  shown.hash = location.hash;
  if (path === shown.path && shown.update) return shown.update(query);
  const [name, ...ids] = path.split("/").filter(Boolean).map(decodeURIComponent);
  if (!name) return location.replace("#/sessions");
  if (shown.path !== null) main.focus({ preventScroll: true });
  shown.leave.abort();
  shown = { path, hash: location.hash, leave: new AbortController(), update: null };
  for (const other of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav a")))
    other.ariaCurrent = other.hash === `#/${name}` ? "page" : null;
  const title = [titleOf(name), ...ids.map((id) => (/^[0-9a-f]{48}$/.test(id) ? short(id) : id))];
  document.title = `${title.join(" ")} · Toolpack Server`;
  const place = h("div"),
    views = Object.hasOwn(VIEWS, name) ? VIEWS[name] : [];
  fill(main, place);
  goBackTo(history.state?.scrolled ?? 0);
  if (!views.length) return fill(place, h("h1", "There is no such page"), link(["sessions"], {}, "Go to the sessions"));
  shown.update = views[Math.min(ids.length, views.length - 1)](place, ids, query, shown.leave.signal);
  return undefined;
}

const PATIENCE = 5000; // milliseconds, for what is read anew
let returning = null;
/** Scroll to where a page was left, as soon as it is long enough again, unless the person does something first. */
function goBackTo(scrolled) {
  const until = performance.now() + PATIENCE,
    own = {};
  returning = own;
  const scroll = () => {
    if (returning !== own) return;
    scrollTo(0, scrolled);
    if (scrollY < scrolled - 1 && performance.now() < until) requestAnimationFrame(scroll);
    else returning = null;
  };
  scroll();
}
history.scrollRestoration = "manual"; // a browser would scroll before there is anything
for (const name of ["wheel", "touchstart", "pointerdown", "keydown"])
  addEventListener(name, () => (returning = null), { passive: true });
addEventListener("click", keepPlace, { capture: true });
addEventListener("scrollend", () => returning || location.hash !== shown.hash || keepPlace());

addEventListener("hashchange", show);
addEventListener("unhandledrejection", ({ reason }) => reason?.name === "AbortError" || say(String(reason), true));
offerToForget();
show();
