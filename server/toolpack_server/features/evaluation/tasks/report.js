// Page in the file of `evaluate --html`: the console's page of runs, with all of its data in the file.
// It sends no requests. A rollout opens below the statistics, with its prompt, checks and calls.
import { fill, h, labelsOf, link, time } from "./dom.js";
import { stateOf } from "./runs_model.js";
import { tag } from "./runs_parts.js";
import { openRuns } from "./runs_view.js";

const data = JSON.parse(document.getElementById("data").textContent);
const fits = (labels) => (session) => Object.entries(labels).every(([name, value]) => session.labels[name] === value);

async function* sessions(labels, text) {
  const said = text.toLowerCase(), all = data.sessions.filter(fits(labels));
  yield all.filter(({ session_id: id, task, lines }) => [id, task, ...lines].some((line) => line.toLowerCase().includes(said)));
}

async function* judge() {} // all sessions are evaluated already
const forget = () => {};

const cell = ({ session_id: id }, query, text) => link(["runs"], { ...query, session: id }, text);

function details(session, query) {
  if (!session) return null;
  const { session_id: id, task, labels, verdict, created_at: created, lines } = session;
  const checks = verdict.checks.map(({ passed, name, detail }) => h("tr", h("td", h(passed ? "span.tag.good" : "span.tag.bad", passed ? "passed" : "failed")), h("td", name), h("td.words", detail)));
  const prompt = data.prompts[task];
  return h("section.side.rollout", { id: "rollout", "aria-label": "Rollout" },
    h("p.facts", tag(session), verdict.reward !== null && h("span", `reward ${verdict.reward}`), h("strong", task), h("code", id), time(created), labelsOf(labels)),
    verdict.failure && h("p.hint", `Says nothing about the agent: ${verdict.failure.message}`),
    prompt && [h("h3", "Prompt"), h("pre", prompt)],
    checks.length > 0 && [h("h3", "Checks"), h("table.changes", h("tbody", checks))],
    h("h3", "Calls and messages"), lines.length ? h("pre", lines.join("\n")) : h("p.hint", "Nothing."),
    h("p.actions", data.url && h("a", { href: `${data.url}/console/#/sessions/${id}` }, "Open in the console"), link(["runs"], { ...query, session: undefined }, "Close")));
}

const about = [
  data.verified && h("p", h("strong", "Verified: "), data.verified),
  h("p.hint", `Written by toolpack-server ${data.verified ? "verify" : "evaluate"}, with ${data.sessions.length} rollouts, `, time(data.written), "."),
];
const first = Object.keys(data.labels)[0], start = first === undefined ? {} : { by: first, run: data.labels[first] };

function query() {
  const asked = Object.fromEntries(new URLSearchParams(location.hash.split("?")[1]));
  return Object.keys(asked).length || location.hash ? asked : start;
}

const place = h("div");
fill(document.getElementById("main"), place);
document.title = `${data.sessions.filter((each) => stateOf(each) === "passed").length} of ${data.sessions.length} passed · Toolpack Server`;
const open = openRuns(place, { sessions, judge, forget, cell, details, about }, query(), new AbortController().signal);
addEventListener("hashchange", async () => {
  await open(query());
  if (query().session) document.getElementById("rollout")?.scrollIntoView({ block: "nearest" });
});
