// List of sessions, the newest first, with forks indented below their parents. Clicking a column's head sorts the list.
import { count, fill, go, h, labelsOf, link, load, notLive, oneTabStop, pause, short, time } from "./dom.js";
import { readLabels } from "./form.js";
import { call, stringify } from "./rpc.js";
import { judge, summaries } from "./runs.js";
import { figures, reason, WORDS } from "./runs_model.js";
import { decimal, header, keepTrail, seconds, tag } from "./runs_parts.js";
import { isNote } from "./values.js";

const PAGE = 100;
const LOOK_AGAIN = 3000; // milliseconds between requests for new sessions
const COUNT_AGAIN = 30_000; // milliseconds; long, because the server reads all sessions to count them
const HEADS = [
  [null, () => h("span.unseen", "Compare")], // a function, because each list needs its own element
  ["id", "Session"],
  ["task", "Task"],
  ["parent", "Fork of"],
  [null, "Labels"],
  ["verdict", "Verdict", "The recorded verdict, or the verdict of an evaluation after the answer; and the reward"],
  ["calls", "Calls"],
  ["last", "Last function"],
  ["done", "Answer"],
  ["version", "Version"],
  ["created", "Created"],
];
const newSession = () => h("a.primary", { href: "#/new" }, "New session");

export function openSessions(place, _ids, query, signal) {
  let seen = null,
    total = null, // number of sessions on all pages
    countAt = 0;
  const picked = new Set(),
    table = h("div");
  const labels = h("input", { type: "search", placeholder: "name=value, name=value" });
  const text = h("input", { type: "search", name: "text", placeholder: "id, task, label, trace" });
  const compare = h("button", { type: "button", onclick: () => go(["compare", ...picked]) });
  const onsubmit = (event) => {
    event.preventDefault();
    go(["sessions"], { label: labels.value.trim(), text: text.value.trim(), sort: query.sort });
  };
  const pick = (id, isPicked) => {
    picked[isPicked ? "add" : "delete"](id);
    compare.disabled = picked.size !== 2;
    fill(compare, compare.disabled ? "Mark two to compare" : "Compare these two");
  };
  const show = async () => {
    const [sessions, next, counted] = await read(query, signal).catch((error) => {
      seen = null; // the page shows the error, not the list
      throw error;
    });
    const isAll = next === undefined && !query.after;
    if (isAll || counted !== undefined) total = counted ?? sessions.length;
    const known = stringify([sessions, next, query.sort, counted]);
    const draw = () => listOf(sessions, next, total, query, picked, pick);
    // Errors of these two are ignored, because the next read of the list shows them.
    if (!isAll && counted === undefined && performance.now() > countAt)
      countAll(() => seen === known && load(table, async () => draw())).catch(() => {});
    if (known === seen) return undefined;
    seen = known;
    const unjudged = sessions.filter((each) => each.task && each.done && !each.verdict);
    evaluate(unjudged, () => seen === known && load(table, async () => draw())).catch(() => {});
    return sessions.length ? draw() : empty(query);
  };
  const evaluate = async (asked, tell) => {
    for await (const _ of judge(asked, signal)) tell();
  };
  const countAll = async (tell) => {
    countAt = performance.now() + COUNT_AGAIN;
    const before = total;
    const params = { labels: readLabels(query.label ?? ""), text: query.text ?? "", limit: 1, total: true };
    ({ total } = await call("summarize_sessions", params, signal));
    if (total !== before) tell();
  };
  const open = (next) => {
    [total, countAt] = [null, 0];
    [query, seen, labels.value, text.value] = [next, null, next.label ?? "", next.text ?? ""];
    return load(table, show);
  };
  const follow = async () => {
    let wait = LOOK_AGAIN;
    for (await open(query); !signal.aborted; await pause(wait)) {
      const isUsed =
        document.hidden || query.text || table.contains(document.activeElement) || table.querySelector(".problem");
      const began = performance.now();
      if (!isUsed) await load(table, show);
      wait = Math.max(LOOK_AGAIN, 10 * (performance.now() - began)); // ask a slow server less often
    }
  };
  const filter = [
    h("label", "Labels ", labels),
    h("label", "Text ", text),
    h("button", { type: "submit" }, "Filter"),
    compare,
  ];
  fill(place, h("div.heading", h("h1", "Sessions"), newSession()), h("form.filter", { onsubmit }, filter), table);
  pick(null, false);
  follow();
  return open;
}

let last = null; // the last page: the server doesn't send it again while its digest is unchanged
/** Read a page of sessions. Send the digest of the last page, so that the server need not send it again. */
async function readUnlessKnown(asked, signal) {
  const name = stringify(asked),
    known = last?.name === name ? last.page.digest : "";
  const page = await summaries({ ...asked, known }, signal);
  if (page.digest !== known) last = { name, page };
  return last.page;
}

/** Read a page of sessions. Several answers may be needed, because an answer to a search for a text may have few
 *  sessions or none, and because forks that store a review are left out. */
async function read({ label, text, sort = "-created", after = "" }, signal) {
  const found = [];
  for (let next = after; next !== undefined && found.length < PAGE; ) {
    const params = {
      labels: readLabels(label ?? ""),
      limit: PAGE - found.length,
      order: sort,
      after: next,
      text: text ?? "",
    };
    const answer = await (next === after ? readUnlessKnown : summaries)(params, signal);
    found.push(...answer.sessions.filter((session) => !isNote(session)));
    if (answer.next === undefined || found.length === PAGE) return [found, answer.next, answer.total];
    next = answer.next;
  }
  return [found, undefined, undefined];
}

