"use strict";
// Draws the two figures of the page as SVG in the width there is, and again when that changes.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8, NARROW = 640, MANY = 12;
const make = (parent, tag, attributes = {}, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
};
const known = (value) => value !== null && value !== undefined;
const labelled = (name, unit) => (unit ? `${name} (${unit})` : name);

function ticks(low, high, about) {
  const rough = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.7);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return { found, step };
}
function written(value, step) {
  const size = Math.abs(value);
  for (const [scale, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]])
    if (Math.max(size, step) >= scale && size) return `${+(value / (scale === 1e4 ? 1e3 : scale)).toFixed(3)}${letter}`;
  if (size && step < 1e-5) return value.toExponential(1);
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replace(/^-(0(\.0+)?)$/, "$1");
}
function shortened(text, name, room) {
  text.textContent = name;
  for (let n = name.length - 1; n > 2 && text.getComputedTextLength() > room; n--)
    text.textContent = `${name.slice(0, Math.ceil(n / 2))}…${name.slice(name.length - Math.floor(n / 2))}`;
  if (text.textContent !== name) make(text, "title", {}, name);
}
function range(values, margin) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (known(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return [0, 1];
  const pad = (high - low || Math.abs(high) || 1) * margin;
  return [low - pad, high + pad];
}
function axis(svg, { low, high, from, to, across, at, end, about, title, twice }) {
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  const { found, step } = ticks(low, high, about);
  for (const value of found) {
    const p = place(value);
    const line = across ? { x1: p, x2: p, y1: at, y2: end } : { x1: at, x2: end, y1: p, y2: p };
    make(svg, "line", { ...line, stroke: "var(--line)" });
    const spot = across ? { x: p, y: at + 16, "text-anchor": "middle" } : { x: at - 7, y: p + 4, "text-anchor": "end" };
    make(svg, "text", { ...spot, fill: "var(--muted)" }, written(value, step));
    if (twice) make(svg, "text", { ...spot, y: end - 6, fill: "var(--muted)" }, written(value, step));
  }
  const spot = across ? { x: (from + to) / 2, y: at + 36, "text-anchor": "middle" } : { x: 2, y: 12 };
  shortened(make(svg, "text", { ...spot, fill: "var(--muted)" }), title, across ? to - from : end);
  if (twice) shortened(make(svg, "text", { ...spot, y: end - 22, fill: "var(--muted)" }), title, to - from);
  return place;
}
function redrawn(figure, draw) {
  let width = figure.clientWidth;
  const fit = () => {
    if (Math.abs(figure.clientWidth - width) < 0.5) return;
    width = figure.clientWidth;
    draw(width);
  };
  draw(width);
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(figure);
  return () => draw(width);
}
function canvas(figure, width, height, label) {
  figure.querySelector("svg")?.remove();
  const svg = make(figure, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  return svg;
}

// The arm plot: a row an arm, what it reached and how it differs from the baseline.
const plot = document.getElementById("arm-plot");
const SIGNS = { better: "var(--good)", worse: "var(--bad)", "": "var(--muted)" };
function sign(svg, x, y, index) {
  const arm = data.arms[index];
  if (index === data.baseline) return make(svg, "path", { d: `M${x - 6} ${y}l6 -6l6 6l-6 6z`, fill: "var(--text)" });
  const colour = known(data.baseline) ? SIGNS[arm.verdict] : "var(--c0)";
  return make(svg, "circle", { cx: x, cy: y, r: 4.5, fill: arm.verdict || !known(data.baseline) ? colour : "var(--back)", stroke: colour, "stroke-width": 2 });
}
const over = () => (data.arms.length > MANY ? 34 : 0);
function panel(svg, { top: first, left, right, row, names, keys, title, zero }) {
  const top = first + over();
  const rows = data.arms.map((arm, i) => [arm, i]);
  const spread = rows.flatMap(([arm]) => [...keys.map((key) => arm[key]), ...(zero ? [0] : arm.values)]);
  const bottom = top + row * rows.length + 4;
  const [low, high] = range(spread, 0.04);
  const place = axis(svg, { low, high, from: left, to: right, across: true, at: bottom, end: top, about: Math.max(3, (right - left) / 75), title, twice: over() > 0 });
  const mark = zero ? 0 : data.arms[data.baseline]?.mean;
  if (known(mark)) make(svg, "line", { x1: place(mark), x2: place(mark), y1: top, y2: bottom, stroke: "var(--text)", "stroke-dasharray": "3 3" });
  for (const [arm, i] of rows) {
    const y = top + row * i + (names ? row - 12 : row / 2);
    const [mid, from, to] = keys.map((key) => arm[key]);
    if (names) shortened(make(svg, "text", { x: left, y: y - 11, fill: "var(--text)" }), arm.name, right - left);
    const colour = i === data.baseline ? "var(--text)" : known(data.baseline) ? SIGNS[arm.verdict] : "var(--c0)";
    if (known(from)) make(svg, "line", { x1: place(from), x2: place(to), y1: y, y2: y, stroke: colour, "stroke-width": 2 });
    if (!zero) for (const value of arm.values) make(svg, "circle", { cx: place(value), cy: y, r: 3, fill: colour, stroke: "var(--back)" });
    const spot = zero && i === data.baseline ? 0 : mid;
    if (known(spot)) sign(svg, place(spot), y, i);
    else if (!zero) make(svg, "text", { x: left + 4, y: y + 4, fill: "var(--muted)" }, arm.runs_done ? `no value of ${data.metric}` : "no run is done");
  }
  return bottom + 46;
}
function drawArms(width) {
  const compared = data.arms.some((arm) => known(arm.difference)), metric = labelled(data.metric, data.unit);
  const means = { keys: ["mean", "low", "high"], title: metric };
  const differences = { keys: ["difference", "difference_low", "difference_high"], title: labelled(`difference to ${data.arms[data.baseline]?.name}`, data.unit), zero: true };
  const each = width < NARROW ? 42 : 25, tall = over() + each * data.arms.length + 62;
  const svg = canvas(plot, width, width < NARROW && compared ? 2 * tall : tall, `${metric} of every arm, with intervals`);
  if (width < NARROW) {
    const next = panel(svg, { ...means, top: 8, left: 8, right: width - 12, row: each, names: true });
    if (compared) panel(svg, { ...differences, top: next + 8, left: 8, right: width - 12, row: each, names: true });
    return;
  }
  const texts = data.arms.map((arm, i) => make(svg, "text", { x: 0, y: 8 + over() + each * i + each / 2 + 4, fill: "var(--text)" }, arm.name));
  const room = Math.min(Math.max(...texts.map((text) => text.getComputedTextLength())), width * 0.34);
  texts.forEach((text, i) => shortened(text, data.arms[i].name, room));
  const left = room + 24, middle = compared ? left + (width - left) * 0.52 : width - 14;
  panel(svg, { ...means, top: 8, left, right: middle, row: each });
  if (compared) panel(svg, { ...differences, top: 8, left: middle + 34, right: width - 14, row: each });
}
if (plot) redrawn(plot, drawArms);

// Learning curves: the chosen arms in colour with bands, the others as thin lines.
const section = document.getElementById("curves");
if (section) {
  const legend = section.querySelector(".legend"), controls = section.querySelector(".controls");
  const better = (a, b) => {
    const key = known(a.difference) && known(b.difference) ? "difference" : "mean";
    return data.higher ? b[key] - a[key] : a[key] - b[key];
  };
  const order = data.arms.map((_, i) => i).filter((i) => i !== data.baseline && known(data.arms[i].mean));
  order.sort((a, b) => better(data.arms[a], data.arms[b]));
  const colours = new Map();
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
  [...(known(data.baseline) ? [data.baseline] : []), ...order.slice(0, data.arms.length > COLOURS + 1 ? 5 : COLOURS)].forEach(choose);

  const X = { step: "steps", tokens: "tokens", seconds: "training time" };
  const state = { metric: 0, x: "step", from: 0.1 };
  const pick = (label, options, key, number) => {
    const outer = document.createElement("label"), select = document.createElement("select");
    outer.append(`${label} `, select);
    for (const [value, text] of options) select.append(new Option(text, value, false, String(value) === String(state[key])));
    select.addEventListener("change", () => { state[key] = number ? Number(select.value) : select.value; draw(); });
    controls.append(outer);
  };
  pick("metric", data.curves.map((curve, i) => [i, curve.metric]), "metric", true);
  pick("over", Object.entries(X), "x");
  pick("from", [[0, "the start"], [0.1, "the first tenth on"], [0.5, "half on"], [0.8, "the last fifth on"]], "from", true);

  const chips = data.arms.map((arm, i) => {
    const chip = document.createElement("button"), line = document.createElement("i");
    chip.type = "button";
    chip.append(line, arm.name + (i === data.baseline ? " (baseline)" : ""));
    chip.addEventListener("click", () => { choose(i); draw(); });
    legend.append(chip);
    return { chip, line };
  });
  const time = (most) => [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => most >= 2 * size) ?? [1, "s"];
  const drawCurves = (figure, kind, width) => {
    const { metric, unit, [kind]: arms } = data.curves[state.metric], isDifference = kind === "differences";
    const title = labelled(isDifference ? `${metric} minus ${data.arms[data.baseline].name}` : metric, unit);
    const tip = figure.querySelector(".tip");
    chips.forEach(({ chip, line }, i) => {
      chip.setAttribute("aria-pressed", String(colours.has(i)));
      line.style.background = colours.get(i) ?? "";
    });
    const xs = (curve) => curve[state.x];
    const [, most] = range(data.curves[state.metric].values.flatMap((curve) => (curve ? xs(curve) : [])), 0);
    const [size, word] = state.x === "seconds" ? time(most) : [1, ""];
    const start = most * state.from, height = width < NARROW ? 320 : 400;
    const left = 58, right = width - 14, top = 26, bottom = height - 46;
    const svg = canvas(figure, width, height, `${title} over ${X[state.x]}, an arm a line`);
    const chosen = arms.some((curve, i) => curve && colours.has(i)) ? (i) => colours.has(i) : () => true;
    const seen = arms.flatMap((curve, i) => (curve && chosen(i) ? [...curve.low, ...curve.high].filter((_, k) => xs(curve)[k % curve.low.length] >= start) : []));
    const [low, high] = range(isDifference ? [...seen, 0] : seen, 0.04);
    const px = axis(svg, { low: start / size, high: most / size, from: left, to: right, across: true, at: bottom, end: top, about: Math.max(3, (right - left) / 100), title: labelled(X[state.x], word) });
    const py = axis(svg, { low, high, from: bottom, to: top, at: left, end: right, about: 6, title });
    if (isDifference) make(svg, "line", { x1: left, x2: right, y1: py(0), y2: py(0), stroke: "var(--text)", "stroke-width": 2 });
    const clip = make(make(svg, "clipPath", { id: `inside-${kind}` }), "rect", { x: left, y: top, width: Math.max(right - left, 0), height: bottom - top });
    const inside = make(svg, "g", { "clip-path": `url(#${clip.parentNode.id})` });
    const path = (curve, column, back) => {
      const points = curve[column].map((value, k) => [xs(curve)[k], value]).filter(([x, value]) => known(x) && known(value));
      return (back ? points.reverse() : points).map(([x, value]) => `${px(x / size).toFixed(1)} ${py(value).toFixed(1)}`).join("L");
    };
    const dot = (curve, i) => make(inside, "circle", { cx: px(xs(curve)[0] / size), cy: py(curve.mean[0]), r: 3, fill: colours.get(i) ?? "var(--muted)" });
    const line = (curve, i) => curve.mean.length === 1 ? dot(curve, i) : make(inside, "path", { d: `M${path(curve, "mean")}`, fill: "none", stroke: colours.get(i) ?? "var(--muted)", "stroke-width": colours.has(i) ? 2 : 1, "stroke-opacity": colours.has(i) ? 1 : 0.35, "stroke-dasharray": curve.done ? "none" : "5 4", "stroke-linejoin": "round" });
    const drawn = arms.map((curve, i) => [curve, i]).filter(([curve]) => curve && xs(curve).some(known));
    drawn.filter(([, i]) => !colours.has(i)).forEach(([curve, i]) => line(curve, i));
    for (const [curve, i] of drawn.filter(([curve, i]) => colours.has(i) && curve.n > 1))
      make(inside, "path", { d: `M${path(curve, "low")}L${path(curve, "high", true)}Z`, fill: colours.get(i), "fill-opacity": Math.max(0.05, Math.min(0.13, 0.4 / colours.size)) });
    drawn.filter(([, i]) => colours.has(i)).reverse().forEach(([curve, i]) => line(curve, i));
    if (!drawn.length) make(svg, "text", { x: (left + right) / 2, y: height / 2, "text-anchor": "middle", fill: "var(--muted)" }, `no run has logged ${X[state.x]}`);

    const cross = make(svg, "line", { y1: top, y2: bottom, stroke: "var(--muted)", visibility: "hidden" });
    const hide = () => { tip.style.display = "none"; cross.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      if (at < left || at > right) return hide();
      const wanted = start + ((at - left) / (right - left)) * (most - start);
      const near = (curve) => xs(curve).reduce((best, x, k, all) => (known(x) && Math.abs(x - wanted) < Math.abs(all[best] - wanted) ? k : best), 0);
      const values = drawn.filter(([, i]) => colours.has(i)).map(([curve, i]) => ({ i, k: near(curve), curve }));
      if (!values.length) return hide();
      values.sort((a, b) => b.curve.mean[b.k] - a.curve.mean[a.k]);
      tip.replaceChildren();
      const head = document.createElement("div");
      head.textContent = `${X[state.x]} ${written(wanted / size, (most - start) / size / 1000)} ${word}`;
      tip.append(head);
      for (const { i, k, curve } of values) {
        const row = document.createElement("div"), name = document.createElement("span"), value = document.createElement("b");
        row.append(name, value);
        tip.append(row);
        name.textContent = data.arms[i].name;
        name.style.color = colours.get(i);
        value.textContent = known(curve.mean[k]) ? curve.mean[k].toPrecision(5) : "–";
      }
      cross.setAttribute("x1", at);
      cross.setAttribute("x2", at);
      cross.setAttribute("visibility", "visible");
      tip.style.display = "block";
      tip.style.left = at < width / 2 ? `${at + 12}px` : "";
      tip.style.right = at < width / 2 ? "" : `${width - at + 12}px`;
    });
  };
  const draws = [...section.querySelectorAll("figure")].map((figure) => {
    const tip = document.createElement("div");
    tip.className = "tip";
    figure.append(tip);
    return redrawn(figure, (width) => drawCurves(figure, figure.dataset.kind, width));
  });
  const draw = () => draws.forEach((one) => one());
}
