/* Charts: drawn after the first paint, those in view first; redrawn when the theme changes. */
const places = [...document.querySelectorAll("[data-figure]")];
const sources = new Map(places.map((p) => [p, document.getElementById(`figure-${p.dataset.figure}`).textContent]));
const drawn = new Map();
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "autoScale2d"], doubleClick: "reset" };
const darkNow = () => document.documentElement.dataset.theme === "dark";

/* Figures are written in light colours; on a dark page each is swapped for its partner. */
function figureOf(place, dark = darkNow()) {
  let text = sources.get(place);
  /* Only where a colour stands: a knob's value may look like one too. */
  if (dark) text = text.replace(/("|color:)(#[0-9a-f]{6})(?=["'])/g, (_, before, colour) => before + (view.dark[colour] ?? colour));
  const figure = JSON.parse(text);
  figure.layout.hoverlabel = { ...figure.layout.hoverlabel, bgcolor: dark ? "#202b37" : "#ffffff", bordercolor: dark ? "#4d5c6c" : "#aab6c2" };
  figure.layout.hoverlabel.font = { ...figure.layout.hoverlabel.font, color: dark ? "#e4eaf1" : "#1b2733" };
  figure.layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: dark ? "#9aa8b7" : "#8ba0b6", activecolor: dark ? "#e4eaf1" : "#1b2733" };
  return figure;
}

/* Plotly rings a listener's bell more than once while it draws, so ours are told here. */
function draw(place) {
  if (drawn.has(place)) return;
  const figure = figureOf(place);
  drawn.set(place, figure);
  Plotly.newPlot(place, figure.data, figure.layout, config);
  for (const listener of listeners.first) listener(place);
  for (const listener of listeners.drawn) listener(place);
}

function redraw(place) {
  const figure = figureOf(place);
  drawn.set(place, figure);
  Plotly.react(place, figure.data, figure.layout, config);
  for (const listener of listeners.drawn) listener(place);
}
listeners.theme.push(() => { for (const place of drawn.keys()) redraw(place); });

function loadPlotly() {
  if (typeof Plotly !== "undefined") return;
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly-source").textContent;
  document.head.append(script);
}

const inView = (place) => { const box = place.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
function drawInTurn() {
  const waiting = places.filter((p) => !drawn.has(p));
  if (!waiting.length) { document.documentElement.dataset.charts = "drawn"; return; }
  draw(waiting.find(inView) ?? waiting[0]);
  setTimeout(drawInTurn, 15);
}

/* Paper is white, whatever the screen is, and narrower: A4 and Letter less margins and padding. */
const PAPER = 660, SCALED = 1060; /* page.css scales the wide ones down */
const paperOf = (place) => (place.closest(".at-least-wide") ? SCALED : PAPER);
addEventListener("beforeprint", () => {
  loadPlotly();
  for (const place of places) draw(place);
  applyTheme("light");
  for (const place of places) Plotly.relayout(place, { width: paperOf(place) });
});
addEventListener("afterprint", () => {
  applyTheme();
  for (const place of places) Plotly.relayout(place, { width: null, autosize: true });
});
