"use strict";
// Watches one study: server-sent events in, numbers and two charts out.
const study = document.getElementById("study").dataset;
const base = `/api/studies/${encodeURIComponent(study.name)}`;
const trials = [];
const begun = Date.now();
const better = (a, b) => study.direction === "max" ? a > b : a < b;
const show = (id, text) => { document.getElementById(id).textContent = text; };
const short = n => n === null || n === undefined ? "–" : Number(n).toLocaleString("en", { maximumSignificantDigits: 5 });
let drawing = 0;

function setState(state) {
  const place = document.getElementById("state");
  place.textContent = state;
  place.className = `state ${state}`;
  document.getElementById("stop").disabled = !["running", "queued"].includes(state);
  document.getElementById("resume").disabled = !["interrupted", "failed"].includes(state);
  document.getElementById("delete").disabled = state === "running";
}
function best() {
  let top = null;
  for (const t of trials) {
    const v = t.metrics[study.metric];
    if (t.status === "COMPLETE" && v !== null && v !== undefined && (top === null || better(v, top))) top = v;
  }
  return top;
}
function numbers() {
  show("done", trials.length);
  show("top", short(best()));
  const failed = {};
  for (const t of trials) if (t.status !== "COMPLETE") failed[t.status] = (failed[t.status] || 0) + 1;
  show("failed", Object.entries(failed).map(([k, n]) => `${n} ${k}`).join(", ") || "0");
  const power = trials.map(t => t.metrics.average_power_watts).filter(p => p).pop();
  show("gpu", power ? `${short(power)} W` : "–");
  const shares = [];
  if (study.trials) shares.push(trials.length / Number(study.trials));
  if (study.seconds) shares.push(trials.reduce((s, t) => s + t.wall_seconds, 0) / Number(study.seconds));
  document.getElementById("progress").value = Math.min(1, Math.max(0, ...shares));
}
function row(t) {
  const tr = document.createElement("tr");
  for (const [text, number] of [[t.number, 1], [t.label ? `${t.stage} · ${t.label}` : t.stage], [t.status], [short(t.metrics[study.metric]), 1], [short(t.wall_seconds), 1], [t.failure]]) {
    const td = document.createElement("td");
    td.textContent = text;
    if (number) td.className = "number";
    tr.append(td);
  }
  return tr;
}
// What no other trial beats in both, from the cheapest on; the second is memory (less) or speed (more).
function frontier(both, other) {
  const cheaper = other === "peak_memory_bytes" ? (a, b) => a < b : (a, b) => a > b;
  const sorted = [...both].sort((a, b) => cheaper(a.metrics[other], b.metrics[other]) ? -1 : cheaper(b.metrics[other], a.metrics[other]) ? 1 : better(a.metrics[study.metric], b.metrics[study.metric]) ? -1 : 1);
  const kept = [];
  for (const t of sorted) if (!kept.length || better(t.metrics[study.metric], kept[kept.length - 1].metrics[study.metric])) kept.push(t);
  return kept;
}
function layout(x, y) {
  const css = getComputedStyle(document.body);
  const line = css.getPropertyValue("--line");
  return { margin: { l: 64, r: 16, t: 24, b: 64 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: css.color, family: "system-ui" }, xaxis: { title: { text: x }, gridcolor: line, zeroline: false }, yaxis: { title: { text: y }, gridcolor: line, zeroline: false }, showlegend: false };
}
function draw() {
  drawing = 0;
  if (typeof Plotly === "undefined") return;
  const good = trials.filter(t => t.status === "COMPLETE" && typeof t.metrics[study.metric] === "number");
  let top = null;
  const running = good.map(t => { const v = t.metrics[study.metric]; if (top === null || better(v, top)) top = v; return top; });
  const options = { displayModeBar: false, responsive: true };
  Plotly.react("history", [
    { x: good.map(t => t.number), y: good.map(t => t.metrics[study.metric]), mode: "markers", marker: { color: "#8a94a3", size: 7 }, hovertemplate: "trial %{x}: %{y:.5g}<extra></extra>" },
    { x: good.map(t => t.number), y: running, mode: "lines", line: { shape: "hv", color: "#0b62c4", width: 2.5 }, hoverinfo: "skip" }], layout("trial", study.metric), options);
  const other = study.metric === "peak_memory_bytes" ? "tokens_per_second" : "peak_memory_bytes";
  const both = good.filter(t => typeof t.metrics[other] === "number");
  const edge = frontier(both, other);
  Plotly.react("front", [{ x: both.map(t => t.metrics[other]), y: both.map(t => t.metrics[study.metric]), text: both.map(t => `trial ${t.number}`), mode: "markers", marker: { size: 9, color: "#c66a00" }, hovertemplate: "%{text}: %{y:.5g} at %{x:.4g}<extra></extra>" },
    { x: edge.map(t => t.metrics[other]), y: edge.map(t => t.metrics[study.metric]), mode: "lines", line: { shape: "hv", color: "#0b62c4", width: 2.5 }, hoverinfo: "skip" }], layout(other, study.metric), options);
}
function add(t) {
  trials.push(t);
  const latest = document.getElementById("latest");
  latest.prepend(row(t));
  while (latest.children.length > 15) latest.lastChild.remove();
  numbers();
  if (!drawing) drawing = setTimeout(draw, 250);
}
function watch() {
  const events = new EventSource(`${base}/events`);
  events.addEventListener("trial", e => add(JSON.parse(e.data)));
  events.addEventListener("state", e => {
    const { state } = JSON.parse(e.data);
    setState(state);
    if (["finished", "failed", "interrupted"].includes(state)) events.close();
  });
  // The browser reconnects by itself and the server starts over: so do we.
  events.addEventListener("open", () => { trials.length = 0; document.getElementById("latest").replaceChildren(); });
}
for (const [id, method, path] of [["stop", "POST", "/stop"], ["resume", "POST", "/resume"], ["delete", "DELETE", ""]]) {
  document.getElementById(id).addEventListener("click", async () => {
    try {
      problem("");
      const done = await call(method, base + path);
      if (id === "delete") location.href = "/";
      else { setState(done.state); if (id === "resume") watch(); }
    } catch (error) { problem(error.message); }
  });
}
setState(study.state);
numbers();
watch();
