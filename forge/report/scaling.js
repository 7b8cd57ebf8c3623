// The page of a scaling law: every figure is of series over one pair of axes.
function drawSeries(figure, width) {
  const { title, x: xTitle, y: yTitle, series, log_x: logX, log_y: logY, zero } = data.figures[figure.dataset.figure];
  const height = width < NARROW ? 320 : 380, left = 62, right = width - 16, top = 26, bottom = height - 46;
  const svg = canvas(figure, width, height, title), points = series.flatMap((one) => one.points);
  const bars = series.flatMap((one) => (one.bars ?? []).flat());
  const bounds = (values, log, margin) => {
    const some = values.filter((value) => known(value) && (!log || value > 0));
    if (!log) return range(zero ? [...some, 0] : some, margin);
    const pad = Math.max((Math.max(...some) / Math.min(...some)) ** margin, 1.02);
    return [Math.min(...some) / pad, Math.max(...some) * pad];
  };
  // A bar may be far longer than the figure: it is cut at its edge.
  const drawn = points.map(([, y]) => y), [least, most] = range(drawn, 0.6);
  const [lowX, highX] = bounds(points.map(([x]) => x), logX, 0.05);
  const [lowY, highY] = bounds([...drawn, ...bars.filter((y) => y > least && y < most)], logY, 0.05);
  const px = axis(svg, scale({ low: lowX, high: highX, from: left, to: right, log: logX, about: Math.max(3, (right - left) / 90) }), { across: true, at: bottom, end: top, title: xTitle });
  const py = axis(svg, scale({ low: lowY, high: highY, from: bottom, to: top, log: logY, about: 6 }), { at: left, end: right, title: yTitle, room: right });
  if (zero) make(svg, "line", { x1: left, x2: right, y1: py(0), y2: py(0), stroke: "var(--text)" });
  const id = `inside-${figure.dataset.figure}`;
  make(make(svg, "clipPath", { id }), "rect", { x: left, y: top, width: Math.max(right - left, 0), height: bottom - top });
  const group = make(svg, "g", { "clip-path": `url(#${id})` }), spots = [];
  for (const { name, colour: n, kind, points: own, labels, dashed, thin, bars: ends } of series) {
    const colour = `var(--c${n % COLOURS})`, at = own.filter(([x, y]) => known(x) && known(y)).map(([x, y]) => [px(x), py(y)]);
    if (kind === "line") {
      const look = thin ? { "stroke-width": 1, "stroke-opacity": 0.55 } : { "stroke-width": 2 };
      make(group, "path", { d: `M${at.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`, fill: "none", stroke: colour, ...look, "stroke-dasharray": dashed ? "5 4" : "none" });
      continue;
    }
    at.forEach(([x, y], k) => {
      const [low, high] = ends?.[k] ?? [null, null];
      if (known(low)) make(group, "line", { x1: x, x2: x, y1: py(logY ? Math.max(low, lowY) : low), y2: py(high), stroke: colour, "stroke-width": 1.5 });
      if (kind === "diamonds") make(group, "path", { d: `M${x - 6} ${y}l6 -6l6 6l-6 6z`, fill: colour, stroke: "var(--back)" });
      else if (kind === "triangles") make(group, "path", { d: `M${x - 6} ${y + 5}l6 -11l6 11z`, fill: colour, stroke: "var(--back)" });
      else make(group, "circle", { cx: x, cy: y, r: 4.5, fill: kind === "bars" ? "var(--back)" : colour, stroke: kind === "bars" ? colour : "var(--back)" });
      spots.push({ x, y, head: labels[k] || name, rows: [[xTitle, exact(own[k][0])], [yTitle, exact(own[k][1])], ...(known(low) ? [["95 % interval", `${exact(low)} to ${exact(high)}`]] : [])] });
    });
  }
  hover(figure, svg, (x, y) => {
    const near = spots.map((spot) => [Math.hypot(spot.x - x, spot.y - y), spot]).sort(([a], [b]) => a - b)[0];
    return near && near[0] < 40 ? near[1] : null;
  });
  if (figure.querySelector(".keys")) return;
  const keys = element(figure, "div", { className: "keys" }), named = new Map(series.filter(({ name }) => name).map((one) => [one.name, one.colour]));
  for (const [name, n] of named) {
    const key = element(keys, "span");
    element(key, "i").style.background = `var(--c${n % COLOURS})`;
    key.append(name);
  }
}
for (const figure of document.querySelectorAll("figure")) redrawn(figure, (width) => drawSeries(figure, width), () => data.figures[figure.dataset.figure].title);
