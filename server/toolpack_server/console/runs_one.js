// Page of one run: statistics, the grid of tasks and rollouts, the list of rollouts, and changes against another run.
import { count, h, link, oneTabStop, short, visible } from "./dom.js";
import { histogram, lineChart } from "./runs_chart.js";
import {
  allOf,
  anyOf,
  before,
  faultsOf,
  figures,
  isCounted,
  mostK,
  overTasks,
  reason,
  STATES,
  sorted,
  stateOf,
  tasksOf,
  WORDS,
} from "./runs_model.js";
import { cell, decimal, header, keepTrail, MOST_K, NONE, PAGE, passedOf, percent, seconds, tag } from "./runs_parts.js";

const FAULTS = 8; // max failed checks in the table, which shows the most frequent checks first

/** Create the page of one run from the data that was read. */
export function drawOne(known, query, source) {
  const isOf = ({ task, labels }) => {
    const [name, ...value] = (query.label ?? "").split("=");
    const fits =
      !query.label || (name.trim() in labels && (!value.length || labels[name.trim()] === value.join("=").trim()));
    return fits && (task ?? "").toLowerCase().includes((query.task ?? "").toLowerCase());
  };
  const sessions = known.sessions.filter(isOf),
    others = known.others.filter(isOf);
  const rows = tasksOf(sessions),
    otherRows = tasksOf(others),
    was = before(rows, otherRows);
  const changed = (session) => was.has(session.session_id) && was.get(session.session_id) !== stateOf(session);
  const isWanted = (session) =>
    (!query.verdict || (query.verdict === "changed" ? changed(session) : stateOf(session) === query.verdict)) &&
    (!query.wrong || faultsOf(session).includes(query.wrong)) &&
    (!query.place || session.lost_at === query.place) &&
    (!known.found || known.found.has(session.session_id));
  if (!known.sessions.length && known.isRead)
    return h("p.empty", "No session with a task has this label. ", link(["runs"], { by: query.by }, "Show all runs"));
  if (!sessions.length && known.isRead)
    return h(
      "p.empty",
      "No rollout of this run matches. ",
      link(["runs"], { by: query.by, run: query.run }, "Show the whole run"),
    );
  const ids = new Set(sessions.map(({ session_id: id }) => id)),
    forks = sessions.filter(({ parent }) => ids.has(parent?.session_id)).length;
  const all = figures(sessions),
    k = mostK(rows),
    isFiltered = query.verdict || query.wrong || query.place || known.found;
  return [
    h(
      "p.total",
      h("strong", count(all.rollouts, "rollout")),
      ` of ${count(rows.length, "task")}: `,
      passedOf(all),
      h(
        "span.hint",
        all.invalid > 0 && " Invalid ones aren't counted.",
        forks > 0 && ` ${forks} of them are forks of others.`,
      ),
    ),
    query.against && changesOf(rows, otherRows, was),
    h("div.charts", chartsOf(sessions, others, rows, otherRows, query)),
    source.details?.(
      sessions.find(({ session_id: id }) => id === query.session),
      query,
    ),
    gridOf(rows, otherRows, query, source, was, isFiltered ? isWanted : null, Math.min(k, MOST_K)),
    faultsTable(sessions, query),
    placesTable(sessions, query, source),
    listOf(rows.flatMap((row) => row.sessions).filter(isWanted), query, source, was, isFiltered),
    source.about,
  ];
}

function changesOf(rows, otherRows, was) {
  const states = rows.flatMap((row) => row.sessions.map((session) => [was.get(session.session_id), stateOf(session)]));
  const between = (from, to) => states.filter(([a, b]) => a === from && b === to).length;
  const shares = new Map(otherRows.map((row) => [row.key, row.share]));
  const steps = rows.map((row) => row.share - shares.get(row.key)).filter((step) => !Number.isNaN(step));
  const changes = [
    `${steps.filter((step) => step > 0).length} of ${count(steps.length, "task")} better`,
    `${steps.filter((step) => step < 0).length} worse`,
    `${count(between("failed", "passed"), "rollout")} passed that had failed`,
    `${between("passed", "failed")} failed that had passed`,
  ];
  const alone = rows.filter(({ key }) => !shares.has(key)).length;
  return h(
    "p",
    `Against the other run: ${changes.join(", ")}`,
    alone > 0 && `; ${count(alone, "task")} that it doesn't have`,
    ".",
  );
}

