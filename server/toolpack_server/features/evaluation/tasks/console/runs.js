// Page of this server's runs. It shows the same view as the file of `evaluate --html`, with another source of sessions.
import { link } from "../../dom.js";
import { forget, judge, lost, record, sessions } from "../../runs.js";
import { openRuns } from "../../runs_view.js";

const cell = ({ session_id: id }, _query, text) => link(["sessions", id], {}, text);
const SOURCE = { sessions, judge, lost, record, cell, forget };
export const open = (place, _ids, query, signal) => openRuns(place, SOURCE, query, signal);
