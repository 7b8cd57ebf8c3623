// The page of one run: a figure for each kind of metric, and one for any of them.
const state = { x: "step", from: 0, scale: "linear", metric: 0 };
const draws = [], redraw = () => draws.forEach((draw) => draw());
const curvesOf = (figure) => (figure.dataset.figure === "any" ? [state.metric] : data.figures[figure.dataset.figure].curves);
function draw(figure, width) {
  const curves = curvesOf(figure).map((i) => data.curves[i]), several = curves.length > 1;
  const lines = curves.map((curve, i) => ({ name: curve.metric, colour: `var(--c${i % COLOURS})`, strong: true, x: along(data.grids[curve.grid], data.tracks[0], state.x), y: curve.mean }));
  const [, most] = range(lines.flatMap((line) => line.x), 0), [size, word] = state.x === "seconds" ? timeUnit(most) : [1, ""];
  const title = several ? curves[0].unit : labelled(curves[0].metric, curves[0].unit);
  drawLines(figure, width, { title, xTitle: X[state.x], lines, start: most * state.from, most, size, word, log: state.scale === "log", label: `${curves.map((curve) => curve.metric).join(", ")} over ${X[state.x]}`, empty: `it has not logged ${X[state.x]}` });
  if (!several || figure.querySelector(".keys")) return;
  const keys = element(figure, "div", { className: "keys" });
  for (const line of lines) {
    const key = element(keys, "span");
    element(key, "i").style.background = line.colour;
    key.append(line.name);
  }
}
const all = document.getElementById("all");
if (all) {
  pick(all, "over", Object.entries(X), state, "x", redraw);
  pick(all, "from", FROM, state, "from", redraw);
  pick(all, "scale", [["linear", "linear"], ["log", "log"]], state, "scale", redraw);
  const shown = new Set(data.figures.flatMap((figure) => figure.curves));
  state.metric = Math.max(data.curves.findIndex(({ mean }, i) => !shown.has(i) && new Set(mean).size > 1), 0);
  pick(document.getElementById("any"), "metric", data.curves.map((curve, i) => [i, curve.metric]), state, "metric", redraw);
}
for (const figure of document.querySelectorAll("figure"))
  draws.push(redrawn(figure, (width) => draw(figure, width), () => curvesOf(figure).map((i) => data.curves[i].metric).join(" ")));