function chartsOf(sessions, others, rows, otherRows, { run, against }) {
  const series = (of) => [[run || "all", of(sessions, rows)], ...(against ? [[against, of(others, otherRows)]] : [])];
  const k = Math.min(Math.max(mostK(rows), mostK(otherRows)), 16),
    places = Array.from({ length: k }, (_, index) => index + 1);
  const chances = (chance) => series((_, some) => places.map((each) => overTasks(some, chance, each)));
  const hat = against
    ? chances(allOf)
    : [
        ["pass^k", chances(allOf)[0][1]],
        ["pass@k", chances(anyOf)[0][1]],
      ];
  return [
    k > 0 &&
      lineChart(
        against ? "pass^k" : "pass^k and pass@k",
        places.map((each) => `k=${each}`),
        hat,
        percent,
        1,
      ),
    histogram(
      "Rewards",
      series((some) => some.filter(isCounted).map(({ verdict }) => verdict.reward)),
      decimal,
    ),
    histogram(
      "Calls",
      series((some) => some.map(({ calls }) => calls)),
      decimal,
    ),
    histogram(
      "Time of the calls",
      series((some) => some.map(({ duration_ms: duration }) => duration / 1000)),
      seconds,
    ),
  ];
}

function faultsTable(sessions, query) {
  const all = sessions.flatMap((session) => faultsOf(session).map((name) => ({ name, task: session.task })));
  const faults = [...Map.groupBy(all, ({ name }) => name)].sort(([, a], [, b]) => b.length - a.length);
  const row = ([name, some]) => {
    const isOn = query.wrong === name,
      to = link(["runs"], { ...query, wrong: isOn ? undefined : name, more: undefined }, name);
    to.ariaCurrent = isOn ? "true" : null;
    return h(
      "tr",
      cell("Rollouts", String(some.length)),
      cell("Tasks", String(new Set(some.map(({ task }) => task)).size)),
      h("td.words", to, isOn && h("span.hint", " (shown below; again: all)")),
    );
  };
  const rest = faults.slice(FAULTS).filter(([name]) => name !== query.wrong).length,
    shown = faults.filter(([name], at) => at < FAULTS || name === query.wrong);
  const head = h(
    "thead",
    h(
      "tr",
      ["Rollouts", "Tasks", "Check"].map((text) => h("th", { scope: "col" }, text)),
    ),
  );
  return (
    faults.length > 0 && [
      h("h2", "What was wrong"),
      h("table.cards.faults", head, h("tbody", shown.map(row))),
      rest > 0 && h("p.hint", `and ${count(rest, "other check")}`),
    ]
  );
}

/** Create the table of the places where failed rollouts were lost, the most frequent place first. */
function placesTable(sessions, query, source) {
  const failed = sessions.filter((session) => stateOf(session) === "failed"),
    reviewed = failed.filter((session) => session.lost_at !== undefined);
  if (!failed.length || (!reviewed.length && !source.lost)) return null;
  const ask = link(["runs"], { ...query, lost: " " }, `Review the ${count(failed.length, "rollout")} that failed`);
  const hint = "This plays known continuations in forks, and records the reviews.";
  if (!reviewed.length) return [h("h2", "Where they were lost"), h("p", ask, " ", h("span.hint", hint))];
  const places = [...Map.groupBy(reviewed, (session) => session.lost_at)].sort(([, a], [, b]) => b.length - a.length);
  const row = ([place, some]) => {
    const isOn = query.place === place,
      to = link(["runs"], { ...query, place: isOn ? undefined : place, more: undefined }, place);
    to.ariaCurrent = isOn ? "true" : null;
    const hint = isOn && h("span.hint", " (shown below; again: all)");
    return h("tr", cell("Failures", `${some.length} of ${reviewed.length}`), h("td.words", to, hint));
  };
  const head = h("thead", h("tr", h("th", { scope: "col" }, "Failures"), h("th", { scope: "col" }, "Lost at")));
  return [h("h2", "Where they were lost"), h("table.cards.faults", head, h("tbody", places.map(row)))];
}

