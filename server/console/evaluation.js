// The evaluation of a session: a task's reward, and the checks behind it.
import { button, h, link, load } from "./dom.js";
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
    h("p.hint", "Asks a task's evaluator how well it was done, and changes nothing. The tasks are those of", toolpacks, "."),
    h("div.field", h("label", { for: "task" }, "Task"), input),
    h("p.actions", button(`Evaluate at version ${version}`, evaluate, "primary")),
    answer,
  ];
}

function resultOf({ task, version, reward, passed, checks, metrics = {} }) {
  const tag = (ok) => h(ok ? "span.tag.good" : "span.tag.bad", ok ? "passed" : "failed");
  const rows = checks.map((check) => h("tr", h("td", tag(check.passed)), h("td", check.name), h("td", check.detail)));
  const more = Object.keys(metrics).length > 0 && [h("h3", "Metrics"), h("pre", full(metrics))];
  return [h("h3", tag(passed), ` reward ${reward}`), h("p.hint", `${task} at version ${version}`), h("table.changes", rows), more];
}
