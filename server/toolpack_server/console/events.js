// Events of a session's world, such as a delivery at a certain time in the world: the events that are still to come,
// and forks in which an event doesn't happen.
import { button, go, h } from "./dom.js";
import { call, change } from "./rpc.js";

/** Create the element of a time in the world. This time isn't converted to the user's time zone, because the world has
 *  none. */
export const worldTime = (at) => h("time", { datetime: at }, at.replace("T", " ").replace("Z", ""));

/** Create a button that forks the session without an event. `point` is the version or the record to fork at. */
export const forkWithout = (event, { id }, point) =>
  button(`Fork without ${event}`, async () => {
    const params = { ...point, without_events: [event], labels: { console: `without ${event}` } };
    const [fork] = await change("fork_session", { session_id: id, ...params });
    go(["sessions", fork.session_id], {}, `This is the new fork, without the event ${event}.`);
  });

/** Create the list of the events that come after a version. Return null if the session has no events. */
export async function comingAfter(state, version) {
  const { id, session, signal } = state;
  if (!session.events) return null;
  const at = version === session.version ? undefined : version;
  const { time: now, coming } = await call("get_events", { session_id: id, version: at }, signal);
  const row = ({ event, at: when }) =>
    h("li", worldTime(when), " ", h("strong", event), " ", forkWithout(event, state, { version }));
  return [
    h("h3", "Coming"),
    h("p.hint", "It is ", worldTime(now), " in this world."),
    coming.length > 0 ? h("ul.coming", coming.map(row)) : h("p.hint", "No event is coming."),
  ];
}
