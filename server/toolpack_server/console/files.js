// Trees of files in a world: folders, original names, sizes and contents of files.
// The schema of a toolpack's environment marks the fields that are trees of files. In JSON, a tree of files is an
// object with a member for each path.
import { call } from "./rpc.js";

/** Return the pointers of the fields that are trees of files. */
export const filesIn = (toolpacks) =>
  new Set(
    toolpacks.flatMap(({ name, environment }) =>
      Object.entries(environment?.properties ?? {})
        .filter(([, spec]) => spec["x-toolpack"] === "files")
        .map(([field]) => `/${name}/${field}`),
    ),
  );

const BYTE = /\/\/([0-9a-f]{2})/g; // the server writes a byte of a name that isn't UTF-8 as `//ff`
const partsOf = (path) => path.replace(BYTE, "\\x$1").split("/");
export const nameOf = (path) => partsOf(path).at(-1);

/** Group files into folders. The nodes of files have the files' paths as keys. */
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
/** Return the size of a file as text from the file's JSON value. Return null if the value isn't a file. */
export function sizeOf(value) {
  let size = bytesOf(value)?.length ?? value?.$size;
  if (size === undefined) return null;
  const at = UNITS.findIndex((_, n) => size < 1024 ** (n + 1));
  size /= 1024 ** at;
  return `${at ? size.toFixed(1) : size} ${UNITS[at]}`;
}

/** Return the content of a file from the file's JSON value. Return undefined if the value has no content. */
export function bytesOf(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  return value?.$base64 === undefined ? undefined : fromBase64(value.$base64);
}
export const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Return the content of a session's file. If the world shows only the size, read the content from the server. */
export const contentOf = async (value, ends) => bytesOf(value) ?? bytesOf(await call("get_environment", ends));
