// Form for a new session: toolpacks with a form for the options of each, labels, the chosen task, and the other
// parameters of create_session.
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

const { isolation } = await (await fetch("server.json")).json();
const isPinned = isolation === "process"; // random numbers and the clock can be pinned only for a whole process

const RULES = 'Faults and injections for the agent: a list of objects, such as {"functions": "send_*", "error": "…"}.';

const SEEDS = {
  seed: { type: "string", description: "Seed of random numbers and ids. With it, the session can be repeated." },
  clock: { type: "string", format: "time", description: "Start time for its functions, such as 2026-03-02T09:00:00Z." },
  clock_step_seconds: { type: "number", description: "Seconds that each call adds to that clock." },
};
const MORE = {
  ttl_seconds: { type: "number", description: "Seconds that the session lives after its last call." },
  environment: {
    type: "object",
    description: "The initial world, instead of the default: environments by toolpack, as the console shows them.",
  },
};

function formOf(toolpacks, task, variants) {
  const perturbing = schemaForm(
    {
      properties: {
        ...(variants.length && { variant: { enum: variants, description: "A named set of rules of the task." } }),
        rules: { type: "array", description: RULES },
        seed: { type: "string", description: "Seed of the rules' random choices." },
      },
    },
    {},
    "perturbations-",
  );
  const own = task?.split("/")[0]; // the task's own toolpack, which the server adds to the session
  const choices = toolpacks.map((toolpack) => choiceOf(toolpack, task ? toolpack.name === own : !toolpack.opt_in));
  const labels = h("input", { type: "text", id: "labels", name: "labels", placeholder: "name=value, name=value" });
  const roles = participantsForm();
  const more = schemaForm({ properties: { ...(isPinned && SEEDS), ...MORE } }, {}, "session-");
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
      participants: roles.read(),
      ...more.read(),
    });
    go(["sessions", session.session_id]);
  };
  const about = h("span.about", "Names and values, to find the session later.");
  return [
    h("div.heading", h("h1", "New session")),
    task && h("p", "For the task ", h("code", task), ". The task's options apply unless you give others."),
    h("h2", "Toolpacks"),
    choices.map(({ element }) => element),
    h("div.field", h("label", { for: "labels" }, "Labels"), h("span.kind", "optional"), labels, about),
    h("fieldset", h("legend", "Perturbations"), perturbing.element),
    h("fieldset", h("legend", "Participants"), roles.element),
    h(
      "details",
      h("summary", isPinned ? "Seed, clock, time to live, environment" : "Time to live, environment"),
      !isPinned && h("p.hint", "A seed or a clock needs a server with TOOLPACK_ISOLATION=process."),
      more.element,
    ),
    h("p.actions", button("Create session", create, "primary")),
  ];
}

const ROLE = {
  name: { type: "string", pattern: ".", description: "A name, such as user. The agent under test is named agent." },
  functions: {
    type: "string",
    description: "Functions that the participant may call, separated by commas. If empty: all functions.",
  },
  max_calls: { type: "integer", description: "Maximum number of calls of the participant." },
  prompt: { type: "string", description: "Instructions for the participant." },
  answers: { type: "boolean", description: "Whether the participant submits the answer." },
};

/** Create a form for several participants. `read` returns the participants' rights by name, or undefined without
 *  any. */
function participantsForm() {
  const forms = new Set(),
    rows = h("div"),
    hint = h("p.hint", "Participants besides the agent, such as a user. Each participant has its own address.");
  const add = () => {
    const form = schemaForm({ properties: ROLE, required: ["name"] }, {}, `participant-${rows.childElementCount}-`);
    const row = h("div.choice", form.element, h("p.actions", button("Remove this participant", remove, "quiet")));
    function remove() {
      forms.delete(form);
      row.hidden = true; // not removed: the number of rows makes the ids of new fields unique
    }
    forms.add(form);
    rows.append(row);
  };
  const read = () => {
    const participants = [...forms].map((form) => form.read());
    const rights = participants.map(({ name, functions, ...rest }) => [
      name,
      {
        ...rest,
        ...(functions && {
          functions: functions
            .split(",")
            .map((each) => each.trim())
            .filter(Boolean),
        }),
      },
    ]);
    return participants.length ? Object.fromEntries(rights) : undefined;
  };
  return { element: h("div", hint, rows, button("Add a participant", add)), read };
}

function choiceOf({ name, description, functions, options }, checked) {
  const form = Object.keys(options?.properties ?? {}).length ? schemaForm(options, {}, `${name}-`) : null;
  const place = h("div", form && h("fieldset", h("legend", `Options of ${name}`), form.element));
  const box = h("input", { type: "checkbox", value: name, checked, onchange: () => (place.hidden = !box.checked) });
  place.hidden = !checked;
  const label = h("label", box, " ", h("strong", name), h("span.hint", ` ${count(functions.length, "function")}`));
  return { name, box, form, element: h("div.choice", label, description && h("p.hint", description), place) };
}
