// Small charts of plain SVG. Screen readers read the numbers of a chart, and no chart depends on colour alone.
import { fill, h, visible } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 240,
  HEIGHT = 96,
  LEFT = 46,
  BOTTOM = 16,
  TOP = 8;

/** Create an SVG element. As in `h`, strings become text. */
function svg(name, attributes, ...children) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  return fill(element, children);
}

const across = (at, of) => LEFT + 4 + (of > 1 ? (at / (of - 1)) * (WIDTH - LEFT - 12) : (WIDTH - LEFT - 12) / 2);
const up = (value, top) => HEIGHT - BOTTOM - (top ? value / top : 0) * (HEIGHT - BOTTOM - TOP);
const label = (x, y, given, anchor) => {
  const text = visible(given); // escapes may make it longer
  return svg("text", { x, y, "text-anchor": anchor }, text.length > 13 ? `${text.slice(0, 12)}…` : text);
};

function frame(title, description, first, last, top, format, drawn, legend) {
  const base = HEIGHT - BOTTOM;
  const axes = [svg("path", { d: `M${LEFT} ${TOP}V${base}H${WIDTH}`, class: "axis" })];
  const numbers = [label(LEFT - 4, TOP + 7, format(top), "end"), label(LEFT - 4, base, format(0), "end")];
  const ends = [label(LEFT, HEIGHT - 3, first, "start"), last !== first && label(WIDTH, HEIGHT - 3, last, "end")];
  const image = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" },
    svg("title", {}, `${title}: ${description}`),
    axes,
    numbers,
    ends,
    drawn,
  );
  return h("figure.chart", h("figcaption", title, " ", legend), image);
}

/** Create a line chart. `places` are the labels of the horizontal axis. Each series is `[name, values]`, with a value
 *  or null for each place. The vertical axis ends at `top`, or at the largest value if that is larger. */
export function lineChart(title, places, series, format, top = 0) {
  const highest = Math.max(top, ...series.flatMap(([, values]) => values.map((value) => value ?? 0))) || 1;
  const drawn = series.map(([name, values], index) => {
    const points = values
      .map((value, at) => value !== null && [across(at, places.length), up(value, highest), value, places[at]])
      .filter(Boolean);
    const path = points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const few = points.length <= 60 ? points : [];
    const dots = few.map(([x, y, value, place]) =>
      svg(
        "circle",
        { cx: x.toFixed(1), cy: y.toFixed(1), r: 2.5 },
        svg("title", {}, `${name} ${place}: ${format(value)}`),
      ),
    );
    return svg("g", { class: `series${index}` }, svg("path", { d: path }), dots);
  });
  const words = series
    .map(
      ([name, values]) =>
        `${name} ${values
          .map((value, at) => `${places[at]}: ${value === null ? "none" : format(value)}`)
          .slice(0, 30)
          .join(", ")}`,
    )
    .join("; ");
  return frame(
    title,
    words,
    places[0] ?? "",
    places.at(-1) ?? "",
    highest,
    format,
    drawn,
    legendOf(series.map(([name]) => name)),
  );
}

/** Create a histogram. Each series is `[name, numbers]`. */
export function histogram(title, series, format, bins = 12) {
  const all = series.flatMap(([, numbers]) => numbers);
  const low = Math.min(0, ...all),
    high = Math.max(...all, low + 1e-9),
    step = (high - low) / bins;
  const counts = series.map(([, numbers]) => {
    const bars = Array.from({ length: bins }, () => 0);
    for (const number of numbers) bars[Math.min(Math.floor((number - low) / step), bins - 1)] += 1;
    return bars;
  });
  const top = Math.max(1, ...counts.flat()),
    wide = (WIDTH - LEFT - 4) / bins,
    part = (wide - 2) / series.length;
  const bar = (count, bin, index) =>
    svg(
      "rect",
      {
        x: (LEFT + 2 + bin * wide + index * part).toFixed(1),
        y: up(count, top).toFixed(1),
        width: part.toFixed(1),
        height: (HEIGHT - BOTTOM - up(count, top)).toFixed(1),
      },
      svg("title", {}, `${format(low + bin * step)} to ${format(low + (bin + 1) * step)}: ${count}`),
    );
  const drawn = counts.map((found, index) =>
    svg(
      "g",
      { class: `series${index}` },
      found.map((count, bin) => count > 0 && bar(count, bin, index)),
    ),
  );
  const words = series
    .map(
      ([name, numbers]) =>
        `${name} ${numbers.length} from ${format(Math.min(...numbers))} to ${format(Math.max(...numbers))}`,
    )
    .join("; ");
  return frame(
    title,
    all.length ? words : "none",
    format(low),
    format(high),
    top,
    String,
    drawn,
    legendOf(series.map(([name]) => name)),
  );
}

const legendOf = (names) =>
  names.length > 1 &&
  h(
    "span.legend",
    names.map((name, index) => h(`span.series${index}`, name)),
  );

/** Create a bar with the shares of sessions by state, for a table row. */
export function shareBar({ rollouts, passed, failed, invalid, open }) {
  let x = 0;
  const parts = Object.entries({ passed, failed, invalid, open }).map(([name, count]) => {
    const made = svg("rect", { x, y: 0, width: (100 * count) / (rollouts || 1), height: 8, class: name });
    x += (100 * count) / (rollouts || 1);
    return made;
  });
  return svg(
    "svg",
    { viewBox: "0 0 100 8", class: "share", "aria-hidden": "true", preserveAspectRatio: "none" },
    parts,
  );
}
