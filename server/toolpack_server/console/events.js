// Sessions whose worlds move by themselves: the time in the world, what is coming, and forks without an event.
import { button, go, h } from "./dom.js";
import { call, change } from "./rpc.js";

/** Show a time in the world. It belongs to no place, so it isn't converted to the user's time zone. */
export const worldTime = (at) => h("time", { datetime: at }, at.replace("T", " ").replace("Z", ""));

/** Create a button that forks the session at a point, a version or before a record, where an event doesn't happen. */
export const forkWithout = (event, { id }, point) =>
  button(`Fork without ${event}`, async () => {
    const params = { ...point, without_events: [event], labels: { console: `without ${event}` } };
    const [fork] = await change("fork_session", { session_id: id, ...params });
    go(["sessions", fork.session_id], {}, `This is the new fork, without the event ${event}.`);
  });

/** Create the list of the events that come after a version; null if the world is at rest. */
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
