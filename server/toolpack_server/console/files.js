// Trees of files in a world: folders, the names as they were given, how large a file is, and its content.
// What is a tree of files the toolpack says, by the schema of its environment; the JSON has a member a path.
import { call } from "./rpc.js";

/** Get the pointers of the fields that are trees of files. */
export const filesIn = (toolpacks) =>
  new Set(
    toolpacks.flatMap(({ name, environment }) =>
      Object.entries(environment?.properties ?? {})
        .filter(([, spec]) => spec["x-toolpack"] === "files")
        .map(([field]) => `/${name}/${field}`),
    ),
  );

const BYTE = /\/\/([0-9a-f]{2})/g; // of a name that isn't UTF-8
const partsOf = (path) => path.replace(BYTE, "\\x$1").split("/");
export const nameOf = (path) => partsOf(path).at(-1);

/** Put files, nodes whose keys are paths, into folders: groups of nodes. */
export function inFolders(nodes, depth = 0) {
  const within = Map.groupBy(nodes, ({ path }) => (partsOf(path).length > depth + 1 ? partsOf(path)[depth] : null));
  const files = within.get(null) ?? [];
  within.delete(null);
  const folders = [...within].map(([name, group]) => ({
    key: `${name}/`,
    pointer: null,
    group: inFolders(group, depth + 1),
    files: group.length,
    changes: group.reduce((sum, node) => sum + Math.max(node.changes, Number(Boolean(node.change))), 0),
  }));
  return [...folders, ...files];
}

const UNITS = ["B", "KiB", "MiB", "GiB"];
/** Say how large a file is that is shown so; nothing of what is no file. */
export function sizeOf(value) {
  let size = bytesOf(value)?.length ?? value?.$size;
  if (size === undefined) return null;
  const at = UNITS.findIndex((_, n) => size < 1024 ** (n + 1));
  size /= 1024 ** at;
  return `${at ? size.toFixed(1) : size} ${UNITS[at]}`;
}

/** Get the content of a file, as it is shown in JSON; undefined if that isn't the content. */
export function bytesOf(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  return value?.$base64 === undefined ? undefined : fromBase64(value.$base64);
}
export const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Get the content of a file of a session, of which the world may show the size only. */
export const contentOf = async (value, ends) => bytesOf(value) ?? bytesOf(await call("get_environment", ends));
