// View of one session: the timeline of its records, and beside it the chosen step or another panel. New records appear
// automatically.
import {
  agentsAddress,
  announce,
  askingButton,
  copyButton,
  count,
  downloadButton,
  fill,
  go,
  h,
  labelsOf,
  link,
  load,
  pause,
  short,
  time,
} from "./dom.js";
import { openEvaluation, verdictOf } from "./evaluation.js";
import { filesIn, fromBase64 } from "./files.js";
import { forksOf, openForks } from "./forks.js";
import { openReview } from "./review.js";
import { all, call, stringify, toolpacks, world } from "./rpc.js";
import { openRun } from "./run.js";
import { trailOf } from "./runs_parts.js";
import { openStep } from "./step.js";
import { openTalk } from "./talk.js";
import { timeline } from "./timeline.js";
import { countRecords, indexOf, records } from "./trace.js";
import { hasValues, isNote, recordedValues } from "./values.js";

const NOT_FOUND = -32001;
const LOOK_AGAIN = 1000; // milliseconds between requests for new records
const LONG = 300; // characters of a prompt; the box of a longer prompt may need to be scrolled
const PANELS = { run: openRun, talk: openTalk, forks: openForks, evaluate: openEvaluation, review: openReview };
/** Return the name of the panel that the query shows. Return undefined for the panel of the chosen step. */
const panelOf = (query) => Object.keys(PANELS).find((name) => name in query);

export function openSession(place, [id], query, signal) {
  const state = {
    id,
    query,
    signal,
    session: null,
    total: 0,
    version: 0,
    forks: [],
    values: new Map(), // recorded values of steps, by version
    talk: null,
    verdict: h("span"),
    prompt: null,
    hasTasks: false,
    files: null,
  };
  const head = h("div"),
    side = h("section.side", { "aria-label": "Details" });
  const steps = timeline(state);
  const show = async (next) => {
    state.query = next;
    const ofVersion = next.version === undefined ? state.total - 1 : await indexOf(id, Number(next.version), signal);
    const index = Math.min(Number(next.record ?? ofVersion), state.total - 1);
    const record = await steps.choose(index);
    state.version = record?.version ?? 0;
    fill(head, headOf(state));
    await load(side, () => (PANELS[panelOf(next)] ?? openStep)(state, record, steps.before(index)));
    announce(side.querySelector("h2")?.textContent ?? "");
  };
  const narrow = matchMedia("(max-width: 900px)"); // as in style.css, which then puts the details below the timeline
  steps.element.addEventListener("click", ({ target }) => {
    if (narrow.matches && target.closest(".steps a")) side.scrollIntoView({ block: "start" });
  });
  const look = async () => {
    const after = { session_id: id, after: state.total - 1, limit: 500 };
    const [news, session, [newest]] = await all(
      [
        ["get_trace", after],
        ["get_session", { session_id: id }],
        ["list_sessions", { parent: id, order: "-created", limit: 1 }],
      ],
      signal,
    ); // the session comes after its records, so that it is at least as new as they are
    Object.assign(state, { session, total: state.total + news.length });
    const isForked = await lookForForks(newest);
    steps.add(news);
    if (isForked) steps.mark();
    showLive(true);
    if (news.length) judge();
    if (news.some(({ to_version: to }) => to !== undefined)) state.talk = null; // a reset has undone steps
    if (!news.length && !isForked) return;
    const isNewest = !state.query.version && !state.query.record;
    const follows = { undefined: isNewest, talk: news.length > 0, forks: isForked }[panelOf(state.query)];
    await (follows ? show(state.query) : fill(head, headOf(state)));
  };
  /** Read the new forks if `newest`, the newest fork, isn't known yet. Return whether there are new ones. */
  const lookForForks = async (newest) => {
    const known = new Set(forks.map(({ session_id: one }) => one));
    if (!newest || known.has(newest.session_id)) return false;
    await addForks(await forksOf(id, signal, known));
    return true;
  };
  const forks = []; // all forks, the newest first, also those that the panels don't show
  const addForks = async (found) => {
    forks.unshift(...found);
    state.forks = forks.filter((fork) => !isNote(fork));
    if (found.some(hasValues)) state.values = await recordedValues(id, forks, state.total, signal);
  };
  const showLive = (isLive, text = "live") => {
    steps.live.classList.toggle("live", isLive);
    fill(steps.live, text);
  };
  let judging = null; // the running evaluation; only one runs at a time
  const judge = () => {
    if (state.session.task) judging ??= verdictOf(state).finally(() => (judging = null));
  };
  const follow = async () => {
    for (let wait = LOOK_AGAIN; !signal.aborted; await pause(wait)) {
      try {
        if (!document.hidden) await look();
        wait = LOOK_AGAIN;
      } catch (error) {
        showLive(false, `not live: ${error.message}`);
        wait = Math.min(wait * 2, 15_000);
      }
    }
  };
  load(place, async () => {
    const [session, known] = await Promise.all([call("get_session", { session_id: id }, signal), toolpacks()]);
    state.hasTasks = known.some(({ name, tasks }) => tasks > 0 && session.toolpacks.includes(name));
    Object.assign(state, { session, files: filesIn(known) });
    state.prompt = await promptOf(session, signal);
    state.total = await countRecords(id, signal, state.session.version);
    await addForks(await forksOf(id, signal));
    fill(place, head, h("div.columns", steps.element, side));
    await show(state.query);
    judge();
    follow();
  });
  return (next) => state.session && show(next);
}