function empty({ label, text, after }) {
  if (text)
    return h("p.empty", `No session has the text “${text}”. `, link(["sessions"], { label }, "Show all sessions"));
  if (after) return h("p.empty", "There are no older sessions. ", link(["sessions"], { label }, "Show the newest"));
  if (label) return h("p.empty", `No session has the labels ${label}. `, link(["sessions"], {}, "Show all sessions"));
  const about = "A session is one agent's private world. Create one, run functions in it, and see what they change.";
  const hint = h("p.hint", "Sessions that programs create appear here automatically.");
  return h("div.empty", h("h2", "There are no sessions yet"), h("p", about), h("p", newSession()), hint);
}

/** Sort forks below their parents, as `[session, depth]`. If the parent is on another page, the fork isn't indented. */
function indented(sessions) {
  const forks = Map.groupBy(sessions, ({ parent }) => parent?.session_id);
  const here = new Set(sessions.map((session) => session.session_id));
  const family = (session, depth) => {
    const own = forks.get(session.session_id) ?? [];
    return [[session, depth], ...own.flatMap((fork) => family(fork, depth + 1))];
  };
  const heads = sessions.filter(({ parent }) => !here.has(parent?.session_id));
  return heads.flatMap((session) => family(session, session.parent ? 1 : 0));
}

function listOf(sessions, next, total, query, picked, pick) {
  const { label, text, after, sort } = query,
    same = { label, text, sort };
  const older = next && link(["sessions"], { ...same, after: sessions.at(-1).session_id }, sort ? "Next" : "Older");
  const links = [
    after && link(["sessions"], same, sort ? "First" : "Newest"),
    older,
    (label || text) && link(["sessions"], {}, "Show all"),
  ];
  const isPart = next !== undefined || after; // some forks of a session may be on other pages
  const age = (each) => `${each.created_at} ${each.session_id}`;
  const byAge = sessions.toSorted((a, b) => (age(a) < age(b) ? -1 : 1));
  const siblings = Map.groupBy(byAge, ({ parent }) => parent?.session_id);
  const lines = sort ? sessions.map((session) => [session, 0]) : indented(sessions);
  keepTrail(lines.map(([session]) => session));
  const hasForks = sessions.some(({ parent }) => parent),
    heads = HEADS.filter(([key]) => key !== "parent" || hasForks);
  const rows = lines.map(([session, depth]) =>
    rowOf(session, depth, hasForks && (isPart ? [] : siblings.get(session.parent?.session_id)), picked, pick),
  );
  const all = figures(sessions.filter(({ verdict }) => verdict)),
    sum = (name) => sessions.reduce((total, each) => total + each[name], 0);
  const words = ["passed", "failed", "invalid"]
    .filter((state) => all[state])
    .map((state) => `${all[state]} ${WORDS[state]}`);
  const totals = [
    ...words,
    all.counted > 0 && `mean reward ${decimal(all.reward)}`,
    count(sum("calls"), "call"),
    count(sum("errors"), "error"),
    `${seconds(sum("duration_ms") / 1000)} in calls`,
  ];
  const of = isPart && [" on this page", total !== null && ` of ${total.toLocaleString("en")}`];
  const size = h(
    "p.hint",
    count(sessions.length, "session"),
    of,
    ": ",
    totals.filter(Boolean).join(", "),
    text && [". ", notLive()],
  );
  return [
    size,
    h(
      `table.sessions.cards${hasForks ? "" : ".roomy"}`,
      header(heads, query, "sort", "sessions"),
      oneTabStop(h("tbody", rows), "tr"),
    ),
    h("p.pager", links),
  ];
}

function rowOf(session, depth, siblings, picked, pick) {
  const { session_id: id, parent, task, toolpacks, verdict } = session;
  const onchange = ({ target }) => pick(id, target.checked);
  const box = h("input", { type: "checkbox", "aria-label": `Compare ${short(id)}`, checked: picked.has(id), onchange });
  const labels = Object.entries(session.labels).map(([name, value]) =>
    link(["sessions"], { label: `${name}=${value}` }, labelsOf({ [name]: value })),
  );
  const from = parent && [
    link(["sessions", parent.session_id], { version: parent.version }, short(parent.session_id)),
    h("span.hint", ` v${parent.version}`),
    siblings.length > 0 && h("span.hint", `, ${siblings.indexOf(session) + 1} of ${siblings.length}`),
  ];
  const words = session.problem ? h("span.tag.bad", { title: session.problem }, "damaged") : verdict && tag(session);
  const cell = (name, ...content) => h("td.number", { "data-label": `${name} ` }, content);
  return h(
    `tr.depth${Math.min(depth, 4)}`,
    h("td", box),
    h("td.id", link(["sessions", id], {}, h("code", short(id)))),
    h("td.line", { title: task ?? toolpacks.join(", ") }, task ?? h("span.hint", toolpacks.join(", "))),
    siblings && h("td.number", from),
    h(
      "td.line",
      {
        title: Object.entries(session.labels)
          .map((pair) => pair.join("="))
          .join(", "),
      },
      labels,
    ),
    h(
      "td.number",
      { title: reason(session) },
      words,
      (verdict?.reward ?? null) !== null && ` ${decimal(verdict.reward)}`,
    ),
    cell("calls", session.errors ? `${session.calls} (${count(session.errors, "error")})` : session.calls),
    h(
      "td.line",
      { title: session.last_function, "data-label": session.last_function && "last " },
      session.last_function,
    ),
    h("td", session.done && h("span.tag", "done")),
    cell("version", String(session.version)),
    cell("created", time(session.created_at)),
  );
}