function gridOf(rows, otherRows, query, source, was, isWanted, k) {
  const shares = new Map(otherRows.map((row) => [row.key, row])),
    step = (row) => (shares.has(row.key) ? row.share - shares.get(row.key).share : null);
  const columns = {
    task: (row) => row.key,
    passed: (row) => row.share,
    hat: (row) => (row.counted >= k && k ? allOf(row, k) : null),
    reward: (row) => row.reward,
    calls: (row) => row.calls,
    seconds: (row) => row.seconds,
    change: step,
  };
  const heads = [
    ["task", "Task"],
    [null, "Rollouts"],
    ["passed", "Passed"],
    ["hat", `pass^${k || "k"}`],
    ["reward", "Mean reward"],
    ["calls", "Calls"],
    ["seconds", "Time"],
  ];
  if (query.against) heads.push(["change", "Change", `Against ${query.against}`]);
  const most = Number(query.tasks ?? PAGE),
    shown = sorted(rows, columns, query.order);
  const square = (session, place) => {
    const state = stateOf(session),
      old = was.get(session.session_id);
    const before = old && old !== state ? `, was ${WORDS[old]}` : "";
    const title = `${session.task}, rollout ${session.labels.rollout ?? place}: ${WORDS[state]}${before}`;
    const why = reason(session),
      element = source.cell(session, query, STATES[state]);
    element.classList.add(
      "cell",
      state,
      ...(old && old !== state ? ["other"] : []),
      ...(isWanted && !isWanted(session) ? ["faded"] : []),
    );
    element.title = visible(why ? `${title}. ${why.slice(0, 300)}` : title);
    element.ariaLabel = visible(title);
    return element;
  };
  const row = (each) =>
    h(
      "tr",
      h(
        "th",
        { scope: "row" },
        each.task,
        each.variant && [" ", h("span.tag.mark", { title: "The variant of its perturbations" }, each.variant)],
      ),
      h("td.cells", each.sessions.map(square)),
      cell("Passed", h("strong", `${each.passed}/${each.counted}`)),
      cell(`pass^${k}`, percent(columns.hat(each))),
      cell("Reward", decimal(each.reward)),
      cell("Calls", decimal(each.calls)),
      cell("Time", seconds(each.seconds)),
      query.against && cell("Change", changeOf(each, shares.get(each.key))),
    );
  const rest = rows.length - most;
  return [
    h("h2", "Tasks"),
    h(
      "p.hint.legend",
      Object.entries(STATES).map(([state, sign]) =>
        h("span", h(`span.cell.${state}`, { "aria-hidden": "true" }, sign), ` ${WORDS[state]}`),
      ),
      query.against && h("span", h("span.cell.open.other"), " changed"),
    ),
    h("table.cards.grid", header(heads, query, "order"), oneTabStop(h("tbody", shown.slice(0, most).map(row)), "tr")),
    rest > 0 &&
      h("p.pager", link(["runs"], { ...query, tasks: most + PAGE }, `Show more of ${count(rows.length, "task")}`)),
  ];
}

function changeOf(row, other) {
  if (!other || row.share === null || other.share === null) return NONE;
  const step = Math.round((row.share - other.share) * 100);
  const tone = step > 0 ? "good" : step < 0 ? "bad" : "soft";
  return [
    h(`span.tag.${tone}`, step > 0 ? `+${step}` : step < 0 ? `−${-step}` : "±0"),
    ` from ${other.passed}/${other.counted}`,
  ];
}

/** Create a link from the place where a rollout was lost to its review. A file of `evaluate --html` has no such
 *  links. */
const placeOf = ({ session_id: id, lost_at: place }, source) =>
  place === undefined ? NONE : source.lost ? link(["sessions", id], { review: " " }, place) : place;

function listOf(sessions, query, source, was, isFiltered) {
  const columns = {
    verdict: (each) => stateOf(each),
    task: (each) => each.task,
    rollout: (each) => each.labels.rollout ?? each.created_at,
    reward: (each) => each.verdict?.reward ?? null,
    calls: (each) => each.calls,
    errors: (each) => each.errors,
    seconds: (each) => each.duration_ms,
    last: (each) => each.last_function,
    lost: (each) => each.lost_at,
  };
  const hasPlaces = sessions.some((each) => each.lost_at !== undefined);
  const heads = [
    ["verdict", "Verdict"],
    ["task", "Task"],
    ["rollout", "Rollout"],
    ["reward", "Reward"],
    ["calls", "Calls"],
    ["errors", "Errors"],
    ["seconds", "Time"],
    ["last", "Last function"],
    ...(hasPlaces ? [["lost", "Lost at"]] : []),
    [null, "What was wrong"],
  ];
  const most = Number(query.more ?? PAGE),
    shown = sorted(sessions, columns, query.sort);
  const row = (each) =>
    h(
      "tr",
      h(
        "td.number",
        tag(each),
        was.get(each.session_id) &&
          was.get(each.session_id) !== stateOf(each) &&
          h("span.hint", ` was ${WORDS[was.get(each.session_id)]}`),
      ),
      h("td.words.task", each.task),
      h(
        "td.number",
        source.cell(
          each,
          query,
          each.labels.rollout === undefined
            ? short(each.session_id)
            : `${each.labels.rollout} · ${short(each.session_id)}`,
        ),
        !each.done && h("span.hint", " no answer"),
      ),
      cell("Reward", decimal(each.verdict?.reward ?? null)),
      cell("Calls", String(each.calls)),
      cell("Errors", String(each.errors)),
      cell("Time", seconds(each.duration_ms / 1000)),
      h("td.line", { title: each.last_function }, each.last_function ?? NONE),
      hasPlaces && h("td.words.place", { "data-label": "Lost at " }, placeOf(each, source)),
      h("td.words.why", reason(each).slice(0, 200)),
    );
  const rest = sessions.length - most;
  keepTrail(shown);
  if (!sessions.length) return [h("h2", "Rollouts"), h("p.empty", "No rollout matches.")];
  return [
    h("h2", "Rollouts", isFiltered && ` that match: ${sessions.length}`),
    h(
      "table.cards.rollouts",
      header(heads, query, "sort"),
      oneTabStop(h("tbody", shown.slice(0, most).map(row)), "tr"),
    ),
    rest > 0 &&
      h(
        "p.pager",
        link(["runs"], { ...query, more: most + PAGE }, `Show more of ${count(sessions.length, "rollout")}`),
      ),
  ];
}
