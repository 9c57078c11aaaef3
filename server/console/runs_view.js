// Runs at a glance: which rollouts of which tasks have passed, what that comes to, and what changed against another run.
// The rule: where the sessions come from is the source's business, so the console and the file that `evaluate --html`
// writes show the same page. A source is `{sessions(labels, text, signal), judge(sessions, signal), cell(session, query)}`.
import { button, fill, go, h, link, load } from "./dom.js";
import { drawAll, keyOf } from "./runs_all.js";
import { WORDS } from "./runs_model.js";
import { drawOne } from "./runs_one.js";

const DRAWN = 400; // milliseconds between drawings while sessions are read
const labelled = (by, value) => (by === undefined ? {} : { [by]: value });

export function openRuns(place, source, query, signal) {
  const head = h("div"), form = h("div"), body = h("div.runs");
  let known = { name: null, sessions: [], others: [], isRead: false }; // what was read for an address
  const values = h("datalist", { id: "run-values" });
  const draw = () => fill(body, query.run === undefined ? drawAll(known, query, source) : drawOne(known, query, source));
  /** Read sessions, and what their evaluators say of those that have no recorded verdict; draw now and then. */
  const read = async (into, labels, text, isJudged, reading) => {
    let drawn = performance.now();
    const redraw = () => {
      if (performance.now() - drawn < DRAWN || known !== reading) return;
      draw();
      drawn = performance.now();
    };
    for await (const some of source.sessions(labels, text, signal)) {
      into.push(...some.filter(({ task, labels: has }) => task !== null && (has.console === undefined || "console" in labels)));
      redraw();
    }
    if (!isJudged) return;
    reading.toJudge += into.filter(({ verdict }) => !verdict).length;
    for await (const some of source.judge(into, signal)) {
      reading.judged += some;
      redraw();
    }
  };
  const show = async () => {
    const name = JSON.stringify([query.by, query.run, query.against, query.text]);
    if (known.name !== name) {
      const reading = { name, sessions: [], others: [], found: null, isRead: false, toJudge: 0, judged: 0 };
      known = reading;
      const isOne = query.run !== undefined;
      await read(reading.sessions, isOne ? labelled(query.by, query.run) : {}, "", isOne, reading);
      if (query.against) await read(reading.others, labelled(query.by, query.against), "", true, reading);
      if (isOne && query.text) {
        const found = [];
        await read(found, labelled(query.by, query.run), query.text, false, reading);
        reading.found = new Set(found.map(({ session_id: id }) => id));
      }
      if (known !== reading) return;
      reading.isRead = true;
      if (!isOne) fill(values, [...new Set(reading.sessions.map(({ labels }) => labels[keyOf(reading, query)]))].filter(Boolean).map((value) => h("option", { value })));
    }
    draw();
  };
  const open = (next) => {
    query = next;
    fill(head, headOf(query, () => ((known.name = null), open(query))));
    fill(form, query.run !== undefined && filterOf(query));
    return load(body, show);
  };
  fill(place, head, form, body, values);
  open(query);
  return open;
}

function headOf({ by, run, against }, again) {
  const title = run === undefined ? "Runs" : [by === undefined ? "All rollouts" : h("code", `${by}=${run}`), against && [" against ", h("code", against)]];
  const up = run !== undefined && link(["runs"], { by }, "All runs");
  return h("div.heading", h("h1", title), up, button("Read again", again));
}

/** The form that filters one run; what is empty isn't asked for. */
function filterOf(query) {
  const field = (name, text, more) => h("label", text, " ", h("input", { name, value: query[name], type: "search", ...more }));
  const options = [["", "any"], ...Object.entries(WORDS), ["changed", "changed"]];
  const verdict = h("label", "Verdict ", h("select", { name: "verdict" }, options.map(([value, text]) => h("option", { value, selected: value === (query.verdict ?? "") }, text))));
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
