/* What is chosen in one chart shows in the others; axes, legend and brushes of the report. */
const trade = document.querySelector('[data-figure="trade"]');
const coordinates = document.querySelector('[data-figure="coordinates"]');

listeners.first.push((place) => {
  place.on("plotly_click", (event) => {
    const number = event.points.map((p) => p.customdata).find((n) => n !== undefined && n !== null);
    if (number !== undefined) select(number);
  });
  if (place === coordinates) watchBrush();
});
listeners.drawn.push((place) => {
  if (place === trade) { applyAxes(); applyHidden(); }
  markSelected(place);
});

/* A ring (or a thick line) around what is selected, in every chart that shows it. */
function markSelected(place) {
  const ring = place.data.findIndex((t) => t.meta === "selected");
  if (ring < 0) return;
  const xs = [], ys = [];
  for (const trace of place.data) {
    if (!trace.customdata || trace.meta === "selected" || trace.visible === false) continue;
    for (let j = 0; j < trace.customdata.length; j++) {
      if (trace.customdata[j] === null || ![selection.point, selection.number].includes(trace.customdata[j])) continue;
      xs.push(trace.x[j]);
      ys.push(trace.y[j]);
    }
  }
  Plotly.restyle(place, { x: [xs], y: [ys] }, [ring]);
}
listeners.select.push(() => { for (const place of drawn.keys()) markSelected(place); });

/* Axes of the trade-off can be any two metrics. */
const axisX = document.getElementById("axis-x"), axisY = document.getElementById("axis-y");
const metricNames = Object.entries(view.units);
for (const [list, start] of trade ? [[axisX, view.axes[0]], [axisY, view.axes[1]]] : []) {
  for (const [name, unit] of metricNames) list.append(make("option", { value: name }, unit.label));
  list.disabled = metricNames.length === 0;
  if (metricNames.length) list.value = start;
  list.addEventListener("change", () => { if (drawn.has(trade)) redraw(trade); });
}

const rowOfPoint = new Map(view.points.number.map((number, i) => [number, i]));
function applyAxes() {
  const x = axisX.value, y = axisY.value;
  if (!(x in view.units) || (x === view.axes[0] && y === view.axes[1])) return;
  const column = (metric) => (number) => {
    const value = view.points.metrics[metric][rowOfPoint.get(number)];
    return value === null ? null : value * view.units[metric].scale;
  };
  const changes = { x: [], y: [] }, traces = [];
  trade.data.forEach((trace, i) => {
    if (trace.meta === "selected") return;
    const numbers = trace.customdata ?? [];
    changes.x.push(numbers.map(column(x)));
    changes.y.push(numbers.map(column(y)));
    traces.push(i);
  });
  Plotly.restyle(trade, changes, traces);
  const shapes = [], annotations = [], colour = darkNow() ? view.dark[view.over] : view.over;
  for (const limit of view.limits) {
    const value = limit.value * (view.units[limit.metric]?.scale ?? 1), line = { color: colour, width: 1.5, dash: "dash" };
    if (limit.metric === x) shapes.push({ type: "line", x0: value, x1: value, yref: "paper", y0: 0, y1: 1, line });
    else if (limit.metric === y) shapes.push({ type: "line", y0: value, y1: value, xref: "paper", x0: 0, x1: 1, line });
  }
  Plotly.relayout(trade, { shapes, annotations, "xaxis.title.text": view.units[x].title, "yaxis.title.text": view.units[y].title, "xaxis.autorange": true, "yaxis.autorange": true });
}

/* The words above the trade-off are its legend: each hides or shows its points. */
const hidden = new Set();
for (const button of document.querySelectorAll("[data-trace]")) {
  button.addEventListener("click", () => {
    const name = button.dataset.trace;
    if (!hidden.delete(name)) hidden.add(name);
    button.setAttribute("aria-pressed", String(!hidden.has(name)));
    if (drawn.has(trade)) { applyHidden(); markSelected(trade); }
  });
}
function applyHidden() {
  trade.data.forEach((trace, i) => {
    const visible = !hidden.has(trace.meta === "front line" ? "front" : trace.meta);
    if ((trace.visible ?? true) !== visible) Plotly.restyle(trade, { visible }, [i]);
  });
}

/* Parallel coordinates: a drag over an axis keeps the lines that cross it there. */
const plain = coordinates ? JSON.parse(sources.get(coordinates)).data : [];
function watchBrush() {
  coordinates.on("plotly_selected", (event) => {
    const kept = event?.range ? linesIn(event.range) : new Set();
    if (!kept.size) return showAll();
    filterLines((number) => kept.has(number));
    return showOnly(kept);
  });
  coordinates.on("plotly_deselect", showAll);
  coordinates.on("plotly_doubleclick", showAll);
}

/* The axes under the box; where there is none, the one nearest to its middle. */
function linesIn(range) {
  const [left, right] = [Math.min(...range.x), Math.max(...range.x)], [low, high] = [Math.min(...range.y), Math.max(...range.y)];
  const inside = (x) => (Math.ceil(left) <= Math.floor(right) ? x >= left && x <= right : x === Math.round((left + right) / 2));
  const kept = new Set();
  for (const trace of plain) {
    trace.customdata?.forEach((number, j) => {
      if (number !== null && trace.y[j] !== null && inside(trace.x[j]) && trace.y[j] >= low && trace.y[j] <= high) kept.add(number);
    });
  }
  return kept;
}

let filtered = false;
function showAll() {
  if (!filtered) return;
  filterLines(() => true);
  filtered = false;
  Plotly.relayout(coordinates, { selections: [] });
  showOnly(null);
}

function filterLines(keeps) {
  filtered = true;
  plain.forEach((trace, i) => {
    if (trace.meta === "selected") return;
    const y = trace.y.map((v, j) => (trace.customdata[j] !== null && keeps(trace.customdata[j]) ? v : null));
    Plotly.restyle(coordinates, { y: [y], selectedpoints: [null] }, [i]);
  });
}
