// Findings of an audit: the user drops a report onto a toolpack's page, and can repeat its attempts.
// The report stays in this tab. Each attempt is repeated in a new session. As in the audit, each call is made at the
// address of its caller: the agent, a participant or a client.
import { agentsAddress, button, count, fill, go, h, link } from "./dom.js";
import { change, parse } from "./rpc.js";

/** Create the part of a toolpack's page that reads a report. */
export function auditOf(toolpack, signal) {
  const findings = h("div", { "aria-live": "polite" }),
    stop = (event) => event.preventDefault();
  const show = async (file) =>
    file && fill(findings, shown(toolpack, file.name, read(await file.text()))).scrollIntoView();
  const drop = (event) => {
    stop(event);
    show(event.dataTransfer.files[0]);
  };
  addEventListener("dragover", stop, { signal });
  addEventListener("drop", drop, { signal });
  const file = h("input", { type: "file", id: "report", onchange: ({ target }) => show(target.files[0]) });
  const about = h(
    "p.hint",
    "Drop the report of ",
    h("code", "toolpack-server audit --json FILE"),
    " onto this page, or choose the file. It isn't sent to the server.",
  );
  return [h("h2", h("label", { for: "report" }, "Audit")), about, h("p.actions", file), findings];
}

/** Return the findings of a report as `[task, findings]` pairs. Return null if the text is no report. */
function read(text) {
  try {
    const { format, tasks } = parse(text);
    return format === "audit-1" ? Object.entries(tasks).map(([task, { findings }]) => [task, [...findings]]) : null;
  } catch {
    return null;
  }
}

function shown(toolpack, name, tasks) {
  const own = tasks?.filter(([task]) => task.startsWith(`${toolpack}/`));
  if (!own?.length)
    return h("p.problem", tasks ? `${name} has no task of ${toolpack}.` : `${name} isn't an audit report.`);
  const rows = own.flatMap(([task, findings]) => findings.map((finding) => rowOf(task, finding)));
  const total = `${count(own.length, "task")} in ${name}, ${count(rows.length, "finding")}.`;
  return [h("p", total), rows.length > 0 && h("table.changes.cards", h("tbody", rows))];
}

function rowOf(task, { kind, fault, text, calls = [], answer = "" }) {
  const level = h(fault ? "span.tag.bad" : "span.tag.mark", fault ? "fault" : "weakness");
  const again = button("Repeat", () => repeat(task, calls, answer));
  return h(
    "tr",
    [link(["new"], { task }, task), [level, ` ${kind}`], h("span.words", text), again].map((cell) => h("td", cell)),
  );
}

/** Repeat an attempt in a new session, and go to the session. */
async function repeat(task, calls, answer) {
  const session = await change("create_session", { task, labels: { console: "audit" } });
  const send = (method, by, params) =>
    by === "client"
      ? change(method, { session_id: session.session_id, ...params })
      : change(method, params, undefined, agentsAddress((session.participants?.[by] ?? session).agent_path));
  for (const { by, ...made } of calls) await send("run_function", by, made);
  if (answer) await send("submit_answer", null, { answer });
  go(["sessions", session.session_id], {}, `The attempt ran in this new session: ${count(calls.length, "call")}.`);
}
