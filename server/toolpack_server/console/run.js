// Panel to run a function: its description, a form for its arguments, and the result.
// "Try" runs the function in a fork that is deleted afterwards, so the session doesn't change.
import { difference } from "./difference.js";
import { button, copyButton, fill, go, h, link } from "./dom.js";
import { schemaForm } from "./form.js";
import { call, change, world } from "./rpc.js";
import { curlOf, shownValue } from "./step.js";
import { records } from "./trace.js";
import { changeList } from "./world.js";

const CALL_ERRORS = new Set([-32002, -32004]); // error codes: the function raised an error; the arguments are wrong
const FORK_SECONDS = 120; // lifetime of the fork, in case the user closes the page before it deletes the fork

export async function openRun(state) {
  const { id, query, signal } = state;
  const { result: functions } = await call("list_functions", { session_id: id }, signal);
  const chosen = functions.find(({ name }) => name === query.run),
    like = Number(query.like ?? -1);
  const [recorded] = chosen && like >= 0 ? await records(id, like, like + 1, signal) : [];
  const onchange = ({ target }) => {
    const { version, record } = state.query;
    go(["sessions", id], { version, record, run: target.value });
  };
  const options = functions.map(({ name: value, read_only: reads }) =>
    h("option", { value }, reads ? `${value} (reads)` : value),
  );
  const none = h("option", { value: " " }, `Choose one of ${functions.length}…`);
  // Keep the same element: when a user types a name into it, each letter chooses a function.
  state.select ??= h("select", { id: "function", name: "function", onchange }, none, options);
  const { select } = state;
  select.value = chosen ? query.run : " ";
  const about = h(
    "span.about",
    chosen?.description ?? "“Try” shows what a call would change. The session stays unchanged.",
  );
  const field = h("div.field", h("label", { for: "function" }, "Function"), select, about);
  return [h("h2", "Run a function"), field, chosen && formOf(state, chosen, recorded?.kwargs)];
}

function formOf({ id, version, session, signal }, { name, parameters }, kwargs) {
  const form = schemaForm(parameters, kwargs),
    answer = h("div", { "aria-live": "polite" });
  const request = { function: name, raise_on_error: true };
  const shown = (label, work) => async () => {
    const entered = form.read();
    const show = async () => {
      fill(answer);
      try {
        const [result, rest] = await work(entered);
        fill(answer, h("h3", label), shownValue(result), rest);
      } catch (error) {
        if (error.name === "AbortError") throw error;
        if (error.code === -32004) form.refuse(error.data.errors);
        const hint = CALL_ERRORS.has(error.code) && h("p.hint", "The world has not changed.");
        const again = error.isUnknown && h("p.actions", button("Send again", show));
        fill(answer, h("h3", error.isUnknown ? "No answer" : "Error"), h("pre.bad", error.message), hint, again);
      }
    };
    await show();
  };
  const attempt = async (given) => {
    const params = { session_id: id, version, ttl_seconds: FORK_SECONDS, labels: { console: "try" } };
    const [{ session_id: fork }] = await change("fork_session", params);
    try {
      const { result } = await call("run_function", { ...request, session_id: fork, kwargs: given }, signal);
      const after = await call("get_environment", { session_id: fork });
      const found = difference(await world(id, version), after);
      return [result, [h("h3", "It would change"), found ? changeList(found, 50) : h("p.hint", "Nothing.")]];
    } finally {
      await call("close_session", { session_id: fork }).catch(() => {}); // if this fails, the fork expires soon
    }
  };
  const run = async (given) => {
    const params = { ...request, session_id: id, kwargs: given, expected_version: version };
    const { result } = await change("run_function", params, signal);
    return [result, h("p", link(["sessions", id], {}, "See what it changed"))];
  };
  const isPast = version !== session.version;
  const actions = [
    button(`Try at version ${version}`, shown("It would give", attempt), isPast && "primary"),
    isPast ? h("span.hint", "To run it from here, fork first.") : button("Run", shown("Result", run), "primary"),
    copyButton("Copy as curl", () => curlOf(id, name, form.read())),
  ];
  return [form.element, h("p.actions", actions), answer];
}
