// View of runs: the rollouts that passed, by task, statistics, and changes against another run.
// The view reads sessions from a *source*, so the console and the file of `evaluate --html` show the same page. A
// source is an object `{sessions(labels, text, signal), judge(sessions, signal), cell(session, query), forget()}`. A
// source that can record verdicts also has `record(sessions, signal)`, and a source that can review rollouts has
// `lost(sessions, signal)`.
import { button, count, fill, go, h, link, load, notLive, refill, say } from "./dom.js";
import { drawAll, keyOf } from "./runs_all.js";
import { isRollout, stateOf, WORDS } from "./runs_model.js";
import { drawOne } from "./runs_one.js";
import { progress } from "./runs_parts.js";

const REDRAW = 400; // min milliseconds between drawings while sessions are read
const labelled = (by, value) => (by === undefined ? {} : { [by]: value });

/** Show the page of all runs, or of the run in the query. Return a function that shows another query. */
export function openRuns(place, source, query, signal) {
  const head = h("div"),
    form = h("div"),
    far = h("div"),
    body = h("div.runs");
  const nothing = (name) => ({ name, sessions: [], others: [], found: null, isJudged: false, isRead: false });
  let known = nothing(null); // the data that was read for an address
  let next = 0; // time of the next redraw
  const values = h("datalist", { id: "run-values" });
  const draw = () => {
    const began = performance.now();
    fill(far, progress(known) || (source.lost && notLive()));
    refill(body, query.run === undefined ? drawAll(known, query, source) : drawOne(known, query, source));
    // At most 1/10 of the time goes to drawing.
    next = performance.now() + Math.max(REDRAW, 10 * (performance.now() - began));
  };
  /** Give each part to `take` when it is read, and redraw from time to time. Return false if the address has
   *  changed. */
  const each = async (parts, reading, take) => {
    for await (const some of parts) {
      if (known !== reading) return false;
      take?.(some);
      fill(far, progress(known));
      if (performance.now() > next && !body.contains(document.activeElement?.closest("select"))) draw();
    }
    return known === reading;
  };
  const readAll = async (reading) => {
    const { by, run, against, text } = query,
      isOne = run !== undefined;
    reading.isJudged = isOne || query.judge !== undefined;
    const read = (into, value, words = "") => {
      const labels = labelled(by, value);
      const isOf = (one) => one.task !== undefined && isRollout(one, labels);
      return each(source.sessions(isOne ? labels : {}, words, signal), reading, (some) =>
        into.push(...some.filter(isOf)),
      );
    };
    const found = [];
    if (!(await read(reading.sessions, run)) || (against && !(await read(reading.others, against)))) return;
    if (isOne && text && !(await read(found, run, text))) return;
    if (isOne && text) reading.found = new Set(found.map(({ session_id: id }) => id));
    if (reading.isJudged && !(await each(source.judge([...reading.sessions, ...reading.others], signal), reading)))
      return;
    reading.isRead = true;
    if (isOne && query.lost !== undefined && source.lost) await findLost(reading);
    if (!isOne)
      fill(
        values,
        [...new Set(reading.sessions.map(({ labels }) => labels[keyOf(reading, query)]))]
          .filter(Boolean)
          .map((value) => h("option", { value })),
      );
  };
  /** Review the rollouts that failed, and show the progress. */
  const findLost = async (reading) => {
    draw();
    const all = reading.sessions.filter((each) => stateOf(each) === "failed").length;
    for await (const left of source.lost(reading.sessions, signal)) {
      if (known !== reading) return;
      if (performance.now() > next) draw();
      const bar = h("progress", { max: all || 1, value: all - left, "aria-label": "Reviewed" });
      fill(far, left > 0 && h("p.hint", bar, ` ${all - left} of ${count(all, "failure")} reviewed`));
    }
  };
  const show = async () => {
    const name = JSON.stringify([query.by, query.run, query.against, query.text, query.judge, query.lost]);
    if (known.name !== name) {
      const reading = nothing(name);
      known = reading;
      try {
        await readAll(reading);
      } catch (error) {
        if (known === reading) known.name = null; // so that the next call reads the sessions again
        throw error;
      }
    }
    draw();
  };
  /** Record the verdicts of the run, so that the run needs no evaluation when the user opens it again. */
  const record = async () => {
    const reading = known,
      some = reading.sessions.filter(({ isRecorded }) => !isRecorded);
    for await (const _ of source.record(some, signal)) if (known === reading) draw();
    const recorded = some.filter(({ isRecorded }) => isRecorded).length;
    say(
      some.length ? `Recorded: ${count(recorded, "verdict")} of ${some.length}.` : "All verdicts were recorded before.",
    );
  };
  const open = (wanted) => {
    query = wanted;
    const again = () => {
      source.forget();
      known.name = null;
      return open(query);
    };
    fill(head, headOf(query, again, source.record && query.run !== undefined && record));
    fill(form, query.run !== undefined && filterOf(query));
    return load(body, show);
  };
  fill(place, head, form, far, body, values);
  open(query);
  return open;
}

function headOf({ by, run, against }, again, record) {
  const title =
    run === undefined
      ? "Runs"
      : [by === undefined ? "All rollouts" : h("code", `${by}=${run}`), against && [" against ", h("code", against)]];
  const up = run !== undefined && link(["runs"], { by }, "All runs");
  return h("div.heading", h("h1", title), up, record && button("Record verdicts", record), button("Read again", again));
}

/** Create the form that filters one run. Empty fields don't filter. */
function filterOf(query) {
  const field = (name, text, more) =>
    h("label", text, " ", h("input", { name, value: query[name], type: "search", ...more }));
  const options = [["", "any"], ...Object.entries(WORDS), ["changed", "changed"]];
  const verdict = h(
    "label",
    "Verdict ",
    h(
      "select",
      { name: "verdict" },
      options.map(([value, text]) => h("option", { value, selected: value === (query.verdict ?? "") }, text)),
    ),
  );
  const onsubmit = (event) => {
    event.preventDefault();
    go(["runs"], { ...query, ...Object.fromEntries(new FormData(event.target)), session: undefined, more: undefined });
  };
  const fields = [
    field("task", "Task"),
    field("label", "Label", { placeholder: "name=value" }),
    verdict,
    field("text", "Text in the trace"),
    query.by !== undefined && field("against", "Against", { list: "run-values", placeholder: `another ${query.by}` }),
  ];
  const clear = link(["runs"], { by: query.by, run: query.run, sort: query.sort }, "Clear");
  return h("form.filter", { onsubmit }, fields, h("button", { type: "submit" }, "Filter"), clear);
}
