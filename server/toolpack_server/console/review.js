// Panel of a rollout's review: the call that lost the rollout, the value before and after each call, and a continuation
// that would have won. The server computes and stores the review. It plays that continuation in a fork, and keeps the
// fork.
import { address, count, h, link, notLive, short } from "./dom.js";
import { call } from "./rpc.js";
import { lineChart } from "./runs_chart.js";
import { decimal } from "./runs_parts.js";
import { details, isCall, records, title } from "./trace.js";
import { brief } from "./tree.js";
import { valuesOf } from "./values.js";

const MARKS = {
  solution: ["!", "good", "as in the solution"],
  own: ["=", "soft", "another way than the solution; could still win"],
  read: ["·", "soft", "reads"],
  failed: ["x", "soft", "failed"],
  lost: ["??", "bad", "the losing call"],
  worse: ["?", "bad", "the value fell"],
  late: ["·", "soft", "could no longer win"],
  unknown: ["·", "soft", "the server no longer stores this version"],
  end: ["#", "soft", ""],
};
const NONE = "–";
const value = (number) => ((number ?? null) === null ? NONE : decimal(number));
const argumentsOf = (kwargs) =>
  Object.entries(kwargs)
    .map(([name, each]) => `${name}: ${brief(each, 60)}`)
    .join(", ");

export async function openReview({ id, forks, signal }) {
  const [review, trace, recorded] = await Promise.all([
    call("review_session", { session_id: id, record: true }, signal),
    records(id, 0, Infinity, signal),
    valuesOf(id, forks, signal),
  ]);
  const of = new Map(trace.map((record) => [record.index, record]));
  const { lost, summary, passed, line, sibling } = review;
  const rows = review.records.map((each) => rowOf(id, each, of.get(each.index), sibling));
  const missing = review.never_called.map((each) => missingRow(each, lost));
  const calls = review.records.filter(({ index }) => isCall(of.get(index)));
  return [
    h("h2", "Review"),
    h(
      passed ? "p.said.good" : "p.said",
      summary,
      lost !== undefined && [" ", link(["sessions", id], { record: lost }, "Show the call")],
    ),
    calls.length > 1 &&
      lineChart(
        "Value after each call",
        calls.map(({ index }) => `call ${index}`),
        [["value", calls.map(({ after }) => after ?? null)]],
        decimal,
        1,
      ),
    h(
      "p.hint",
      "The value is the best reward that a known continuation reaches: the rest of the solution, the same without ",
      "calls that were made with other arguments, the solution again from its first missing call on, or no further ",
      "call. If no solution wins, the calls of a rollout that passed serve as the solution. The value is a lower ",
      "bound: a better agent may know another way.",
    ),
    sibling &&
      h("p.hint", "The rollout that passed: ", link(["sessions", sibling], {}, h("code", short(sibling))), "."),
    h("h3", "Calls"),
    h("ol.review", withMissing(rows, missing)),
    line && winningLine(review, of.get(lost)),
    checksOf(id, review),
    recorded,
    h("p", notLive()),
  ];
}

/** Insert the rows of missing calls before the losing call, or if there is none, before the answer. */
function withMissing(rows, missing) {
  const stop = rows.findIndex((row) => row.matches(".lost, .end")),
    at = stop < 0 ? rows.length : stop;
  return [...rows.slice(0, at), ...missing, ...rows.slice(at)];
}

function rowOf(id, { index, before, after, mark }, record, sibling) {
  const [glyph, tone, said] = MARKS[mark] ?? ["·", "soft", mark];
  const words = sibling && mark === "solution" ? "as in the rollout that passed" : said;
  const isAnswer = !isCall(record);
  const lost = mark === "lost",
    name = link(["sessions", id], { record: index }, title(record));
  const changed = before !== after || ["solution", "own", "lost"].includes(mark);
  return h(
    `li${lost ? ".lost" : ""}${isAnswer ? ".end" : ""}`,
    h("span.at", String(index)),
    h(`span.tag.${tone}`, { "aria-hidden": "true" }, glyph),
    h(
      "span.call",
      h("strong", name),
      " ",
      h("span.hint", isAnswer && lost ? "the losing answer" : words),
      h("span.args", details(record)),
    ),
    h("span.values", changed ? `${value(before)} → ${value(after)}` : value(after)),
  );
}

