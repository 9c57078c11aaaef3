// Router of the console. Each view has a URL with the view's path after the #, so you can link to it in a bug report.
// A view is a function `open(place, ids, query, signal)`. The function fills the element `place`. It may return a
// function that shows another query of the same path. When the user leaves the view, the signal aborts its requests.
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

/** Decode a part of an address. A part that isn't well-formed, such as `%`, is returned unchanged. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Show the view of the current address. If only the query has changed, update the view that is shown. */
function show() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(search));
  arrive();
  shown.hash = location.hash;
  if (path === shown.path && shown.update) return shown.update(query);
  const [name, ...ids] = path.split("/").filter(Boolean).map(decoded);
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

const MAX_WAIT = 5000; // milliseconds to wait until the page is long enough
let returning = null; // identifies the scroll that is in progress
/** Scroll to the position at which the user left a page. The content is still loading, so scroll again until the page
 *  is long enough. Any action of the user stops this. */
function goBackTo(scrolled) {
  const until = performance.now() + MAX_WAIT,
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
history.scrollRestoration = "manual"; // the browser would scroll before the content is loaded
for (const name of ["wheel", "touchstart", "pointerdown", "keydown"])
  addEventListener(name, () => (returning = null), { passive: true });
addEventListener("click", keepPlace, { capture: true });
addEventListener("scrollend", () => returning || location.hash !== shown.hash || keepPlace());

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the link would replace the part after the #, which is the view
  main.focus();
});

addEventListener("hashchange", show);
addEventListener("unhandledrejection", ({ reason }) => reason?.name === "AbortError" || say(String(reason), true));
offerToForget();
show();