/** Create the element with the agent's prompt. The view creates it only once, so that it stays open or closed. */
async function promptOf({ task }, signal) {
  if (!task) return null;
  const description = await call("get_task", { task }, signal).catch(() => null); // the task isn't loaded any more
  const messages =
    typeof description?.prompt === "string" ? [{ content: description.prompt }] : (description?.prompt ?? []);
  const shown = messages.map(({ role, content }) =>
    h("pre", { tabindex: content.length > LONG && "0" }, role ? `${role}: ${content}` : content),
  );
  return (
    messages.length > 0 && h("details.prompt", { open: true }, h("summary", "What the agent is asked to do"), shown)
  );
}

function headOf({ id, session, query, hasTasks, verdict, prompt, forks, version: at }) {
  const { labels, parent, toolpacks, toolpack_versions: versions, version, task, perturbations } = session;
  const close = async () => {
    await call("close_session", { session_id: id }).catch((error) => {
      if (error.code !== NOT_FOUND) throw error; // not found: an earlier attempt deleted it, and its answer was lost
    });
    go(["sessions"], {}, `The session ${short(id)} is deleted.`);
  };
  const question = `Delete session ${short(id)}, its worlds and its trace for good? Forks of it stay.`;
  const origin = parent ?? { session_id: id, version: 0 };
  const compare = link(
    ["compare", origin.session_id, id],
    { a: origin.version },
    `Compare with ${parent ? "parent" : "start"}`,
  );
  const from = link(["sessions", origin.session_id], { version: origin.version }, h("code", short(origin.session_id)));
  const tab = (name, text) => {
    const element = link(
      ["sessions", id],
      { version: query.version, record: query.record, ...(name && { [name]: " " }) },
      text,
    );
    element.ariaCurrent = name === panelOf(query) ? "page" : null;
    return element;
  };
  const others = Object.entries(session.participants ?? {}).filter(([name]) => name !== "agent");
  const copied = (label, path) => copyButton(label, () => agentsAddress(path));
  const copies = [
    copyButton("Copy id", () => id),
    copied("Copy agent's address", session.agent_path),
    copied("Copy MCP address", session.mcp_path),
    others.map(([name, { agent_path: path }]) => copied(`Copy ${name}'s address`, path)),
    others.map(([name, { mcp_path: path }]) => copied(`Copy ${name}'s MCP address`, path)),
  ];
  const onkeydown = ({ key, currentTarget: menu }) => {
    if (key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.firstElementChild.focus();
  };
  const menu = (name, entries) => h("details.menu", { onkeydown }, h("summary", name), h("div", entries));
  const file = short(id);
  const downloads = [
    downloadButton(`World at version ${at}`, `${file}-world-${at}.json`, async () => stringify(await world(id, at), 2)),
    downloadButton("Trace", `${file}-trace.json`, async () => stringify(await records(id, 0, Infinity), 2)),
    downloadButton("Bundle", `${file}.bundle`, async () => {
      const { bundle } = await call("export_bundle", { session_id: id });
      return fromBase64(bundle);
    }),
  ];
  const facts = [
    toolpacks.map((name) => [name, versions[name]].filter(Boolean).join(" ")).join(", "),
    `version ${version}`,
    Object.keys(labels).length > 0 && labelsOf(labels),
    parent && ["fork of ", from, ` at version ${parent.version}`],
    perturbations && `perturbations: ${perturbations.variant ?? count(perturbations.rules.length, "rule")}`,
    ["created ", time(session.created_at)],
    ["expires ", time(session.expires_at)],
  ];
  const closing = askingButton("Delete session…", question, "Delete for good", close);
  return [
    trailOf(id, "evaluate" in query ? { evaluate: " " } : {}),
    h(
      "div.heading",
      h("h1", "Session ", h("code", short(id))),
      compare,
      menu("Copy…", copies),
      menu("Download…", downloads),
      closing,
    ),
    task && h("p.facts.verdict", h("span", "task ", link(["toolpacks", task.split("/")[0]], {}, task)), verdict),
    prompt,
    h(
      "p.facts",
      facts.map((fact) => fact && h("span", fact)),
    ),
    h(
      "nav.tabs",
      { "aria-label": "Details" },
      tab(undefined, "Step"),
      tab("talk", "Conversation"),
      tab("run", "Run a function"),
      (parent || forks.length > 0) && tab("forks", forks.length ? count(forks.length, "fork") : "Forks"),
      hasTasks && tab("evaluate", "Evaluate"),
      task && tab("review", "Review"),
    ),
  ];
}
