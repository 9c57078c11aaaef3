// View of the toolpacks: functions with schemas and descriptions, and tasks.
import { auditOf } from "./audit.js";
import { count, h, link, load } from "./dom.js";
import { all, call } from "./rpc.js";
import { brief, full } from "./tree.js";

const PAGE = 100; // tasks in a page of the list
export function openToolpacks(place, [name], query, signal) {
  const show = (next) => load(place, () => (name === undefined ? list(signal) : toolpackOf(name, next, signal)));
  show(query);
  return show;
}

const table = (rows) =>
  h(
    "table.cards",
    h(
      "tbody",
      rows.map((cells) =>
        h(
          "tr",
          cells.map((cell) => h("td", cell)),
        ),
      ),
    ),
  );

async function list(signal) {
  const toolpacks = await call("list_toolpacks", {}, signal);
  const rows = toolpacks.map(({ name, description, functions, tasks, opt_in: isOptIn }) => {
    const about = [
      h("span.words", description),
      isOptIn && h("span.hint", " Only sessions that name this toolpack get it."),
    ];
    const sizes = [count(functions.length, "function"), tasks > 0 && count(tasks, "task")];
    return [link(["toolpacks", name], {}, name), about, ...sizes.map((size) => h("span.number", size))];
  });
  const none = h("p.empty", "No toolpack is loaded: start the server with --pack-dir or --packs.");
  return [h("div.heading", h("h1", "Toolpacks")), rows.length ? table(rows) : none];
}

async function toolpackOf(name, { after = -1 }, signal) {
  const [toolpacks, { result: functions }] = await all(
    [
      ["list_toolpacks", {}],
      ["list_functions", {}],
    ],
    signal,
  );
  const chosen = toolpacks.find((toolpack) => toolpack.name === name),
    params = { toolpack: name, after: Number(after), limit: PAGE };
  if (!chosen) return [h("h1", "There is no such toolpack"), link(["toolpacks"], {}, "Show all toolpacks")];
  return [
    h("div.heading", h("h1", name), link(["toolpacks"], {}, "All toolpacks")),
    h("p", chosen.description),
    chosen.distribution && h("p.hint", `From ${chosen.distribution} ${chosen.version}`),
    chosen.options && [h("h2", "Options"), parametersOf(chosen.options)],
    h("h2", count(chosen.functions.length, "function")),
    functions.filter(({ toolpack }) => toolpack === name).map(functionOf),
    chosen.tasks > 0 && [tasksOf(name, await call("list_tasks", params, signal)), auditOf(name, signal)],
    h("details", h("summary", "JSON Schema of the environment"), h("pre", full(chosen.environment))),
  ];
}

function functionOf({ name, description, parameters, returns, read_only: reads }) {
  const tag = reads ? h("span.tag", "reads") : h("span.tag.good", "changes");
  const summary = h("summary", h("strong", name), " ", tag, " ", h("span.hint", description));
  const schemas = Object.entries({ parameters, result: returns ?? "None is declared." });
  const shown = schemas.map(([of, schema]) => [h("h3", `JSON Schema of the ${of}`), h("pre", full(schema))]);
  return h("details.function", summary, parametersOf(parameters), shown);
}

function parametersOf({ properties = {}, required = [] }) {
  const rows = Object.entries(properties).map(([name, spec]) => {
    const fallback = (spec.default ?? null) === null ? "optional" : `default ${brief(spec.default, 60)}`;
    return [
      h("code", name),
      typeOf(spec),
      required.includes(name) ? "required" : fallback,
      h("span.words", spec.description),
    ];
  });
  return rows.length ? table(rows) : h("p.hint", "It takes no arguments.");
}

function typeOf({ $ref, anyOf, type, format, enum: options, items }) {
  if (anyOf) return anyOf.map(typeOf).join(" or ");
  if (options) return options.map((option) => brief(option)).join(" or ");
  if ($ref) return $ref.split("/").at(-1);
  return type === "array" && items ? `list of ${typeOf(items)}` : (format ?? type ?? "any");
}

function tasksOf(toolpack, { total, tasks }) {
  const rows = tasks.map(({ task, prompt, split }) => {
    const text = typeof prompt === "string" ? prompt : (prompt?.at(-1)?.content ?? "");
    return [h("code", task), h("span.words", text), split, link(["new"], { task }, "New session")];
  });
  const more = tasks.length === PAGE && link(["toolpacks", toolpack], { after: tasks.at(-1).index }, "More tasks");
  return [h("h2", count(total, "task")), table(rows), h("p.pager", more)];
}
