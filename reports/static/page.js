"use strict";
/* What all parts of the page share: data blocks, theme, copying, saving. */
const dataOf = (id) => JSON.parse(document.getElementById(id).textContent);
const view = dataOf("view-data");
const listeners = { theme: [], select: [], first: [], drawn: [] };

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* Outside text: isolated, so that its direction of writing ends with it. */
const outside = (text, tag = "bdi") => make(tag, {}, String(text));

/* At least `digits` significant figures; the whole part is never rounded away. */
function shortNumber(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size >= 15 || size < -4) return value.toExponential(digits - 1);
  return value.toLocaleString("en-US", { maximumFractionDigits: Math.max(0, digits - 1 - size) });
}

function quantity(metric, value) {
  const unit = view.units[metric];
  if (value === null || value === undefined) return "–";
  return unit ? `${shortNumber(value * unit.scale)} ${unit.unit}`.trim() : shortNumber(value);
}

function knobText(value) {
  if (value === null || value === undefined) return "–";
  return String(value);
}

/* Theme: the reader's choice wins over the system's; print is always light. */
const system = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
const isDark = () => (chosenTheme ?? (system.matches ? "dark" : "light")) === "dark";
function applyTheme(theme = isDark() ? "dark" : "light") {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  for (const listener of listeners.theme) listener(theme === "dark");
}
document.getElementById("theme").addEventListener("click", () => {
  chosenTheme = isDark() ? "light" : "dark";
  applyTheme();
});
system.addEventListener("change", () => applyTheme());
document.getElementById("print").addEventListener("click", () => window.print());

const signs = { "<=": "≤", ">=": "≥" };
const signOf = (op) => signs[op] ?? op;

/* Copying: file:// pages may lack the clipboard interface, the old way works there. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { "aria-hidden": "true", style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function saveText(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) {
    await copyText(button.dataset.copy);
    const words = button.textContent;
    if (button.classList.contains("done")) return;
    button.textContent = "Copied";
    button.classList.add("done");
    setTimeout(() => { button.textContent = words; button.classList.remove("done"); }, 1500);
  }
  if (button.dataset.save) saveText(button.dataset.save, button.dataset.text, "application/yaml");
});

/* The section in view is marked in the navigation. */
const links = new Map([...document.querySelectorAll(".sections a")].map((a) => [a.hash.slice(1), a]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.classList.remove("here");
    links.get(entry.target.id)?.classList.add("here");
  }
}, { rootMargin: "-70px 0px -70% 0px" });
for (const section of document.querySelectorAll("main section")) watcher.observe(section);
