// Comparison of two sessions, or of two versions of one: a tree that shows both values of each difference.
import { changesOf, difference } from "./difference.js";
import { count, fill, go, h, labelsOf, link, load, notLive, short } from "./dom.js";
import { verdictAt } from "./evaluation.js";
import { filesIn } from "./files.js";
import { all, toolpacks, world } from "./rpc.js";
import { comparedTraces } from "./traces.js";
import { withRows, worldPanel } from "./world.js";

const WORDS = {
  changed: "differs",
  added: "only in B",
  removed: "only in A",
  change: "difference",
  old: "A ",
  now: "B ",
};

export function openCompare(place, [a = "", b = a], query, signal) {
  const result = h("div.compare");
  const side = (name, value) => {
    const id = h("input", { name, value, required: true, placeholder: "session id", spellcheck: "false" });
    const version = h("input", { name: `${name}v`, placeholder: "current", inputmode: "numeric", size: 6 });
    return h("span", h("label", `${name} `, id), h("label", " at version ", version));
  };
  const onsubmit = (event) => {
    event.preventDefault();
    const entered = new FormData(event.target);
    const [A, Av, B, Bv] = ["A", "Av", "B", "Bv"].map((name) => String(entered.get(name)).trim());
    go(["compare", A, B], { traces: form.dataset.traces, a: Av, b: Bv });
  };
  const form = h("form.filter", { onsubmit }, side("A", a), side("B", b), h("button", { type: "submit" }, "Compare"));
  const hint = ["Give the ids of two sessions, or mark two in the ", link(["sessions"], {}, "list of sessions"), "."];
  const show = (next) => {
    [form.elements.Av.value, form.elements.Bv.value] = [next.a ?? "", next.b ?? ""];
    if (next.traces) form.dataset.traces = next.traces;
    else delete form.dataset.traces;
    return a ? load(result, () => compared([a, b], next, signal)) : fill(result, h("p.empty", hint));
  };
  fill(place, h("div.heading", h("h1", "Compare")), form, result);
  show(query);
  return show;
}

async function compared(ids, query, signal) {
  const sessions = await all(
    ids.map((id) => ["get_session", { session_id: id }]),
    signal,
  );
  const at = sessions.map(({ version }, side) => Number([query.a, query.b][side] ?? version));
  const sides = ids.map((id, side) => {
    const where = link(["sessions", id], { version: at[side] }, h("code", short(id)));
    const { task, labels } = sessions[side];
    const verdict = task && [verdictAt({ session_id: id, version: at[side] }, signal), " "];
    return h("span", h("strong", "AB"[side]), " ", where, ` at version ${at[side]} `, verdict, labelsOf(labels));
  });
  const tab = (traces, text) => {
    const made = link(["compare", ...ids], { ...query, traces }, text);
    made.ariaCurrent = traces === query.traces ? "page" : null;
    return made;
  };
  const tabs = h("nav.tabs", { "aria-label": "Compared" }, tab(undefined, "Worlds"), tab(" ", "Traces"));
  const shown = query.traces ? await comparedTraces(ids, at, signal) : await comparedWorlds(ids, at);
  return [h("p.facts", sides, notLive()), tabs, shown];
}

async function comparedWorlds(ids, at) {
  const ends = ids.map((id, side) => ({ session_id: id, version: at[side] }));
  const [known, ...worlds] = await Promise.all([
    toolpacks(),
    ...ends.map(({ session_id: id, version }) => world(id, version)),
  ]);
  const [a, b] = await withRows(ends, worlds);
  const change = difference(a, b);
  const summary = change ? count(changesOf(change).length, "difference") : "Both worlds are equal";
  return [
    h("h2", summary),
    worldPanel(b, change, { label: "Both worlds", words: WORDS, files: filesIn(known), ends: ends[1] }),
  ];
}
