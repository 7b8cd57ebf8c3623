"use strict";
// What the figures of both pages are made of: SVG, axes, hovering, saving; and tables that sort.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8, NARROW = 640, FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const make = (parent, tag, attributes = {}, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
};
const element = (parent, tag, properties = {}) => {
  const made = Object.assign(document.createElement(tag), properties);
  parent.append(made);
  return made;
};
const known = (value) => value !== null && value !== undefined;
const labelled = (name, unit) => (unit ? `${name} (${unit})` : name);
const exact = (value) => {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : size < 1e-4 || size >= 1e6 ? value.toExponential(3) : value.toPrecision(5);
};

// Axes. A scale is of numbers, linear or log, or of categories.
function ticks(low, high, about) {
  const rough = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.7);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found.map((value) => [value, written(value, step)]);
}
function logTicks(low, high, about) {
  const decades = Math.log10(high / low), found = [];
  if (decades < 1) return ticks(low, high, about).filter(([value]) => value > 0);
  const digits = decades > about ? [1] : decades * 3 > about ? [1, 3] : [1, 2, 5], every = Math.ceil(decades / about);
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const digit of power % every ? [] : digits) found.push(digit * 10 ** power);
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001).map((value) => [value, short(value)]);
}
function written(value, step) {
  const size = Math.abs(value);
  for (const [scale, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]])
    if (Math.max(size, step) >= scale && size) return `${+(value / (scale === 1e4 ? 1e3 : scale)).toFixed(3)}${letter}`;
  if (size && step < 1e-5) return value.toExponential(1);
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replace(/^-(0(\.0+)?)$/, "$1");
}
function short(value) {
  const size = Math.abs(value);
  if (size && size < 1e-3) return value.toExponential().replace(/(\.\d\d)\d+/, "$1");
  return size >= 1e4 ? written(value, 1) : String(+value.toPrecision(3));
}
function range(values, margin) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (known(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return [0, 1];
  const pad = (high - low || Math.abs(high) || 1) * margin;
  return [low - pad, high + pad];
}
function scale({ low, high, from, to, log, about }) {
  const at = log ? Math.log : (value) => value;
  const place = (value) => from + ((at(value) - at(low)) / (at(high) - at(low) || 1)) * (to - from);
  return { place, from, to, ticks: (log ? logTicks : ticks)(low, high, about) };
}
function shortened(text, name, room) {
  text.textContent = name;
  if (text.getComputedTextLength() > room) text.setAttribute("font-size", 11);
  for (let n = name.length - 1; n > 2 && text.getComputedTextLength() > room; n--)
    text.textContent = `${name.slice(0, Math.ceil(n / 2))}…${name.slice(name.length - Math.floor(n / 2))}`;
  if (text.textContent !== name) make(text, "title", {}, name);
}
// Draws the ticks of a scale that have room. at: where its numbers stand; end: where its lines end.
function axis(svg, { place, from, to, ticks: found }, { across, at, end, title, twice, room = across ? Math.abs(to - from) : end }) {
  const muted = { fill: "var(--muted)" }, free = [];
  for (const [value, name] of found) {
    const p = place(value), spots = across ? { x: p, y: at + 16, "text-anchor": "middle" } : { x: at - 7, y: p + 4, "text-anchor": "end" };
    const text = make(svg, "text", { ...spots, ...muted }, name);
    const half = across ? text.getComputedTextLength() / 2 + 3 : 7;
    if (across) text.setAttribute("x", Math.max(half - 2, Math.min(p, svg.viewBox.baseVal.width - half + 2)));
    if (free.some(([a, b]) => p - half < b && p + half > a)) { text.remove(); continue; }
    free.push([p - half, p + half]);
    make(svg, "line", { ...(across ? { x1: p, x2: p, y1: at, y2: end } : { x1: at, x2: end, y1: p, y2: p }), stroke: "var(--line)" });
    if (twice) make(svg, "text", { ...spots, x: text.getAttribute("x"), y: end - 6, ...muted }, name);
  }
  const spot = across ? { x: (from + to) / 2, y: at + 36, "text-anchor": "middle" } : { x: 2, y: 12 };
  shortened(make(svg, "text", { ...spot, ...muted }), title, room);
  if (twice) shortened(make(svg, "text", { ...spot, y: end - 22, ...muted }), title, room);
  return place;
}

// A figure is drawn in the width there is, and again when that changes.
function redrawn(figure, draw, name) {
  let width = figure.clientWidth;
  const fit = () => {
    if (Math.abs(figure.clientWidth - width) < 0.5) return;
    width = figure.clientWidth;
    draw(width);
  };
  draw(width);
  saved(figure, name);
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(figure);
  return () => draw(width);
}
function canvas(figure, width, height, label) {
  figure.querySelector("svg")?.remove();
  const svg = make(figure, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  figure.prepend(svg);
  return svg;
}
function saved(figure, name) {
  const row = element(figure, "div", { className: "save" });
  const offer = (kind, href) => Object.assign(document.createElement("a"), { download: `${name().replace(/[^\w.=-]+/g, "_")}.${kind}`, href }).click();
  const button = (kind, click) => element(row, "button", { type: "button", textContent: kind.toUpperCase(), title: `save this figure as ${kind.toUpperCase()}` }).addEventListener("click", click);
  const address = () => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(alone(figure.querySelector("svg")))}`;
  button("svg", () => offer("svg", address()));
  button("png", () => {
    const image = new Image(), box = figure.querySelector("svg").viewBox.baseVal;
    image.onload = () => {
      const sheet = Object.assign(document.createElement("canvas"), { width: 2 * box.width, height: 2 * box.height });
      sheet.getContext("2d").drawImage(image, 0, 0, sheet.width, sheet.height);
      offer("png", sheet.toDataURL("image/png"));
    };
    image.src = address();
  });
}
// A figure as a file of its own: without variables of the page, and with its background.
function alone(svg) {
  const copy = svg.cloneNode(true), style = getComputedStyle(document.documentElement), box = svg.viewBox.baseVal;
  const plain = (value) => value.replace(/var\((--\w+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  copy.querySelectorAll("[visibility=hidden], .sensor").forEach((one) => one.remove());
  for (const one of copy.querySelectorAll("*"))
    for (const { name, value } of [...one.attributes]) if (value.includes("var(")) one.setAttribute(name, plain(value));
  const sheet = { width: box.width, height: box.height };
  copy.prepend(make(copy, "rect", { ...sheet, fill: plain("var(--back)") }));
  for (const [name, value] of Object.entries({ ...sheet, xmlns: "http://www.w3.org/2000/svg", "font-family": FONT, "font-size": 12 })) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
}
// find(x, y) gives what to tell there: { head, rows: [[name, value, colour]] }, or nothing.
function hover(figure, svg, find) {
  const tip = figure.querySelector(".tip") ?? element(figure, "div", { className: "tip" });
  const hide = () => { tip.style.display = "none"; };
  hide();
  const show = (event) => {
    const box = svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const found = find(x, y);
    if (!found) return hide();
    tip.replaceChildren();
    element(tip, "div", { textContent: found.head });
    for (const [name, value, colour] of found.rows) {
      const row = element(tip, "div");
      element(row, "span", { textContent: name }).style.color = colour ?? "";
      element(row, "b", { textContent: value });
    }
    tip.style.display = "block";
    const beside = x < box.width / 2 ? x + 12 : x - 12 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(beside, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, Math.min(y, box.height - tip.offsetHeight - 8))}px`;
  };
  svg.addEventListener("pointerleave", () => { find(-1, -1); hide(); });
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
}

