// The page of a sweep. An arm has one colour in every figure; a click on its name shows or hides it.
const MANY = 12;
const colours = new Map(), draws = [];
const colourOf = (i) => colours.get(i) ?? "var(--muted)";
const redraw = () => { draws.forEach((draw) => draw()); mark(); };
const better = (a, b) => {
  const key = known(a.difference) && known(b.difference) ? "difference" : "mean";
  return data.higher ? b[key] - a[key] : a[key] - b[key];
};
const choose = (i) => {
  if (colours.has(i)) return colours.delete(i);
  if (i === data.baseline) return colours.set(i, "var(--text)");
  const taken = new Set(colours.values());
  const free = [...Array(COLOURS).keys()].map((n) => `var(--c${n})`).find((colour) => !taken.has(colour));
  const oldest = [...colours.keys()].find((key) => key !== data.baseline);
  const colour = free ?? colours.get(oldest);
  if (!free) colours.delete(oldest);
  return colours.set(i, colour);
};
const order = data.arms.map((_, i) => i).filter((i) => i !== data.baseline && known(data.arms[i].mean));
order.sort((a, b) => better(data.arms[a], data.arms[b]));
[...(known(data.baseline) ? [data.baseline] : []), ...order.slice(0, data.arms.length > COLOURS + 1 ? 5 : COLOURS)].forEach(choose);

const metric = labelled(data.metric, data.unit);
const span = (low, high) => (known(low) ? [[`95 % interval`, `${exact(low)} to ${exact(high)}`]] : []);
// What is told of an arm where the pointer is.
function told(i, more = []) {
  const arm = data.arms[i], rows = [[data.metric, exact(arm.mean)], ...span(arm.low, arm.high), ["runs done", `${arm.values.length} of ${arm.runs}`]];
  if (known(arm.difference)) rows.push(["difference", exact(arm.difference)], ...span(arm.difference_low, arm.difference_high));
  if (arm.verdict) rows.push(["than the baseline", arm.verdict]);
  return { head: arm.name + (i === data.baseline ? " (baseline)" : ""), rows: [...more, ...rows].map(([name, value]) => [name, value]) };
}

// The arm plot: a row an arm, what it reached and how it differs from the baseline.
function sign(svg, x, y, i) {
  if (i === data.baseline) return make(svg, "path", { d: `M${x - 6} ${y}l6 -6l6 6l-6 6z`, fill: colourOf(i) });
  const whole = data.arms[i].verdict || !known(data.baseline);
  return make(svg, "circle", { cx: x, cy: y, r: 4.5, fill: whole ? colourOf(i) : "var(--back)", stroke: colourOf(i), "stroke-width": 2 });
}
const over = () => (data.arms.length > MANY ? 34 : 0);
const VERDICTS = { better: "var(--good)", worse: "var(--bad)" };
function nameOf(svg, i, x, y, room) {
  const arm = data.arms[i], text = make(svg, "text", { x, y, fill: colours.has(i) ? "var(--text)" : "var(--muted)" });
  const word = make(svg, "text", { y, fill: VERDICTS[arm.verdict] ?? "none", "font-weight": 600 }, arm.verdict);
  shortened(text, arm.name, room - (arm.verdict ? word.getComputedTextLength() + 7 : 0));
  const used = text.getComputedTextLength();
  word.setAttribute("x", x + used + 7);
  if (!arm.verdict) word.remove();
  return used + (arm.verdict ? word.getComputedTextLength() + 7 : 0);
}
function panel(svg, { top: first, left, right, row, names, keys, title, zero }) {
  const top = first + over(), rows = data.arms.map((arm, i) => [arm, i]), bottom = top + row * rows.length + 4;
  const spread = rows.flatMap(([arm]) => [...keys.map((key) => arm[key]), ...(zero ? [0] : arm.values)]);
  const [low, high] = range(spread, 0.04), reach = { from: left, to: right, about: Math.max(3, (right - left) / 75) };
  const place = axis(svg, scale({ low, high, ...reach }), { across: true, at: bottom, end: top, title, twice: over() > 0 });
  const base = zero ? 0 : data.arms[data.baseline]?.mean;
  if (known(base)) make(svg, "line", { x1: place(base), x2: place(base), y1: top, y2: bottom, stroke: "var(--text)", "stroke-dasharray": "3 3" });
  for (const [arm, i] of rows) {
    const y = top + row * i + (names ? row - 12 : row / 2), [mid, from, to] = keys.map((key) => arm[key]);
    if (names) nameOf(svg, i, left, y - 11, right - left);
    if (known(from)) make(svg, "line", { x1: place(from), x2: place(to), y1: y, y2: y, stroke: colourOf(i), "stroke-width": 2 });
    if (!zero) for (const value of arm.values) make(svg, "circle", { cx: place(value), cy: y, r: 3, fill: colourOf(i), stroke: "var(--back)" });
    const spot = zero && i === data.baseline ? 0 : mid;
    if (known(spot)) sign(svg, place(spot), y, i);
    else if (!zero) make(svg, "text", { x: left + 4, y: y + 4, fill: "var(--muted)" }, arm.runs_done ? `no value of ${data.metric}` : "no run is done");
  }
  return { top, bottom, next: bottom + 46 };
}
function drawArms(figure, width) {
  const compared = data.arms.some((arm) => known(arm.difference)), narrow = width < NARROW, each = narrow ? 42 : 25;
  const means = { keys: ["mean", "low", "high"], title: metric };
  const differences = { keys: ["difference", "difference_low", "difference_high"], title: labelled(`difference to ${data.arms[data.baseline]?.name}`, data.unit), zero: true };
  const tall = over() + each * data.arms.length + 62;
  const svg = canvas(figure, width, narrow && compared ? 2 * tall : tall, `${metric} of every arm, with intervals`), panels = [];
  if (narrow) {
    panels.push(panel(svg, { ...means, top: 8, left: 8, right: width - 12, row: each, names: true }));
    if (compared) panels.push(panel(svg, { ...differences, top: panels[0].next + 8, left: 8, right: width - 12, row: each, names: true }));
  } else {
    const used = data.arms.map((_, i) => nameOf(svg, i, 0, 8 + over() + each * i + each / 2 + 4, width * 0.34));
    const left = Math.max(...used) + 24, middle = compared ? left + (width - left) * 0.52 : width - 14;
    panels.push(panel(svg, { ...means, top: 8, left, right: middle, row: each }));
    if (compared) panel(svg, { ...differences, top: 8, left: middle + 34, right: width - 14, row: each });
  }
  const at = (y) => panels.flatMap(({ top, bottom }) => (y >= top && y < bottom - 4 ? [Math.floor((y - top) / each)] : []))[0];
  hover(figure, svg, (x, y) => (known(at(y)) ? told(at(y)) : null));
  svg.addEventListener("click", (event) => {
    const i = at(event.clientY - svg.getBoundingClientRect().top);
    if (known(i)) { choose(i); redraw(); }
  });
}

