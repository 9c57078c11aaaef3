// Panel of the chosen step: the call and its result, the changes, the world after it, and actions such as a fork.
import { difference } from "./difference.js";
import {
  address,
  agentsAddress,
  askingButton,
  button,
  copyButton,
  downloadButton,
  fill,
  go,
  h,
  link,
  load,
  pause,
  short,
  time,
} from "./dom.js";
import { comingAfter, forkWithout, worldTime } from "./events.js";
import { change, hasToken, RPC, stringify, world } from "./rpc.js";
import { contentOf, isCall, outcome, rulesMet, title, who } from "./trace.js";
import { full } from "./tree.js";
import { replayWithout } from "./without.js";
import { changeList, withRows, worldPanel } from "./world.js";

const KEEP_PREVIOUS = 400; // milliseconds; the previous step stays visible so long, so that the page doesn't jump

export async function openStep(state, record, before) {
  const { id, version, session, files } = state;
  const changes = h("div"),
    place = h("div");
  const showWorld = async () => {
    const old =
      version > before
        ? world(id, before).then(
            (value) => [value],
            (error) => error.message,
          )
        : null;
    const ends = [before, version].map((at) => ({ session_id: id, version: at }));
    let now = await world(id, version),
      read = await old;
    if (Array.isArray(read)) [read[0], now] = await withRows(ends, [read[0], now]);
    const change = Array.isArray(read) ? difference(read[0], now) : null;
    const none = typeof read === "string" ? read : "This step changed nothing that is visible in the world.";
    if (read) fill(changes, h("h3", "What this step changed"), change ? changeList(change) : h("p.hint", none));
    const label = version === session.version ? `World now, at version ${version}` : `World at version ${version}`;
    return [h("h3", label), worldPanel(now, change, { label, files, ends: ends[1] })];
  };
  await Promise.race([load(place, showWorld), pause(KEEP_PREVIOUS)]);
  const coming = await comingAfter(state, version);
  if (!record) return [startOf(state), forkedAt(state, 0), coming, changes, place];
  return [
    stepOf(state, record, before),
    version > before && forkedAt(state, version),
    changes,
    isCall(record) ? callOf(record) : noteOf(contentOf(record)),
    coming,
    place,
  ];
}

const FORKS = 5; // max number of links to forks
/** Create links to the forks of a version. */
function forkedAt({ id, forks }, version) {
  const here = forks.filter(({ parent }) => parent.version === version),
    more = here.length - FORKS;
  const named = here
    .slice(0, FORKS)
    .map(({ session_id: one }) => [link(["sessions", one], {}, h("code", short(one))), " "]);
  const rest = more > 0 && `and ${more.toLocaleString("en")} more`;
  return (
    here.length > 0 &&
    h("p.facts", h("span", "Forked here: ", named), rest, link(["sessions", id], { forks: " " }, "All forks"))
  );
}

const forkButton = (label, { id }, version, more = {}) =>
  button(label, async () => {
    const [fork] = await change("fork_session", { session_id: id, version, labels: { console: "fork" }, ...more });
    go(["sessions", fork.session_id], {}, `This is the new fork of version ${version}.`);
  });
const withoutRules = (state, version) =>
  state.session.perturbations && forkButton("Without the rules", state, version, { perturbations: { rules: [] } });

const resetButton = ({ id, session }, version) =>
  version < session.version &&
  askingButton("Reset to here", `Reset the session to version ${version}?`, "Reset", async () => {
    await change("reset_session", { session_id: id, version });
    go(["sessions", id], {}, `The session has the world of version ${version} again.`);
  });

function startOf(state) {
  const run = h("a.primary", { href: address(["sessions", state.id], { run: " " }) }, "Run a function");
  const copy = copyButton("Copy agent's address", () => agentsAddress(state.session.agent_path));
  const first = [
    h("p", "There are no calls yet. Calls of the agent appear here automatically."),
    h("p.actions", run, copy),
  ];
  const actions = h("p.actions", forkButton("Fork here", state, 0), withoutRules(state, 0), resetButton(state, 0));
  return [h("h2", "Start"), state.total === 0 ? h("div.empty", first) : actions];
}