// Lines over x: { title, xTitle, lines: [{ name, colour, x, y, low, high, strong, dashed, band }], start, size, word, zero, log }
function drawLines(figure, width, { title, xTitle, lines, start = 0, most, size = 1, word = "", zero, log, label, empty }) {
  const height = width < NARROW ? 300 : 380, left = 58, right = width - 14, top = 26, bottom = height - 46;
  const svg = canvas(figure, width, height, label);
  const strong = lines.some((line) => line.strong) ? lines.filter((line) => line.strong) : lines;
  const inside = (line, column) => (column ?? []).filter((value, k) => line.x[k] >= start && known(value));
  const seen = strong.flatMap((line) => [...inside(line, line.y), ...inside(line, line.low), ...inside(line, line.high)]);
  const logarithmic = log && seen.length && seen.every((value) => value > 0);
  const [low, high] = logarithmic ? [Math.min(...seen) / 1.05, Math.max(...seen) * 1.05] : range(zero ? [...seen, 0] : seen, 0.04);
  const px = axis(svg, scale({ low: start / size, high: most / size, from: left, to: right, about: Math.max(3, (right - left) / 100) }), { across: true, at: bottom, end: top, title: labelled(xTitle, word) });
  const py = axis(svg, scale({ low, high, from: bottom, to: top, log: logarithmic, about: 6 }), { at: left, end: right, title });
  if (zero) make(svg, "line", { x1: left, x2: right, y1: py(0), y2: py(0), stroke: "var(--text)", "stroke-width": 2 });
  const id = `inside-${[...document.querySelectorAll("figure")].indexOf(figure)}`;
  make(make(svg, "clipPath", { id }), "rect", { x: left, y: top, width: Math.max(right - left, 0), height: bottom - top });
  const group = make(svg, "g", { "clip-path": `url(#${id})` });
  const path = (line, column, back) => {
    const points = column.map((value, k) => [line.x[k], value]).filter(([x, value]) => known(x) && known(value) && (!logarithmic || value > 0));
    return (back ? points.reverse() : points).map(([x, value]) => `${px(x / size).toFixed(1)} ${py(value).toFixed(1)}`).join("L");
  };
  const drawn = lines.filter((line) => line.x.some(known));
  for (const line of drawn.filter(({ low: band, strong: is }) => is && band))
    make(group, "path", { d: `M${path(line, line.low)}L${path(line, line.high, true)}Z`, fill: line.colour, "fill-opacity": Math.max(0.05, Math.min(0.13, 0.4 / strong.length)) });
  for (const line of [...drawn.filter((one) => !one.strong), ...drawn.filter((one) => one.strong).reverse()]) {
    if (line.y.length === 1) { make(group, "circle", { cx: px(line.x[0] / size), cy: py(line.y[0]), r: 3, fill: line.colour }); continue; }
    const look = line.strong ? { "stroke-width": 2 } : { "stroke-width": 1, "stroke-opacity": 0.35 };
    make(group, "path", { d: `M${path(line, line.y)}`, fill: "none", stroke: line.colour, ...look, "stroke-dasharray": line.dashed ? "5 4" : "none", "stroke-linejoin": "round" });
  }
  if (!drawn.length) make(svg, "text", { x: (left + right) / 2, y: height / 2, "text-anchor": "middle", fill: "var(--muted)" }, empty);
  const cross = make(svg, "line", { y1: top, y2: bottom, stroke: "var(--muted)", visibility: "hidden" });
  hover(figure, svg, (at) => {
    const told = drawn.filter((line) => line.strong), inside = at >= left && at <= right && told.length > 0;
    cross.setAttribute("visibility", inside ? "visible" : "hidden");
    if (!inside) return null;
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    const wanted = start + ((at - left) / (right - left)) * (most - start);
    const near = ({ x }) => x.reduce((best, value, k) => (known(value) && Math.abs(value - wanted) < Math.abs(x[best] - wanted) ? k : best), 0);
    const values = told.map((line) => [line, line.y[near(line)]]).sort(([, a], [, b]) => b - a);
    return { head: `${xTitle} ${written(wanted / size, (most - start) / size / 1000)} ${word}`, rows: values.map(([line, value]) => [line.name, exact(value), line.colour]) };
  });
}
const timeUnit = (most) => [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => most >= 2 * size) ?? [1, "s"];
const X = { step: "steps", tokens: "tokens", seconds: "training time" };
const FROM = [[0, "the start"], [0.1, "the first tenth on"], [0.5, "half on"], [0.8, "the last fifth on"]];
// A choice among [value, text] that sets state[key], then calls changed.
function pick(controls, label, options, state, key, changed) {
  const outer = element(controls, "label", { textContent: `${label} ` }), select = element(outer, "select");
  for (const [value, text] of options) select.append(new Option(text, value, false, String(value) === String(state[key])));
  select.addEventListener("change", () => { state[key] = typeof options[0][0] === "number" ? Number(select.value) : select.value; changed(); });
}
// Values of a track at the steps of a curve, between its own points.
function along(steps, track, column) {
  if (column === "step") return steps;
  const known = track?.[column];
  if (!known?.length) return steps.map(() => null);
  let k = 0;
  return steps.map((step) => {
    while (k < known.length - 2 && track.step[k + 1] < step) k++;
    if (known.length === 1) return known[0];
    const share = (step - track.step[k]) / (track.step[k + 1] - track.step[k]);
    return known[k] + share * (known[k + 1] - known[k]);
  });
}

// A click on the head of a column sorts by it, another one the other way.
const UNITS = { k: 1e3, M: 1e6, B: 1e9, T: 1e12, s: 1, min: 60, h: 3600, d: 86400 };
function sortKey(text) {
  const found = /^[<#]?([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)(?:\s*(k|M|B|T|s|min|h|d))?\b/.exec(text.trim());
  return found ? Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : text.trim() === "–" ? null : text.trim();
}
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "sort by this column";
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending", sign = up ? 1 : -1;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [sortKey(row.cells[column]?.textContent ?? ""), row]);
      const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
      rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : sign * order(a, b)));
      body.append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
