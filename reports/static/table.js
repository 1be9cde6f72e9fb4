/* The table of all trials: sorted, filtered, a page at a time; and the CSV file of what is shown. */
const PAGE = 25;
const table = document.getElementById("trials-table");
const box = (id) => document.getElementById(id);
const state = { sort: trials.objectives[0].metric, down: trials.objectives[0].direction === "max", page: 0, only: null };

const fixed = [
  { name: "number", label: "trial", end: true, get: (row) => trials.number[row] },
  { name: "stage", label: "stage", get: (row) => decoded(trials.stage, row) },
  { name: "status", label: "status", get: (row) => decoded(trials.status, row) },
];
const metricColumns = Object.entries(trials.metrics).map(([name, values]) => ({
  name, label: view.units[name]?.title ?? name, end: true, get: (row) => values[row],
  show: (row) => (values[row] === null ? "–" : shortNumber(values[row] * (view.units[name]?.scale ?? 1))),
}));
const late = [
  { name: "seconds", label: "took (s)", end: true, get: (row) => trials.seconds[row] },
  { name: "depth", label: "depth", get: (row) => decoded(trials.depth, row) },
  { name: "reason", label: "reason", get: (row) => decoded(trials.reason, row) },
];
const knobColumns = Object.entries(trials.knobs).map(([name, column]) => ({ name, label: name, get: (row) => decoded(column, row) }));
const rank = (column) => { const place = view.important.indexOf(column.name); return place < 0 ? 99 : place; };
knobColumns.sort((a, b) => rank(a) - rank(b));
const everything = [...fixed, ...metricColumns, ...late, ...knobColumns];

function columns() {
  const asked = new Set([...trials.objectives, ...trials.limits].map((o) => o.metric));
  if (box("all-columns").checked) return everything;
  return [...fixed, ...metricColumns.filter((c) => asked.has(c.name)), ...knobColumns.slice(0, 6), ...late];
}

/* A term is a word, or NAME=VALUE, NAME>NUMBER and the like. All must hold. */
function testOf(term) {
  const match = term.match(/^([^\s<>=!]+)(<=|>=|!=|=|<|>)(.*)$/);
  const column = match && everything.find((c) => c.name.toLowerCase() === match[1].toLowerCase());
  if (!column) {
    const word = term.toLowerCase();
    return (row) => everything.some((c) => String(c.get(row) ?? "").toLowerCase().includes(word));
  }
  const [, , op, wanted] = match, number = Number(wanted);
  return (row) => {
    const value = column.get(row);
    if (op === "=" || op === "!=") return (String(value ?? "").toLowerCase() === wanted.toLowerCase()) === (op === "=");
    if (typeof value !== "number" || Number.isNaN(number)) return false;
    return { "<": value < number, ">": value > number, "<=": value <= number, ">=": value >= number }[op];
  };
}

function matching() {
  const tests = box("filter").value.trim().split(/\s+/).filter(Boolean).map(testOf);
  const stage = box("filter-stage").value, status = box("filter-status").value;
  if (stage) tests.push((row) => decoded(trials.stage, row) === stage);
  if (status) tests.push((row) => decoded(trials.status, row) === status);
  if (state.only) tests.push((row) => state.only.has(pointOf.get(trials.number[row]) ?? trials.number[row]));
  return [...trials.number.keys()].filter((row) => tests.every((test) => test(row)));
}

/* Unknown values go last, whichever way the column is sorted. */
function sorted(rows) {
  const column = everything.find((c) => c.name === state.sort), way = state.down ? -1 : 1;
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  return rows.sort((a, b) => {
    const x = column.get(a) ?? null, y = column.get(b) ?? null;
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    return way * compare(x, y) || a - b;
  });
}

let shown = [];
function render() {
  shown = sorted(matching());
  state.page = Math.min(state.page, Math.max(0, Math.ceil(shown.length / PAGE) - 1));
  renderHead();
  renderPage();
}

function renderHead() {
  const head = make("tr");
  for (const column of columns()) {
    const cell = make("th", { scope: "col", class: column.end ? "end" : "" }, make("button", { type: "button", "data-sort": column.name }, outside(column.label)));
    if (column.name === state.sort) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    head.append(cell);
  }
  table.tHead.replaceChildren(head);
}

function renderPage() {
  const from = state.page * PAGE, part = shown.slice(from, from + PAGE), wanted = columns();
  table.tBodies[0].replaceChildren(...part.map((row) => {
    const line = make("tr", { "data-row": row, class: trials.number[row] === selection.number ? "chosen" : "" });
    for (const column of wanted) {
      const text = column.show ? column.show(row) : knobText(column.get(row));
      const cell = make("td", { class: column.end ? "end" : "" });
      if (column.name === "number") cell.append(make("button", { type: "button", class: "link", "data-select": text, "aria-label": `Show trial ${text}` }, text));
      else { cell.append(outside(text)); if (text.length > 30) cell.title = text; }
      line.append(cell);
    }
    return line;
  }));
  const total = trials.number.length;
  box("page-words").textContent = shown.length ? `${from + 1} – ${from + part.length} of ${shown.length.toLocaleString("en-US")}${shown.length < total ? ` (${total.toLocaleString("en-US")} in all)` : ""}` : "no trial matches";
  box("previous").disabled = state.page === 0;
  box("next").disabled = from + PAGE >= shown.length;
}

/* Spreadsheets run cells that begin like a formula, so text of that kind gets an apostrophe. */
function cellText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r;]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvText(rows) {
  const wanted = [...everything, { name: "folder", get: (row) => `${decoded(trials.folder.parent, row) ?? ""}/${trials.folder.name[row]}` }];
  wanted.push({ name: "log_tail", get: (row) => decoded(trials.detail, row) });
  const lines = [wanted.map((c) => cellText(c.name)).join(",")];
  for (const row of rows) lines.push(wanted.map((c) => cellText(c.get(row))).join(","));
  return lines.join("\r\n") + "\r\n";
}

for (const [id, column] of [["filter-stage", trials.stage], ["filter-status", trials.status]]) {
  for (const value of column.values) box(id).append(make("option", { value }, value));
  box(id).addEventListener("change", () => { state.page = 0; render(); });
}
let typing;
box("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { state.page = 0; render(); }, 120); });
box("all-columns").addEventListener("change", render);
box("previous").addEventListener("click", () => { state.page--; renderPage(); });
box("next").addEventListener("click", () => { state.page++; renderPage(); });
box("csv").addEventListener("click", () => saveText("trials.csv", csvText(shown), "text/csv"));
table.addEventListener("click", (event) => {
  const sort = event.target.closest("[data-sort]")?.dataset.sort;
  if (sort) {
    state.down = sort === state.sort ? !state.down : false;
    state.sort = sort;
    render();
    table.querySelector(`[aria-sort] button`)?.focus();
    return;
  }
  const row = event.target.closest("tr")?.dataset.row;
  if (row !== undefined && !event.target.closest("button")) select(trials.number[row]);
});
listeners.select.push(() => {
  for (const line of table.tBodies[0].rows) line.classList.toggle("chosen", trials.number[line.dataset.row] === selection.number);
});
function showOnly(numbers) { state.only = numbers; state.page = 0; render(); }

render();
if (trials.best !== null) select(trials.best);
