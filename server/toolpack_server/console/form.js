// Form for a JSON Schema. An enum becomes a select, a boolean a checkbox, a date a date field, and the user writes a
// nested value as JSON. The form omits an optional field that is empty, and shows each error at its field.
import { Exact, isContainer } from "./difference.js";
import { fill, h } from "./dom.js";
import { parse, stringify } from "./rpc.js";
import { full } from "./tree.js";

/** Create the fields for the schema of an object. `read` returns the object that the user has entered, or throws an
 *  error. `refuse` shows errors from the server. If a page has several forms, `prefix` makes the ids of their fields
 *  unique. */
export function schemaForm(schema, values = {}, prefix = "") {
  const fields = Object.entries(schema.properties ?? {}).map(([name, spec]) => {
    const value = Object.hasOwn(values, name) ? values[name] : undefined;
    return field(name, resolved(spec, schema), (schema.required ?? []).includes(name), value, prefix);
  });
  const element = h("div", fields.length ? fields.map((one) => one.element) : h("p.hint", "It takes no arguments."));
  const read = () => {
    const values = {};
    let isWrong = false;
    for (const { name, get, say } of fields) {
      try {
        say("");
        const value = get();
        if (value !== undefined) values[name] = value;
      } catch (error) {
        say(error.message);
        isWrong = true;
      }
    }
    element.querySelector("[aria-invalid]")?.focus();
    if (isWrong) throw new Error("Correct the marked fields, then try again.");
    return values;
  };
  const refuse = (errors) => {
    for (const { loc, msg } of errors) fields.find(({ name }) => name === String(loc[0]))?.say(msg);
  };
  return { element, read, refuse };
}

/** Return a field's schema without references and without the choice "or null". `isNullable` tells whether it had
 *  one. */
function resolved(spec, schema) {
  if (spec.$ref) {
    const target = spec.$ref
      .split("/")
      .slice(1)
      .reduce((inner, key) => inner?.[key], schema);
    return resolved({ ...target, ...spec, $ref: undefined }, schema);
  }
  const options = (spec.anyOf ?? []).map((option) => resolved(option, schema));
  const kinds = options.filter(({ type }) => type !== "null"),
    types = kinds.map(({ type }) => type);
  const isNullable = kinds.length < options.length;
  if (kinds.length === 1) return { ...kinds[0], ...spec, isNullable };
  const isDecimal = types.includes("string") && types.every((type) => ["string", "number", "integer"].includes(type));
  return { ...spec, isNullable, ...(isDecimal && { type: "string", format: "decimal" }) };
}

/** Create a field of the form: its element, a function that reads it, and one that shows an error. */
function field(name, spec, isRequired, value, prefix) {
  const id = `field-${prefix}${name}`,
    about = h("span.about", { id: `${id}-about` }, spec.description);
  const error = h("span.error", { id: `${id}-error` });
  const attributes = {
    id,
    name,
    "aria-describedby": `${about.id} ${error.id}`,
    spellcheck: "false",
    autocomplete: "off",
  };
  const [input, get] = control(spec, isRequired, attributes, value);
  const choice = spec.enum || spec.const !== undefined ? "choice" : spec.format;
  const kind = `${choice ?? (typeof spec.type === "string" ? spec.type : "JSON")}${spec.isNullable ? " or null" : ""}`;
  const fallback = (spec.default ?? null) === null ? "optional" : `default ${stringify(spec.default)}`;
  const need = h("span.kind", `${kind}, ${isRequired ? "required" : fallback}`);
  const say = (text) => {
    fill(error, text);
    input.toggleAttribute("aria-invalid", Boolean(text));
  };
  return { name, get, say, element: h("div.field", h("label", { for: id }, name), need, input, about, error) };
}

/** Create the element of a field, and the function that reads it. */
function control(spec, isRequired, attributes, value) {
  const { type, format, isNullable } = spec;
  if (type === "boolean" && !isNullable && (isRequired || typeof spec.default === "boolean")) {
    const input = h("input", { type: "checkbox", ...attributes, checked: value ?? spec.default });
    return [input, () => (input.checked === spec.default && !isRequired ? undefined : input.checked)];
  }
  const only = spec.const === undefined ? null : [spec.const];
  const options = spec.enum ?? only ?? (type === "boolean" ? [true, false] : null);
  if (options) return select(options, isRequired && !isNullable, attributes, value);
  const isNumber = type === "integer" || type === "number",
    isText = type === "string";
  const isLine = isNumber || (isText && (format || spec.pattern));
  const input = h(isLine ? "input" : "textarea", {
    ...attributes,
    type: format === "date" ? "date" : null,
    rows: isText ? 1 : 2,
  });
  input.value = (value ?? null) === null ? "" : isText ? full(value) : stringify(value, 2);
  const get = () => {
    if (input.value.trim()) return isText ? input.value : readJson(input.value, isNumber && type);
    if (isRequired && !isNullable && (!isText || isLine)) throw new Error("This is required.");
    return isRequired ? (isNullable ? null : input.value) : undefined;
  };
  return [input, get];
}

/** Parse JSON. If `type` is "number" or "integer", throw an error for a value of another type. */
function readJson(text, type) {
  const isRight = (value) => {
    const number = value instanceof Exact ? value.valueOf() : value;
    return type === "integer" ? Number.isInteger(number) : typeof number === "number";
  };
  try {
    const value = parse(text);
    // An object such as {"$call": …} may stand for a number: the server replaces it by the result of a call.
    if (!type || isRight(value) || typeof value === "bigint" || isContainer(value)) return value;
  } catch (error) {
    if (!type) throw new Error(`This isn't JSON: ${error.message}`, { cause: error });
  }
  throw new Error(type === "integer" ? "Write a whole number, such as 12." : "Write a number, such as 12.5.");
}

function select(options, isNeeded, attributes, value) {
  const none = isNeeded ? null : h("option", { value: "" }, "(not sent)");
  const isChosen = (option) => value !== undefined && stringify(option) === stringify(value);
  const shown = options.map((option, index) => h("option", { value: index, selected: isChosen(option) }, full(option)));
  const input = h("select", attributes, none, shown);
  return [input, () => (input.value === "" ? undefined : options[Number(input.value)])];
}

/** Parse labels, such as `name=value, name=value`. */
export function readLabels(text) {
  const pairs = text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);
  const parts = pairs.map((pair) => /^([^=]+)=(.*)$/s.exec(pair));
  if (parts.includes(null)) throw new Error(`“${text}” isn't a list of labels: write name=value, separated by commas.`);
  return Object.fromEntries(parts.map(([, name, value]) => [name.trim(), value.trim()]));
}
