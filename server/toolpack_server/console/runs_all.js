// Page of all runs: a table row for each value of a label, and charts that compare the runs.
import { count, go, h, link, oneTabStop, time } from "./dom.js";
import { lineChart, shareBar } from "./runs_chart.js";
import { allOf, figures, inOrder, keysOf, mostK, overTasks, sorted, stateOf, tasksOf } from "./runs_model.js";
import { cell, decimal, header, MOST_K, NONE, passedOf, percent, seconds } from "./runs_parts.js";

/** Return the key of the label that names the runs. */
export const keyOf = ({ sessions }, { by }) => by ?? keysOf(sessions)[0];

/** Create the page of all runs from the data that was read. */
export function drawAll(known, query, source) {
  const by = keyOf(known, query),
    keys = keysOf(known.sessions);
  if (!known.sessions.length && known.isRead) {
    return h(
      "div.empty",
      h("h2", "There are no rollouts yet"),
      h("p", "A rollout is a session with a task. Rollouts with the same label, such as run=first, form a run."),
    );
  }
  const choose = ({ target }) => go(["runs"], { by: target.value });
  const select = h(
    "select",
    { id: "run-key", onchange: choose },
    keys.map((key) => h("option", { value: key, selected: key === by }, key)),
  );
  const groups = Map.groupBy(
    known.sessions.filter(({ labels }) => by !== undefined && by in labels),
    ({ labels }) => labels[by],
  );
  const rows = [...groups].map(([value, some]) => {
    const tasks = tasksOf(some),
      k = Math.min(mostK(tasks), MOST_K);
    return {
      value,
      ...figures(some),
      tasks,
      k,
      hat: k ? overTasks(tasks, allOf, k) : null,
      created: some.map((each) => each.created_at).sort()[0],
    };
  });
  const columns = {
    run: (row) => row.value,
    rollouts: (row) => row.rollouts,
    passed: (row) => row.share,
    hat: (row) => row.hat,
    reward: (row) => row.reward,
    calls: (row) => row.calls,
    seconds: (row) => row.seconds,
    created: (row) => row.created,
  };
  const shown = sorted(
    rows.sort((a, b) => inOrder(a.value, b.value)),
    columns,
    query.sort,
  );
  const places = rows.map(({ value }) => value),
    line = (title, name, format, top) => lineChart(title, places, [[title, rows.map((row) => row[name])]], format, top);
  const judged = rows.some(({ counted }) => counted > 0) && [
    line("Passed", "share", percent, 1),
    line("Mean reward", "reward", decimal, 1),
  ];
  const charts = rows.length > 1 && [judged, line("Calls", "calls", decimal), line("Time", "seconds", seconds)];
  const heads = [
    ["run", by ?? ""],
    ["rollouts", "Rollouts"],
    ["passed", "Passed"],
    [null, ""],
    ["hat", "pass^k", "Probability that all of k rollouts pass; mean over the tasks"],
    ["reward", "Mean reward"],
    ["calls", "Calls"],
    ["seconds", "Time"],
    ["created", "Started"],
  ];
  const row = (each) =>
    h(
      "tr",
      h("th", { scope: "row" }, link(["runs"], { by, run: each.value }, each.value || "(empty)")),
      cell("Rollouts", `${each.rollouts} of ${count(each.tasks.length, "task")}`),
      cell("Passed", passedOf(each)),
      h("td.shares", shareBar(each)),
      cell("pass^k", each.hat === null ? NONE : `${percent(each.hat)} (${each.k})`),
      cell("Reward", decimal(each.reward)),
      cell("Calls", decimal(each.calls)),
      cell("Time", seconds(each.seconds)),
      cell("Started", time(each.created)),
    );
  const open = known.sessions.filter((session) => stateOf(session) === "open").length;
  const rest = known.sessions.length - [...groups.values()].reduce((sum, some) => sum + some.length, 0);
  return [
    h(
      "div.filter",
      h("label", { for: "run-key" }, "Runs by the label"),
      select,
      link(["runs"], { run: "" }, "All rollouts together"),
    ),
    charts && h("div.charts", charts),
    h("table.cards.all-runs", header(heads, query, "sort"), oneTabStop(h("tbody", shown.map(row)), "tr")),
    h(
      "p.hint",
      count(rows.length, "run"),
      open > 0 && [
        `. ${count(open, "rollout")} without a recorded verdict: open the run, or `,
        link(["runs"], { ...query, judge: " " }, "evaluate all"),
      ],
      rest > 0 && `. ${count(rest, "rollout")} without the label ${by}`,
      ".",
    ),
    source.about,
  ];
}
