// A new session: toolpacks, their options by forms made of their schemas, labels, a task if one was chosen, and
// the rest of what create_session takes.
import { button, count, go, h, load } from "./dom.js";
import { readLabels, schemaForm } from "./form.js";
import { call, change } from "./rpc.js";

export const openNew = (place, _ids, { task }, signal) =>
  void load(place, async () => {
    const [toolpacks, asked] = await Promise.all([
      call("list_toolpacks", {}, signal),
      task && call("get_task", { task }, signal),
    ]);
    return formOf(toolpacks, task, asked?.variants ?? []);
  });

const RULES =
  'Faults and injections that its agent meets: a list of objects, such as {"functions": "send_*", "error": "…"}.';

const MORE = {
  seed: { type: "string", description: "What chance and the ids of a repeatable session are drawn from." },
  clock: { type: "string", format: "time", description: "When it begins for its functions: 2026-03-02T09:00:00Z" },
  clock_step_seconds: { type: "number", description: "How far each call moves that clock." },
  ttl_seconds: { type: "number", description: "How long the session lives after its last call." },
  environment: {
    type: "object",
    description: "What its world is instead: environments by toolpack, as they are shown.",
  },
};

function formOf(toolpacks, task, variants) {
  const perturbing = schemaForm(
    {
      properties: {
        ...(variants.length && { variant: { enum: variants, description: "Rules that the task has by this name." } }),
        rules: { type: "array", description: RULES },
        seed: { type: "string", description: "What the chances of rules are drawn from." },
      },
    },
    {},
    "perturbations-",
  );
  const own = task?.split("/")[0]; // comes with the task
  const choices = toolpacks.map((toolpack) => choiceOf(toolpack, task ? toolpack.name === own : !toolpack.opt_in));
  const labels = h("input", { type: "text", id: "labels", name: "labels", placeholder: "name=value, name=value" });
  const roles = schemaForm({
    properties: { participants: { type: "object", description: "{name: {functions, max_calls, prompt, answers}}" } },
  });
  const more = schemaForm({ properties: MORE }, {}, "session-");
  const create = async () => {
    const used = choices.filter(({ box }) => box.checked);
    const given = used.map(({ name, form }) => [name, form?.read() ?? {}]);
    const options = Object.fromEntries(given.filter(([, values]) => Object.keys(values).length));
    const others = used.map(({ name }) => name).filter((name) => name !== own);
    const perturbations = perturbing.read();
    const session = await change("create_session", {
      task,
      options,
      labels: readLabels(labels.value),
      toolpacks: others.length || !task ? others : undefined,
      perturbations: Object.keys(perturbations).length ? perturbations : undefined,
      ...roles.read(),
      ...more.read(),
    });
    go(["sessions", session.session_id]);
  };
  const about = h("span.about", "Names and values by which you find the session later.");
  return [
    h("div.heading", h("h1", "New session")),
    task && h("p", "For the task ", h("code", task), ". Its options hold unless you give others."),
    h("h2", "Toolpacks"),
    choices.map(({ element }) => element),
    h("div.field", h("label", { for: "labels" }, "Labels"), h("span.kind", "optional"), labels, about),
    h("fieldset", h("legend", "Perturbations"), perturbing.element),
    roles.element,
    h("details", h("summary", "Seed, clock, time to live, environment"), more.element),
    h("p.actions", button("Create session", create, "primary")),
  ];
}

function choiceOf({ name, description, functions, options }, checked) {
  const form = Object.keys(options?.properties ?? {}).length ? schemaForm(options, {}, `${name}-`) : null;
  const place = h("div", form && h("fieldset", h("legend", `Options of ${name}`), form.element));
  const box = h("input", { type: "checkbox", value: name, checked, onchange: () => (place.hidden = !box.checked) });
  place.hidden = !checked;
  const label = h("label", box, " ", h("strong", name), h("span.hint", ` ${count(functions.length, "function")}`));
  return { name, box, form, element: h("div.choice", label, description && h("p.hint", description), place) };
}
