/* Charts: drawn after the first paint, those in view first; redrawn when the theme changes. */
const places = [...document.querySelectorAll("[data-figure]")];
const sources = new Map(places.map((p) => [p, document.getElementById(`figure-${p.dataset.figure}`).textContent]));
const drawn = new Map();
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "autoScale2d"], doubleClick: "reset" };

/* Figures are written in light colours; on a dark page each is swapped for its partner. */
function figureOf(place, dark) {
  let text = sources.get(place);
  if (dark) text = text.replace(/#[0-9a-f]{6}/g, (colour) => view.dark[colour] ?? colour);
  const figure = JSON.parse(text);
  figure.layout.hoverlabel = { ...figure.layout.hoverlabel, bgcolor: dark ? "#202b37" : "#ffffff", bordercolor: dark ? "#4d5c6c" : "#aab6c2" };
  figure.layout.hoverlabel.font = { ...figure.layout.hoverlabel.font, color: dark ? "#e4eaf1" : "#1b2733" };
  figure.layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: dark ? "#9aa8b7" : "#8ba0b6", activecolor: dark ? "#e4eaf1" : "#1b2733" };
  return figure;
}

function draw(place) {
  if (drawn.has(place)) return;
  const figure = figureOf(place, document.documentElement.dataset.theme === "dark");
  drawn.set(place, figure);
  Plotly.newPlot(place, figure.data, figure.layout, config);
  place.on("plotly_click", (event) => {
    const number = event.points.map((p) => p.customdata).find((n) => n !== undefined && n !== null);
    if (number !== undefined) select(number);
  });
  if (place.dataset.figure === "trade") applyAxes(place);
  if (place.dataset.figure === "coordinates") watchBrush(place);
  markSelected(place);
}

function redraw(dark) {
  for (const place of drawn.keys()) {
    const figure = figureOf(place, dark);
    drawn.set(place, figure);
    Plotly.react(place, figure.data, figure.layout, config);
    if (place.dataset.figure === "trade") applyAxes(place);
    markSelected(place);
  }
}
listeners.theme.push(redraw);

function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly-source").textContent;
  document.head.append(script);
}

function drawInTurn() {
  const waiting = places.filter((p) => !drawn.has(p));
  if (!waiting.length) { document.documentElement.dataset.charts = "drawn"; return; }
  const inView = waiting.find((p) => { const r = p.getBoundingClientRect(); return r.bottom > 0 && r.top < innerHeight; });
  draw(inView ?? waiting[0]);
  setTimeout(drawInTurn, 15);
}

/* Parallel coordinates: a box over an axis keeps the lines whose points lie in it. */
function watchBrush(place) {
  place.on("plotly_selected", (event) => {
    if (!event?.points?.length) return;
    const kept = new Set(event.points.map((p) => p.customdata));
    filterLines(place, (number) => kept.has(number));
    window.showOnly?.(kept);
  });
  const all = () => { Plotly.relayout(place, { selections: [] }); filterLines(place, () => true); window.showOnly?.(null); };
  place.on("plotly_deselect", all);
  place.on("plotly_doubleclick", all);
}

function filterLines(place, keeps) {
  const original = drawn.get(place).data;
  original.forEach((trace, i) => {
    if (trace.meta === "selected") return;
    const y = trace.y.map((v, j) => (trace.customdata[j] === null || keeps(trace.customdata[j]) ? v : null));
    Plotly.restyle(place, { y: [y], selectedpoints: [null] }, [i]);
  });
}

/* A ring (or a thick line) around what is selected, in every chart that shows it. */
function markSelected(place) {
  const figure = drawn.get(place);
  const ring = figure.data.findIndex((t) => t.meta === "selected");
  if (ring < 0) return;
  const xs = [], ys = [];
  for (const trace of place.data) {
    if (!trace.customdata || trace.meta === "selected") continue;
    for (let j = 0; j < trace.customdata.length; j++) {
      if (trace.customdata[j] === selection.point || trace.customdata[j] === selection.number) { xs.push(trace.x[j]); ys.push(trace.y[j]); }
    }
  }
  Plotly.restyle(place, { x: [xs], y: [ys] }, [ring]);
}
listeners.select.push(() => { for (const place of drawn.keys()) markSelected(place); });

/* Axes of the trade-off can be any two metrics. */
const axisX = document.getElementById("axis-x"), axisY = document.getElementById("axis-y");
for (const [select, start] of [[axisX, view.axes[0]], [axisY, view.axes[1]]]) {
  for (const [name, unit] of Object.entries(view.units)) select.append(make("option", { value: name }, unit.label));
  select.value = start;
  select.addEventListener("change", () => { for (const p of drawn.keys()) if (p.dataset.figure === "trade") { redrawTrade(p); } });
}

function redrawTrade(place) {
  const figure = figureOf(place, document.documentElement.dataset.theme === "dark");
  figure.layout.uirevision = `${axisX.value} ${axisY.value}`;
  drawn.set(place, figure);
  Plotly.react(place, figure.data, figure.layout, config);
  applyAxes(place);
  markSelected(place);
}

const rowOfPoint = new Map(view.points.number.map((number, i) => [number, i]));
function applyAxes(place) {
  if (axisX.value === view.axes[0] && axisY.value === view.axes[1]) return;
  const column = (metric) => (number) => {
    const value = view.points.metrics[metric][rowOfPoint.get(number)];
    return value === null ? null : value * view.units[metric].scale;
  };
  const xOf = column(axisX.value), yOf = column(axisY.value);
  const changes = { x: [], y: [] }, traces = [];
  place.data.forEach((trace, i) => {
    if (trace.meta === "selected") return;
    const numbers = trace.customdata ?? [];
    changes.x.push(numbers.map(xOf));
    changes.y.push(numbers.map(yOf));
    traces.push(i);
  });
  Plotly.restyle(place, changes, traces);
  const shapes = [], annotations = [];
  Plotly.relayout(place, { shapes, annotations, "xaxis.title.text": view.units[axisX.value].title, "yaxis.title.text": view.units[axisY.value].title, "xaxis.autorange": true, "yaxis.autorange": true });
}

/* Paper is white, whatever the screen is. */
addEventListener("beforeprint", () => {
  if (typeof Plotly === "undefined") loadPlotly();
  for (const place of places) draw(place);
  applyTheme("light");
});
addEventListener("afterprint", () => applyTheme());