// What was swept: an option is a scale of its numbers, or of its values in their order.
function optionScale(option, from, to, about) {
  const { values, number, log } = data.swept[option], space = (to - from) / (2 * Math.max(values.length, 1));
  if (!number) {
    const place = (value) => from + space * (1 + 2 * values.indexOf(value));
    return { place, from, to, ticks: values.map((value) => [value, value]) };
  }
  const numbers = values.map(Number), inner = { from: from + 0.08 * (to - from), to: to - 0.08 * (to - from) };
  const found = scale({ low: Math.min(...numbers), high: Math.max(...numbers), log, about, ...inner });
  const own = values.length <= 10 ? values.map((value) => [Number(value), value]) : found.ticks;
  return { ...found, place: (value) => found.place(Number(value)), from, to, ticks: own };
}
const at = (i, option) => data.arms[i].at[option];
const measured = data.arms.map((_, i) => i).filter((i) => known(data.arms[i].mean));
const settings = (i) => data.swept.map((option, k) => [option.word, at(i, k) ?? "–"]);
const nearest = (spots, x, y, far) => {
  const sorted = spots.map((spot) => [Math.hypot(spot.x - x, spot.y - y), spot]).sort(([a], [b]) => a - b);
  return sorted.length && sorted[0][0] <= far ? sorted[0][1].i : null;
};
// Room for the longest of some labels, and the labels at the ends of lines, apart from one another.
function widest(svg, texts, most) {
  const lengths = texts.map((text) => { const made = make(svg, "text", {}, text), length = made.getComputedTextLength(); made.remove(); return length; });
  return texts.length ? Math.min(Math.max(...lengths) + 6, most) : 0;
}
function endLabels(svg, labels, x, width, bottom) {
  const placed = labels.filter(({ y }) => Number.isFinite(y)).sort((a, b) => a.y - b.y);
  placed.forEach((label, n) => { if (n) label.y = Math.max(label.y, placed[n - 1].y + 14); });
  for (let n = placed.length - 1, low = bottom; n >= 0; n--, low -= 14) placed[n].y = Math.min(placed[n].y, low);
  for (const { text, colour, y } of placed) shortened(make(svg, "text", { x, y: y + 4, fill: colour, "font-weight": 600 }), text, width - x);
}
function drawResponse(figure, width) {
  const option = Number(figure.dataset.option), { key, word, values } = data.swept[option], height = 320;
  const left = 58, top = 26, bottom = height - 46, svg = canvas(figure, width, height, `${metric} over ${key}`);
  const second = data.swept.findIndex((_, k) => k !== option), named = second < 0 ? null : data.swept[second];
  const coloured = named !== null && named.values.length <= COLOURS;
  const colourBy = (i) => (coloured && known(at(i, second)) ? `var(--c${named.values.indexOf(at(i, second))})` : colourOf(i));
  const ends = coloured ? named.values.map((value) => `${named.word}=${value}`) : [];
  const right = width - 10 - widest(svg, ends, width * 0.3);
  const shown = measured.filter((i) => known(at(i, option))), arms = shown.map((i) => data.arms[i]);
  const [low, high] = range(arms.flatMap((arm) => [...arm.values, arm.low, arm.high]), 0.06);
  const px = axis(svg, optionScale(option, left, right, (right - left) / 90), { across: true, at: bottom, end: top, title: data.swept[option].log ? `${key} (log)` : key });
  const py = axis(svg, scale({ low, high, from: bottom, to: top, about: 6 }), { at: left, end: right, title: metric });
  const others = (i) => data.arms[i].at.filter((_, k) => k !== option).join(" "), groups = new Map();
  for (const i of shown) groups.set(others(i), [...(groups.get(others(i)) ?? []), i]);
  const room = Math.min(18, ((right - left) / Math.max(values.length, 1)) * 0.6), step = groups.size > 1 ? Math.min(6, room / (groups.size - 1)) : 0;
  const spots = [...groups.values()].flatMap((group, g) => {
    const off = (g - (groups.size - 1) / 2) * step;
    const line = group.map((i) => ({ i, x: px(at(i, option)) + off, y: py(data.arms[i].mean) })).sort((a, b) => a.x - b.x);
    if (line.length > 1) make(svg, "path", { d: `M${line.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`, fill: "none", stroke: coloured ? colourBy(line[0].i) : "var(--muted)", "stroke-opacity": coloured ? 0.9 : 0.55, "stroke-width": coloured ? 1.75 : 1 });
    return line;
  });
  for (const { i, x, y } of spots.sort((a, b) => colours.has(a.i) - colours.has(b.i))) {
    const arm = data.arms[i], colour = colourBy(i);
    if (known(arm.low)) make(svg, "line", { x1: x, x2: x, y1: py(arm.low), y2: py(arm.high), stroke: colour, "stroke-width": 1.5 });
    if (arm.values.length > 1) for (const value of arm.values) make(svg, "circle", { cx: x, cy: py(value), r: 2.5, fill: colour, "fill-opacity": 0.55 });
    make(svg, "circle", { cx: x, cy: y, r: 4.5, fill: colour, stroke: "var(--back)" });
  }
  endLabels(svg, ends.map((text, k) => {
    const last = [...groups.values()].filter((group) => at(group[0], second) === named.values[k]).map((group) => group.reduce((a, b) => (px(at(a, option)) >= px(at(b, option)) ? a : b)));
    return { text, colour: `var(--c${k})`, y: last.reduce((sum, i) => sum + py(data.arms[i].mean), 0) / last.length };
  }), right + 4, width, bottom);
  hover(figure, svg, (x, y) => {
    const i = nearest(spots, x, y, 40);
    return known(i) ? told(i, data.arms[i].values.length > 1 ? [["seeds", data.arms[i].values.map(exact).join(", ")]] : []) : null;
  });
}
// Darker is better, by rank: one arm that is far off leaves the others apart.
const ranked = [...measured].sort((a, b) => (data.arms[b].mean - data.arms[a].mean) * (data.higher ? -1 : 1));
const shade = (i) => 0.06 + (0.88 * ranked.indexOf(i)) / Math.max(ranked.length - 1, 1);
function drawHeat(figure, width) {
  const [across, up] = data.swept, left = 64, right = width - 8, top = 26;
  const rows = up.values.length, columns = across.values.length, grid = rows * columns <= 4 * data.arms.length;
  const high = grid ? Math.max(28, Math.min(54, 340 / rows)) : 320 / rows, bottom = top + high * rows, height = bottom + 46;
  const svg = canvas(figure, width, height, `${metric} over ${across.key} and ${up.key}`), named = (option) => (option.log && !grid ? `${option.key} (log)` : option.key);
  if (!grid) {
    const px = axis(svg, optionScale(0, left, right, (right - left) / 90), { across: true, at: bottom, end: top, title: named(across) });
    const py = axis(svg, optionScale(1, bottom, top, 6), { at: left, end: right, title: named(up) });
    const spots = measured.map((i) => ({ i, x: px(at(i, 0)), y: py(at(i, 1)) }));
    for (const { i, x, y } of spots) make(svg, "circle", { cx: x, cy: y, r: 7, fill: "var(--c0)", "fill-opacity": shade(i), stroke: colourOf(i) });
    return hover(figure, svg, (x, y) => { const i = nearest(spots, x, y, 30); return known(i) ? told(i) : null; });
  }
  const wide = (right - left) / columns, best = ranked.at(-1);
  const band = (option, size, from, sense) => ({ place: (value) => from + sense * size * (option.values.indexOf(value) + 0.5), from, to: from + sense * size * option.values.length, ticks: option.values.map((value) => [value, value]) });
  const px = axis(svg, band(across, wide, left, 1), { across: true, at: bottom, end: bottom, title: named(across) });
  const py = axis(svg, band(up, high, bottom, -1), { at: left, end: left, title: named(up), room: right });
  const spots = data.arms.map((_, i) => i).filter((i) => known(at(i, 0)) && known(at(i, 1))).map((i) => ({ i, x: px(at(i, 0)), y: py(at(i, 1)) }));
  for (const { i, x, y } of spots) {
    const arm = data.arms[i], box = { x: x - wide / 2 + 1, y: y - high / 2 + 1, width: Math.max(wide - 2, 1), height: high - 2, rx: 3 };
    if (!known(arm.mean)) make(svg, "rect", { ...box, fill: "none", stroke: "var(--line)", "stroke-dasharray": "4 3" });
    else make(svg, "rect", { ...box, fill: "var(--c0)", "fill-opacity": shade(i), stroke: i === best ? "var(--text)" : "none", "stroke-width": 2 });
    const dark = known(arm.mean) && shade(i) > 0.5, text = make(svg, "text", { x, y: y + 4, "text-anchor": "middle", fill: dark ? "var(--back)" : "var(--text)" }, known(arm.mean) ? exact(arm.mean) : "none");
    if (text.getComputedTextLength() > wide - 6) text.remove();
  }
  hover(figure, svg, (x, y) => { const spot = spots.find((one) => Math.abs(one.x - x) <= wide / 2 && Math.abs(one.y - y) <= high / 2); return spot ? told(spot.i) : null; });
}
function drawParallel(figure, width) {
  const height = 380, top = 44, bottom = height - 16, count = data.swept.length + 1, left = width < NARROW ? 54 : 70, right = width - (width < NARROW ? 12 : 30);
  const svg = canvas(figure, width, height, `${metric} of every arm with what was swept`), apart = (right - left) / (count - 1);
  const [low, high] = range(measured.map((i) => data.arms[i].mean), 0.04);
  const scales = [...data.swept.map((_, k) => optionScale(k, bottom, top, 6)), scale({ low, high, from: bottom, to: top, about: 6 })];
  const names = [...data.swept.map((option) => (option.log ? `${option.word} (log)` : option.word)), data.metric];
  const line = (i) => scales.map(({ place }, k) => [left + apart * k, k < count - 1 ? (known(at(i, k)) ? place(at(i, k)) : null) : place(data.arms[i].mean)]);
  const paths = measured.map((i) => ({ i, points: line(i).filter(([, y]) => known(y)) }));
  for (const { i, points } of [...paths].sort((a, b) => colours.has(a.i) - colours.has(b.i)))
    make(svg, "path", { d: `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`, fill: "none", stroke: colourOf(i), "stroke-width": colours.has(i) ? 2 : 1, "stroke-opacity": colours.has(i) ? 0.95 : 0.35 });
  scales.forEach(({ ticks: found, place }, k) => {
    const x = left + apart * k, taken = [];
    make(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, stroke: "var(--muted)" });
    const anchor = k === 0 ? "start" : k === count - 1 ? "end" : "middle", spot = k === 0 ? 0 : k === count - 1 ? width - 2 : x;
    shortened(make(svg, "text", { x: spot, y: k % 2 && width < NARROW ? 30 : 14, "text-anchor": anchor, fill: "var(--text)" }), names[k], width < NARROW ? apart * 1.7 : apart * 0.95);
    for (const [value, name] of found) {
      const y = place(value);
      if (taken.some((other) => Math.abs(other - y) < 15)) continue;
      taken.push(y);
      shortened(make(svg, "text", { x: x - 5, y: y + 4, "text-anchor": "end", fill: "var(--muted)", stroke: "var(--back)", "stroke-width": 3, "paint-order": "stroke" }), name, Math.min(apart - 10, left - 6));
    }
  });
  const light = make(svg, "path", { fill: "none", stroke: "var(--text)", "stroke-width": 3, visibility: "hidden" });
  hover(figure, svg, (x, y) => {
    const away = ({ points }) => Math.min(...points.slice(1).map(([bx, by], k) => { const [ax, ay] = points[k], t = (x - ax) / (bx - ax); return t < 0 || t > 1 ? Infinity : Math.abs(ay + t * (by - ay) - y); }));
    const [far, near] = paths.filter(({ points }) => points.length > 1).map((path) => [away(path), path]).sort(([a], [b]) => a - b)[0] ?? [Infinity];
    light.setAttribute("visibility", far < 14 ? "visible" : "hidden");
    if (far >= 14) return null;
    light.setAttribute("d", `M${near.points.map((point) => point.join(" ")).join("L")}`);
    return told(near.i, settings(near.i));
  });
}

