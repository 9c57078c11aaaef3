// Shared parts of the pages of runs: number formats, table heads that sort, and tags of verdicts.
import { count, h, link } from "./dom.js";
import { STATES, stateOf, WORDS } from "./runs_model.js";

export const NONE = "–";
export const MOST_K = 8;
export const PAGE = 100;
export const percent = (share) => (share === null ? NONE : `${Math.round(share * 100)}%`);
export const decimal = (number) => (number === null ? NONE : number.toFixed(Math.abs(number) < 10 ? 2 : 0));
export const seconds = (number) => {
  if (number === null) return NONE;
  return number < 1 ? `${(number * 1000).toFixed(number < 0.01 ? 1 : 0)} ms` : `${decimal(number)} s`;
};
const TONES = { passed: "good", failed: "bad", invalid: "mark", open: "soft" };
export const tag = (session) =>
  h(`span.tag.${TONES[stateOf(session)]}`, `${STATES[stateOf(session)]} ${WORDS[stateOf(session)]}`);

/** Create the head of a table from columns `[key, text, hint]`. A link in each column with a key sorts the table. The
 *  member `name` of the query is the current order. */
export const header = (columns, query, name, view = "runs") =>
  h(
    "thead",
    h(
      "tr",
      columns.map(([key, text, hint]) => {
        const now = query[name],
          isUp = now === key,
          isDown = now === `-${key}`;
        const shown = key
          ? link([view], { ...query, [name]: isDown ? key : `-${key}` }, text, isDown && " ↓", isUp && " ↑")
          : typeof text === "function"
            ? text()
            : text;
        return h(
          "th",
          { scope: "col", title: hint, "aria-sort": isUp ? "ascending" : isDown ? "descending" : null },
          shown,
        );
      }),
    ),
  );

/** Create the progress bar of reading and evaluating. Return false when all rollouts are read. */
export const progress = ({ isRead, isJudged, sessions, others }) => {
  const all = [...sessions, ...others],
    done = isJudged && all.filter(({ verdict, problem }) => verdict || problem).length;
  const bar = h("progress", { max: all.length || 1, value: isJudged && done, "aria-label": "Read and evaluated" });
  return (
    !isRead &&
    h("p.hint", bar, ` ${count(all.length, "rollout")}`, isJudged && `, ${done.toLocaleString("en")} with a verdict`)
  );
};

let trail = { ids: [], place: null };
/** Store the list of sessions at this address, so that the page of a session can link to its neighbours in the list. */
export const keepTrail = (sessions) =>
  (trail = { ids: sessions.map(({ session_id: id }) => id), place: location.hash });
/** Create the links to the neighbours of a session in the stored list. Return false if the list doesn't contain it. */
export function trailOf(id, query) {
  const { ids, place } = trail,
    at = ids.indexOf(id);
  const to = (other, text) => (other ? link(["sessions", other], query, text) : h("span.hint", text));
  return (
    at >= 0 &&
    h(
      "nav.trail",
      { "aria-label": "List" },
      h("a", { href: place }, "Back to the list"),
      to(ids[at - 1], "‹ Previous"),
      h("span.hint", `${at + 1} of ${ids.length}`),
      to(ids[at + 1], "Next ›"),
    )
  );
}

export const cell = (name, ...content) => h("td.number", { "data-label": `${name} ` }, content);
/** Create the text "passed/counted", with the numbers of rollouts that don't count. */
export const passedOf = ({ passed, counted, invalid, open, share }) => [
  h("strong", `${passed}/${counted}`),
  share !== null && ` ${percent(share)}`,
  invalid > 0 && [
    " ",
    h(
      "span.tag.mark",
      { title: "Invalid rollouts aren't counted, because their failure isn't the agent's." },
      `${invalid} invalid`,
    ),
  ],
  open > 0 && [" ", h("span.tag", `${open} not evaluated`)],
];
