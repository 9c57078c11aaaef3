// JSON-RPC client: sends requests to /rpc of the page's own origin, with a token if the server requires one.
// The console uses only public methods, so a script can do all that the console does.
// Numbers in the data of sessions keep the exact digits that the server sent.
import { Exact } from "./difference.js";
import { fill, pause } from "./dom.js";

export const RPC = new URL("../rpc", document.baseURI);
const TOKEN = "toolpack-token";
let untried = null; // a token that the user has entered, until the server accepts or refuses it
const token = () => untried ?? sessionStorage.getItem(TOKEN);

// HTTP statuses of a server that is unavailable, so the request is worth a retry: too many requests (429), and the
// statuses that a server or its proxy answers during a restart.
const AWAY = new Set([429, 502, 503, 504]);
const TRY_AGAIN = -32006;

/** Create the error of a failed request. The message says what to do; `code` and `data` are those of JSON-RPC. */
const failure = (message, more) => Object.assign(new Error(message), { name: "Failure" }, more);

// Methods that return data of sessions. In their answers, also numbers such as 1.0 keep their exact digits.
const DATA_METHODS = new Set(["get_environment", "get_trace", "diff_environment", "summarize_changes", "run_function"]);

/** Parse JSON. If JavaScript would write a number with other digits, an integer becomes a BigInt, and with `isExact`
 *  another number becomes an `Exact`. */
export function parse(text, isExact = true) {
  // Most texts have no such number. The expression finds that out quickly.
  if (!(isExact ? /\d{16}|\.\d*0|\d[eE]|-0/ : /\d{16}/).test(text)) return JSON.parse(text);
  return JSON.parse(text, (_key, value, context) => {
    const source = context?.source;
    if (typeof value !== "number" || source === undefined || source === String(value)) return value;
    if (/^-?\d+$/.test(source) && !Number.isSafeInteger(value)) return BigInt(source);
    return isExact ? new Exact(source) : value;
  });
}

/** Write a value from `parse` as JSON, with the exact digits. A browser without `JSON.rawJSON` rounds the numbers. */
export function stringify(value, indent) {
  const { rawJSON } = /** @type {any} */ (JSON);
  const exact = (number) => (rawJSON ? rawJSON(String(number)) : Number(number));
  const isWritten = (member) => typeof member === "bigint" || member instanceof Exact;
  return JSON.stringify(value, (_key, member) => (isWritten(member) ? exact(member) : member), indent);
}

/** Call a method and return its result. `address` may be an address that the server gives to a session's agent.
 * @param {string} method @param {object} params @param {AbortSignal} [signal] @param {URL | string} address */
export async function call(method, params = {}, signal = undefined, address = RPC) {
  return outcome(await post({ jsonrpc: "2.0", id: 0, method, params }, signal, address));
}

const TRIES = [0, 500, 1500, 3000]; // milliseconds before each attempt
const callIds = new Map(); // the call_id of each unanswered request, by the request's content

/** Call a method that changes something. If no answer comes, send the request again with the same call_id, so that the
 *  server makes the change at most once. A later request with the same content has the same call_id, too. If no attempt
 *  gets an answer, the error's `isUnknown` is set.
 * @param {string} method @param {object} params @param {AbortSignal} [signal] @param {URL | string} address */