// Learning curves: the chosen arms in colour with bands, the others as thin lines.
const state = { metric: 0, x: "step", from: 0.1, scale: "linear" };
function drawCurves(figure, width) {
  const kind = figure.dataset.kind, { metric: name, unit, [kind]: arms, values } = data.curves[state.metric], isDifference = kind === "differences";
  figure.hidden = isDifference && !arms?.some(Boolean);
  if (figure.hidden) return;
  const title = labelled(isDifference ? `${name} minus ${data.arms[data.baseline].name}` : name, unit);
  const xs = (curve, i) => along(data.grids[curve.grid], data.tracks[i], state.x);
  const [, most] = range(values.flatMap((curve, i) => (curve ? xs(curve, i) : [])), 0);
  const [size, word] = state.x === "seconds" ? timeUnit(most) : [1, ""], any = arms.some((curve, i) => curve && colours.has(i));
  const lines = arms.flatMap((curve, i) => (curve ? [{ name: data.arms[i].name, colour: colourOf(i), strong: colours.has(i) || !any, dashed: !curve.done, band: curve.n > 1 && curve.low, x: xs(curve, i), y: curve.mean, low: curve.low, high: curve.high }] : []));
  drawLines(figure, width, { title, xTitle: X[state.x], lines, start: most * state.from, most, size, word, zero: isDifference, log: state.scale === "log" && !isDifference, label: `${title} over ${X[state.x]}, an arm a line`, empty: `no run has logged ${X[state.x]}` });
}

