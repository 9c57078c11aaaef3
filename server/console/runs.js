// The runs of this server: their sessions are read in pages, and those without a recorded verdict are evaluated.
// The rule: only what is looked at is evaluated, a few at a time, and no verdict is recorded.
import { link } from "./dom.js";
import { batch, call } from "./rpc.js";
import { openRuns } from "./runs_view.js";

const PAGE = 1000, AT_ONCE = 20; // sessions

async function* sessions(labels, text, signal) {
  for (let after = ""; after !== null; ) {
    const page = await call("summarize_sessions", { labels, text, after, limit: PAGE }, signal);
    yield page.sessions;
    after = page.next;
  }
}

export async function* judge(some, signal) {
  const open = some.filter(({ verdict }) => !verdict);
  for (let start = 0; start < open.length; start += AT_ONCE) {
    const part = open.slice(start, start + AT_ONCE);
    const asked = ({ session_id: id }) => ["evaluate_session", { session_id: id, raise_on_error: false }];
    const answers = await batch(part.map(asked), signal);
    for (const [at, { result, error }] of answers.entries()) {
      if (result) part[at].verdict = result;
      else part[at].problem ??= error.message;
    }
    yield part.length;
  }
}

const SOURCE = { sessions, judge, cell: ({ session_id: id }, _query, text) => link(["sessions", id], {}, text) };

export const openRunsOfServer = (place, _ids, query, signal) => openRuns(place, SOURCE, query, signal);
