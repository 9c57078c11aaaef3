// Evaluation of a session: a task's reward and its checks.
import { button, fill, h, link, load } from "./dom.js";
import { call } from "./rpc.js";
import { full } from "./tree.js";

export function openEvaluation({ id, session, version, signal }) {
  const input = h("input", { id: "task", value: session.task, placeholder: "toolpack/name", spellcheck: "false" });
  const answer = h("div", { "aria-live": "polite" });
  const ask = () => call("evaluate_session", { session_id: id, version, task: input.value.trim() }, signal);
  const evaluate = () => load(answer, () => ask().then(resultOf));
  const toolpacks = session.toolpacks.map((name) => [" ", link(["toolpacks", name], {}, name)]);
  if (session.task) evaluate();
  return [
    h("h2", "Evaluate"),
    h("p.hint", "Runs the evaluator of a task, and changes nothing. See the tasks of", toolpacks, "."),
    h("div.field", h("label", { for: "task" }, "Task"), input),
    h("p.actions", button(`Evaluate at version ${version}`, evaluate, "primary")),
    answer,
  ];
}

const tag = (ok) => h(ok ? "span.tag.good" : "span.tag.bad", ok ? "passed" : "failed");
export const outcome = ({ passed, reward, valid }) => [
  valid ? tag(passed) : h("span.tag.mark", "invalid"),
  reward !== null && ` reward ${Number(reward)}`,
];

/** Show the verdict on the session's current version in one line. */
export async function verdictOf({ id, verdict, signal }) {
  try {
    const said = await call("evaluate_session", { session_id: id, raise_on_error: false }, signal);
    const wrong = said.checks
      .filter(({ passed }) => !passed)
      .map(({ name }) => name)
      .join("; ");
    fill(
      verdict,
      link(["sessions", id], { evaluate: " " }, outcome(said)),
      h("span.hint", " ", said.failure?.message ?? wrong),
    );
  } catch (error) {
    if (error.name !== "AbortError") fill(verdict, h("span.tag.bad", { title: error.message }, "can't be evaluated"));
  }
}

/** Create an element that shows the verdict on a session at a version as soon as the server has evaluated it. */
export function verdictAt(params, signal) {
  const place = h("span.tags");
  call("evaluate_session", { ...params, raise_on_error: false }, signal).then(
    (said) => fill(place, outcome(said)),
    ({ message }) => fill(place, h("span.tag.bad", { title: message }, "can't be evaluated")),
  );
  return place;
}

function resultOf(said) {
  const { task, version, checks, metrics = {}, failure } = said;
  const none = h("span.hint", "none");
  const rows = checks.map(({ passed: ok, name, detail }) =>
    h(
      "tr",
      h("td", tag(ok)),
      h("td", name),
      h("td.words", { "data-label": "Detail: " }, detail || none.cloneNode(true)),
    ),
  );
  const head = h(
    "thead",
    h(
      "tr",
      ["Outcome", "Check", "Detail"].map((text) => h("th", { scope: "col" }, text)),
    ),
  );
  const table = checks.length > 0 && h("table.changes.cards.checks", head, h("tbody", rows));
  const more = Object.keys(metrics).length > 0 && [h("h3", "Metrics"), h("pre", full(metrics))];
  const why = failure && h("p.hint", `Says nothing about the agent: ${failure.message}`);
  return [h("h3", outcome(said)), why, h("p.hint", `${task} at version ${version}`), table, more];
}
