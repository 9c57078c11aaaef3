// Conversation of a session: messages with the names of their senders, and the calls between them.
// The conversation is the history of the current version. So a fork begins with its parent's messages, and messages
// that a reset has undone are missing. Only participants have names, so a message of another sender shows a role.
import { button, count, fill, h, link, time } from "./dom.js";
import { contentOf, countPath, details, isCall, isMessage, records, title } from "./trace.js";
import { brief, full } from "./tree.js";

const PAGE = 200; // records that are shown at first, and at each click on the button for earlier records

export async function openTalk(state) {
  const { id, session, signal } = state;
  if (state.talk) return state.talk(); // the panel was open before: add only the new records to its list
  let { all: end } = await countPath(id, signal);
  const list = h("ol.talk"),
    more = h("p.pager");
  const lines = async (from, to) =>
    (await records(id, from, to, signal, true)).map((record) => lineOf(record, session));
  const show = async (from, to) => {
    list.prepend(...(await lines(from, to)));
    const earlier = () => show(Math.max(from - PAGE, 0), from);
    fill(more, from > 0 && button(`Show earlier: ${count(from, "step")} more`, earlier, "quiet"));
  };
  const shown = () => [
    h("h2", "Conversation"),
    more,
    list,
    end === 0 && h("p.hint", "There are no messages and calls yet."),
  ];
  await show(Math.max(end - PAGE, 0), end);
  state.talk = async () => {
    const news = await lines(end, Infinity);
    list.append(...news);
    end += news.length;
    return shown();
  };
  return shown();
}

/** Create the sender of a message: the participant's name, or without one the message's role. */
const speaker = ({ by, role }) => (by ? h("b", by) : role ? ["role ", h("b", role)] : h("b", "agent"));

function lineOf(record, session) {
  const { session_id: id, index, version, by, to, started_at: start } = record;
  const at = link(["sessions", id], { version, record: index }, `step ${index}`);
  if (isCall(record)) return h("li.called", callOf(record), " ", at);
  if (!isMessage(record) && record.answer === undefined) return h("li.called", h("span.hint", title(record)), " ", at);
  const isAnswer = record.answer !== undefined;
  const head = [
    h("span", speaker(record), to && [" to ", h("b", to)]),
    isAnswer && h("span.tag", "answer"),
    start && time(start),
    at,
  ];
  const others = Object.keys(session.participants ?? {}).filter((name) => name !== "agent");
  const place = others.includes(by) || (!by && record.role === "user") ? ".other" : "";
  const content = contentOf(record);
  return h(
    `li.said${place}`,
    h("p.facts", head),
    h("div.words", content === "" ? h("i", "An empty text.") : full(content)),
  );
}

const callOf = ({ by, function: name, kwargs, error, result, ...rest }) =>
  h(
    "details",
    h(
      "summary",
      by && [h("b", by), " "],
      h("code", name),
      h("span.hint", ` ${details({ ...rest, kwargs, function: name })} → ${error ?? brief(result, 60)}`),
    ),
    h("pre", full(kwargs)),
    h("pre", { class: error ? "bad" : null }, error ?? full(result)),
  );
