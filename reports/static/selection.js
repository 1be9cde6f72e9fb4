/* Linked selection: one trial, seen in every chart, in the panel and in the table. */
const trials = dataOf("trials-data");
const rowOf = new Map(trials.number.map((number, row) => [number, row]));
const pointOf = new Map();
for (const group of view.points.trials) for (const number of group) pointOf.set(number, group[0]);
const selection = { number: null, point: null };
const panel = document.getElementById("selection");
const decoded = (column, row) => (column.index[row] < 0 ? null : column.values[column.index[row]]);

function configurationOf(row) {
  const knobs = { ...trials.constant };
  for (const [name, column] of Object.entries(trials.knobs)) {
    const value = decoded(column, row);
    if (value !== null) knobs[name] = value;
  }
  return knobs;
}

const quoted = (word) => (/^[\w.@%+=:,/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

function select(number, focus = false) {
  const row = rowOf.get(Number(number));
  if (row === undefined) return;
  selection.number = Number(number);
  selection.point = pointOf.get(selection.number) ?? selection.number;
  showPanel(row);
  for (const listener of listeners.select) listener();
  if (focus) { panel.parentElement.scrollIntoView({ block: "start" }); panel.focus({ preventScroll: true }); }
}

function showPanel(row) {
  const number = trials.number[row], status = decoded(trials.status, row);
  panel.replaceChildren(
    make("h3", {}, `Trial ${number}`),
    make("p", { class: "faint" }, outside(decoded(trials.stage, row)), ` · ${status} · ${decoded(trials.depth, row)}${decoded(trials.kind, row) === "front" ? " · on the front" : ""}`),
  );
  const reason = decoded(trials.reason, row);
  if (reason) panel.append(make("p", {}, outside(reason)));
  const detail = decoded(trials.detail, row);
  if (detail) panel.append(make("details", {}, make("summary", {}, "Last lines of the log"), make("pre", { class: "log" }, detail)));
  panel.append(make("div", { class: "three" }, metricList(row), differencePart(row), make("div", {}, ...commandPart(row), ...samplePart(number))));
  for (const notice of trials.notices[number] ?? []) panel.append(make("p", { class: "note" }, outside(notice)));
}

const limitKept = (limit, value) => ({ "<=": value <= limit.value, ">=": value >= limit.value, "<": value < limit.value, ">": value > limit.value })[limit.op];

function metricList(row) {
  const list = make("dl");
  for (const [metric, values] of Object.entries(trials.metrics)) {
    if (values[row] === null) continue;
    const limit = trials.limits.find((l) => l.metric === metric);
    list.append(make("dt", {}, outside(view.units[metric]?.label ?? metric)), make("dd", {}, quantity(metric, values[row])));
    if (limit) list.append(make("dt", { class: "limit" }, `limit ${signOf(limit.op)} ${quantity(metric, limit.value)}`), make("dd", { class: limitKept(limit, values[row]) ? "" : "broken" }, limitKept(limit, values[row]) ? "kept" : "broken"));
  }
  list.append(make("dt", {}, "Took"), make("dd", {}, `${shortNumber(trials.seconds[row], 3)} s`));
  return list;
}

function differencePart(row) {
  const part = make("div"), list = make("ul"), names = Object.keys(trials.baselines);
  if (!names.length) return part;
  const picker = make("select", { "aria-label": "Baseline of the difference" });
  for (const name of ["common_practice", "default"]) if (names.includes(name)) picker.append(make("option", { value: name }, view.baselines[name]));
  picker.value = view.baseline ?? picker.options[0].value;
  const fill = () => {
    view.baseline = picker.value;
    const base = trials.baselines[picker.value], knobs = configurationOf(row);
    const lines = Object.keys(knobs).filter((k) => base[k] !== knobs[k]).map((k) => make("li", {}, outside(k, "code"), " ", make("code", { class: "old" }, knobText(base[k])), " → ", make("code", { class: "new" }, knobText(knobs[k]))));
    list.replaceChildren(...(lines.length ? lines : [make("li", { class: "faint" }, "no difference")]));
  };
  picker.addEventListener("change", fill);
  fill();
  part.append(make("p", { class: "pick" }, "Changed from ", picker), list);
  return part;
}

function commandPart(row) {
  const number = trials.number[row], study = quoted(trials.study);
  const parts = [];
  for (const line of [`autotune replay ${study} ${number}`, `autotune export ${study} --trial ${number} --format yaml`]) {
    parts.push(make("div", { class: "command" }, make("code", {}, line), make("button", { type: "button", class: "button copy", "data-copy": line, "aria-label": `Copy ${line}` }, "Copy")));
  }
  const folder = `${decoded(trials.folder.parent, row) ?? ""}/${trials.folder.name[row]}`;
  if (folder !== "/") parts.push(make("p", { class: "note" }, "Folder ", make("code", {}, folder)));
  return parts;
}

function samplePart(number) {
  const kept = trials.samples[number];
  if (!kept) return [make("p", { class: "note" }, "No samples in this page.")];
  return Object.entries(kept).slice(0, 4).map(([metric, values]) => sampleStrip(metric, values));
}

/* Each sample a dot on a line, the median marked. */
function sampleStrip(metric, values) {
  const sorted = [...values].sort((a, b) => a - b), low = sorted[0], high = sorted.at(-1);
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  const space = "http" + "://www.w3.org/2000/svg", at = (v) => 8 + (high > low ? (v - low) / (high - low) : 0.5) * 284;
  const node = (tag, attributes, text = "") => {
    const made = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const svg = node("svg", { viewBox: "0 0 300 46", role: "img", "aria-label": `${values.length} samples` });
  svg.append(node("line", { class: "axis-line", x1: 8, x2: 292, y1: 18, y2: 18 }), node("line", { class: "median-line", x1: at(median), x2: at(median), y1: 6, y2: 30 }));
  values.forEach((v, i) => svg.append(node("circle", { class: "sample", cx: at(v), cy: 18 + 5 * Math.sin(i * 2.4), r: 4 })));
  svg.append(node("text", { x: 8, y: 43 }, quantity(metric, low)), node("text", { x: 292, y: 43, "text-anchor": "end" }, quantity(metric, high)));
  const words = make("p", { class: "note" }, outside(view.units[metric]?.label ?? metric), `: ${values.length} samples, median ${quantity(metric, median)}`);
  return make("div", {}, words, svg);
}

/* By keyboard: the front and the baselines in a list. */
const choose = document.getElementById("choose") ?? make("select");
for (const [kind, words] of [["front", "front"]]) {
  trials.number.forEach((number, row) => {
    if (decoded(trials.kind, row) !== kind || (pointOf.get(number) ?? number) !== number) return;
    choose.append(make("option", { value: number }, `trial ${number} · ${number === trials.best ? "best" : words} · ${quantity(trials.objectives[0].metric, trials.metrics[trials.objectives[0].metric][row])}`));
  });
}
choose.addEventListener("change", () => { if (choose.value) select(choose.value); });
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-select]");
  if (button) select(button.dataset.select, true);
});