const callRow = ({ function: name, kwargs }, at, glyph, words) =>
  h(
    "li",
    h("span.at", at),
    h("span.tag.good", { "aria-hidden": "true" }, glyph),
    h("span.call", h("strong", name), " ", h("span.hint", words), h("span.args", argumentsOf(kwargs))),
    h("span.values"),
  );

function missingRow(each, lost) {
  const row = callRow(each, "", "+", lost === undefined ? "never made" : "not made before");
  row.classList.add("absent");
  return row;
}

function winningLine({ session_id: id, line, reward }, lost) {
  const { version, calls, answer, reward: won, fork } = line;
  const played = fork && [
    "Played in a fork: ",
    link(["sessions", fork], {}, h("code", short(fork))),
    ", ",
    link(["compare", id, fork], { traces: " " }, "compared with the rollout"),
    ".",
  ];
  const attempt = lost?.function && { version, run: lost.function, like: lost.index };
  const last = h(
    "li",
    h("span.at", String(calls.length + 1)),
    h("span.tag.good", { "aria-hidden": "true" }, "#"),
    h("span.call", h("strong", "Answer"), h("span.args", answer === "" ? "an empty text" : brief(answer, 200))),
    h("span.values", h("span.tag.good", `reward ${decimal(won)}`), ` instead of ${value(reward)}`),
  );
  return [
    h("h3", `What would have won, from version ${version}`),
    played && h("p", played),
    h(
      "ol.review",
      calls.map((each, at) => callRow(each, String(at + 1), "!", "")),
      last,
    ),
    attempt && h("p.actions", h("a.primary", { href: address(["sessions", id], attempt) }, "Edit and try")),
  ];
}

/** Create the table of the checks at each step. It marks the check that changed at the losing call. */
function checksOf(id, { steps, checks, records: reviewed, lost }) {
  const evaluated = steps.filter((step) => step.checks.length > 0);
  if (!checks.length || !evaluated.length) return null;
  const fell = reviewed.find(({ index }) => index === lost);
  const at = evaluated.findIndex(({ value: now }, place) => fell && place > 0 && now < evaluated[place - 1].value);
  const passes = (step, place) => step?.checks[place]?.passed;
  const cell = (step, column, place) => {
    const ok = passes(step, place);
    const turned = column === at && !ok && passes(evaluated[column - 1], place);
    const sign = h(`span.${ok ? "passes" : "fails"}`, { "aria-hidden": "true" }, ok ? "✓" : "✗");
    const words = h("span.unseen", ok ? "passes" : turned ? "fails from here on" : "fails");
    return h(turned ? "td.turned" : "td", sign, words);
  };
  const end = ({ passed }) => h("td", h(passed ? "span.tag.good" : "span.tag.bad", passed ? "passed" : "failed"));
  const head = evaluated.map(({ version }) =>
    h("th", { scope: "col" }, link(["sessions", id], { version }, version ? `v${version}` : "start")),
  );
  const rows = checks.map((check, place) =>
    h(
      "tr",
      h("th", { scope: "row", title: check.detail }, check.name),
      evaluated.map((step, column) => cell(step, column, place)),
      end(check),
    ),
  );
  const table = h(
    "table.turns",
    h("thead", h("tr", h("th", { scope: "col" }, "Check"), head, h("th", { scope: "col" }, "end"))),
    h("tbody", rows),
  );
  const label = `Checks at ${count(evaluated.length, "version")}`;
  return [h("h3", label), h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, table)];
}