const chips = [];
function mark() {
  chips.forEach(({ chip, line }, i) => {
    chip.setAttribute("aria-pressed", String(colours.has(i)));
    line.style.background = colours.get(i) ?? "";
  });
  for (const swatch of document.querySelectorAll(".swatch")) swatch.style.background = colourOf(Number(swatch.dataset.arm));
}
for (const row of document.querySelectorAll("tr[data-arm]")) {
  const swatch = document.createElement("i");
  Object.assign(swatch, { className: "swatch" }).dataset.arm = row.dataset.arm;
  row.cells[0].prepend(swatch);
}
const legend = document.querySelector(".legend");
if (legend)
  data.arms.forEach((arm, i) => {
    const chip = element(legend, "button", { type: "button" }), line = element(chip, "i");
    chip.append(arm.name + (i === data.baseline ? " (baseline)" : ""));
    chip.addEventListener("click", () => { choose(i); redraw(); });
    chips.push({ chip, line });
  });
const controls = document.querySelector("#curves .controls");
if (controls) {
  pick(controls, "metric", data.curves.map((curve, i) => [i, curve.metric]), state, "metric", redraw);
  pick(controls, "over", Object.entries(X), state, "x", redraw);
  pick(controls, "from", FROM, state, "from", redraw);
  pick(controls, "scale", [["linear", "linear"], ["log", "log"]], state, "scale", redraw);
}
const KINDS = { "arm-plot": [drawArms, () => `${data.metric} of arms`], heat: [drawHeat, () => `${data.metric} heat map`], parallel: [drawParallel, () => `${data.metric} parallel coordinates`] };
for (const figure of document.querySelectorAll("figure")) {
  const [draw, name] = KINDS[figure.id] ?? (figure.dataset.option ? [drawResponse, () => `${data.metric} over ${data.swept[figure.dataset.option].key}`] : [drawCurves, () => `${data.curves[state.metric].metric} ${figure.dataset.kind}`]);
  draws.push(redrawn(figure, (width) => draw(figure, width), name));
}
mark();
