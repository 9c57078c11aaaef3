// The runs of this server, as a page of the console.
// What is drawn is the same as in the file of `evaluate --html`; only where it comes from is another.
import { link } from "../../dom.js";
import { forget, judge, record, sessions } from "../../runs.js";
import { openRuns } from "../../runs_view.js";

const cell = ({ session_id: id }, _query, text) => link(["sessions", id], {}, text);
const SOURCE = { sessions, judge, record, cell, forget };
export const open = (place, _ids, query, signal) => openRuns(place, SOURCE, query, signal);