function stepOf(state, record, before) {
  const { id, version, session } = state,
    { index, started_at: start, duration_ms: duration, by, call_id: callId } = record;
  const changed = version > before,
    called = isCall(record);
  const replay = (made) => replayWithout(state, record, (text) => fill(made, text));
  const facts = [
    changed ? `version ${before} → ${version}` : `version ${version}`,
    start && time(start),
    duration !== undefined && `${duration} ms`,
    record.at && ["at ", worldTime(record.at)],
    record.event && ["event ", h("code", record.event)],
    record.problem,
    by && (session.participants ? `by ${who(record)}` : `by the ${by}`),
    callId && ["call_id ", h("code", callId)],
  ];
  const actions = [
    record.event && forkWithout(record.event, state, { before: index }),
    changed && called && !record.event && button("Replay without this call", replay, "primary"),
    changed && forkButton("Fork before", state, before),
    forkButton(changed ? "Fork after" : "Fork here", state, version),
    withoutRules(state, before),
    resetButton(state, version),
    called && link(["sessions", id], { version: before, run: record.function, like: index }, "Edit and try"),
    called && copyButton("Copy as curl", () => curlOf(id, record.function, record.kwargs)),
    downloadButton("Download JSON", `${short(id)}-step-${index}.json`, () => stringify(record, 2)),
  ];
  return [
    h("h2", `Step ${index}: ${title(record)} `, h(...outcome(record, before)), " ", rulesMet(record)),
    h(
      "p.facts",
      facts.map((fact) => fact && h("span", fact)),
    ),
    h("p.actions", actions),
  ];
}

/** Create the element of a whole value. For an empty text it says so, because a blank bar would be unclear. */
export const shownValue = (value) => (value === "" ? h("p.hint", "An empty text.") : h("pre", full(value)));
const noteOf = (content) => content !== undefined && [h("h3", "Content"), shownValue(content)];

function callOf({ kwargs, error, result, nested = [], perturbed }) {
  const isCut =
    [kwargs, result, ...Object.values(kwargs)].some((value) => value?.$cut) ||
    nested.some(({ result }) => result?.$cut);
  const ran = ({ function: name, kwargs, error, result }) =>
    `${name}(${full(kwargs)})\n${error ? `✗ ${error}` : `→ ${full(result)}`}`;
  return [
    h("h3", "Arguments"),
    Object.keys(kwargs).length ? h("pre", full(kwargs)) : h("p.hint", "None."),
    nested.length > 0 && [h("h3", "Nested calls, in order of execution"), h("pre", nested.map(ran).join("\n\n"))],
    perturbed ? bothOf({ error, result }, perturbed) : answerOf({ error, result }),
    isCut && h("p.hint", "$cut stands for a value that is too long for a record (TOOLPACK_MAX_RESULT_BYTES / 4)."),
  ];
}

const answerOf = ({ error, result }) =>
  error ? [h("h3", "Error"), h("pre.bad", error)] : [h("h3", "Result"), shownValue(result)];

/** Show the real outcome of a call beside the outcome that a rule gave to the agent. */
function bothOf(happened, { run, phantom, agent }) {
  const side = (label, ...content) => h("section", { "aria-label": label }, h("p.hint", label), content);
  const instead = phantom ? "The function ran on a copy." : "A rule answered instead.";
  const truth = run ? answerOf(happened) : [h("h3", phantom ? "Not committed" : "Not run"), h("p.hint", instead)];
  return h("div.both", side("What happened", truth), side("What the agent got", answerOf({ ...happened, ...agent })));
}

/** Return a call as a shell command. */
export function curlOf(id, name, kwargs) {
  const params = { session_id: id, function: name, kwargs };
  const body = stringify({ jsonrpc: "2.0", id: 1, method: "run_function", params }).replaceAll("'", "'\\''");
  const token = hasToken() ? ' -H "Authorization: Bearer $TOOLPACK_TOKEN"' : "";
  return `curl -s ${RPC} -H 'Content-Type: application/json'${token} -d '${body}'`;
}