export async function change(method, params, signal = undefined, address = RPC) {
  const content = stringify([method, params, String(address)]);
  const id = callIds.get(content) ?? `console-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
  callIds.set(content, id);
  let error;
  for (const wait of TRIES) {
    if (wait) await pause(wait);
    try {
      const result = await call(method, { ...params, call_id: id }, signal, address);
      callIds.delete(content);
      return result;
    } catch (refused) {
      error = refused;
      if (error.isAway) continue;
      if (error.name !== "AbortError") callIds.delete(content);
      throw error;
    }
  }
  const unknown = "There was no answer, so this may have been done. Send it again: it is done at most once.";
  throw failure(`${error.message} ${unknown}`, { isAway: true, isUnknown: true });
}

/** Call several methods in order with one request. Each answer is `{result}` or `{error}`. */
export async function batch(calls, signal = undefined) {
  if (!calls.length) return [];
  const replies = await post(
    calls.map(([method, params], id) => ({ jsonrpc: "2.0", id, method, params })),
    signal,
  );
  if (!Array.isArray(replies)) outcome(replies);
  return replies
    .sort((a, b) => a.id - b.id)
    .map((reply) => {
      try {
        return { result: outcome(reply), error: undefined };
      } catch (error) {
        return { result: undefined, error };
      }
    });
}

/** Call several methods and return their results. Throw the first error. */
export async function all(calls, signal = undefined) {
  const answers = await batch(calls, signal);
  for (const { error } of answers) if (error) throw error;
  return answers.map(({ result }) => result);
}

/** Return the result of an answer, or throw its error. */
function outcome({ result, error }) {
  if (error) {
    const { code, data, message } = error;
    throw failure(data?.detail ?? message, { code, data, isAway: code === TRY_AGAIN });
  }
  return result;
}

/** Send a request and return the parsed answer. If the server refuses the token, ask the user for one and send again.
 * @param {object} body @param {AbortSignal} [signal] @param {URL | string} address */
async function post(body, signal, address = RPC) {
  const isExact = [body].flat().some(({ method }) => DATA_METHODS.has(method));
  for (;;) {
    const sent = token();
    const headers = { "Content-Type": "application/json", ...(sent && { Authorization: `Bearer ${sent}` }) };
    let response, text;
    try {
      response = await fetch(address, { method: "POST", headers, body: stringify(body), signal });
      text = await response.text();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw failure("The server can't be reached: check that it runs, then try again.", { isAway: true });
    }
    const { ok, status } = response;
    const answer = ok ? parsed(text, isExact) : undefined;
    if (AWAY.has(status) || (ok && answer === undefined)) throw failure(refusal(text, status), { isAway: true });
    for (const note of document.querySelectorAll("#status [data-away]")) note.remove(); // the server answers again
    if (ok) keepToken(sent);
    if (ok) return answer;
    if (status !== 401) throw failure(refusal(text, status));
    if (sent === token()) await askForToken(sent !== null); // another request may already have got a new token
  }
}

/** Parse an answer. Return undefined if the text isn't whole JSON, for example if the connection broke. */
function parsed(text, isExact) {
  try {
    return parse(text, isExact);
  } catch {
    return undefined;
  }
}

/** Return the message of a refused request, from the body if it has one. */
function refusal(text, status) {
  return parsed(text)?.error?.message ?? `The server, or a proxy before it, answered HTTP ${status}.`;
}

/** Store the user's new token for this tab if it is the token that the server has accepted. */
function keepToken(accepted) {
  if (untried === null || accepted !== untried) return;
  sessionStorage.setItem(TOKEN, accepted);
  untried = null;
  offerToForget();
}

let asking = null; // the promise of the open dialog: all refused requests wait for the same dialog
/** Ask the user for a token. Reject if the user cancels. */
function askForToken(isWrong) {
  untried = null;
  sessionStorage.removeItem(TOKEN);
  asking ??= new Promise((resolve, reject) => {
    const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("token"));
    const wrong = "The server refused this token. Check that you copied all of it.";
    const first = "The person who runs the server can give you one.";
    fill(document.getElementById("token-reason"), isWrong ? wrong : first);
    dialog.returnValue = "";
    dialog.onclose = () => {
      asking = null;
      if (dialog.returnValue !== "use") return reject(failure("Nothing can be shown without a token."));
      const entered = dialog.querySelector("input").value.trim();
      dialog.querySelector("form").reset();
      if (!/^[!-~]+$/.test(entered)) return resolve(askForToken(true)); // a header can't contain other characters
      untried = entered;
      return resolve();
    };
    dialog.showModal();
  });
  return asking;
}

/** Return whether this tab stores a token. */
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
/** Show the button "Forget token" if this tab stores a token. */
export function offerToForget() {
  const forget = document.getElementById("forget");
  forget.hidden = !hasToken();
  forget.onclick = () => {
    sessionStorage.removeItem(TOKEN);
    location.reload();
  };
}

let loaded = null;
/** Return the server's toolpacks. A tab requests them only once, because their schemas may be large. */
export function toolpacks() {
  loaded ??= call("list_toolpacks").catch((error) => {
    loaded = null;
    throw error;
  });
  return loaded;
}

const worlds = new Map(); // cache; a version of a world never changes
/** Return the world of a session at a version. The four worlds that were used last are cached. */
export function world(sessionId, version) {
  const key = `${sessionId} ${version}`;
  const promise = worlds.get(key) ?? call("get_environment", { session_id: sessionId, version });
  promise.catch(() => worlds.delete(key));
  worlds.delete(key);
  worlds.set(key, promise);
  if (worlds.size > 4) worlds.delete(worlds.keys().next().value);
  return promise;
}
