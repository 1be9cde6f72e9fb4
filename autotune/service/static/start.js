"use strict";
// The form that starts a study; the list of knobs comes from the catalogue.
const form = document.getElementById("start");
const knob = document.getElementById("knob");
const value = document.getElementById("value");
const settings = document.getElementById("settings");
function known(name) {
  return [...document.querySelectorAll("#knobs option")].find(o => o.value === name);
}
knob.addEventListener("change", () => {
  const option = known(knob.value);
  document.getElementById("about").textContent = option ? `${option.dataset.summary} (${option.dataset.domain})` : "";
  const values = document.getElementById("values");
  values.replaceChildren();
  if (option && option.dataset.domain.includes("|")) {
    for (const text of option.dataset.domain.split(" | ")) values.append(new Option(text, text));
  }
});
document.getElementById("fix").addEventListener("click", () => {
  if (!known(knob.value)) { problem(`no knob ${knob.value}`); return; }
  problem("");
  const item = document.createElement("li");
  const text = document.createElement("code");
  text.textContent = `${knob.value}=${value.value}`;
  const remove = document.createElement("button");
  remove.type = "button";
  remove.className = "quiet";
  remove.textContent = "remove";
  remove.addEventListener("click", () => item.remove());
  item.append(text, " ", remove);
  settings.append(item);
  knob.value = value.value = "";
});
const lines = text => text.split("\n").map(t => t.trim()).filter(Boolean);
form.addEventListener("submit", async event => {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(form));
  const body = { settings: [...settings.querySelectorAll("code")].map(c => c.textContent) };
  for (const key of ["model", "task", "runner", "goal", "strategy", "budget", "study"]) if (given[key]) body[key] = given[key];
  for (const key of ["trials", "price", "seed"]) if (given[key]) body[key] = Number(given[key]);
  for (const key of ["limits", "only", "exclude", "options", "faults"]) if (given[key]) body[key] = lines(given[key]);
  const button = form.querySelector("button:not([type=button])");
  button.disabled = true;
  try {
    const created = await call("POST", "/api/studies", body);
    location.href = `/studies/${encodeURIComponent(created.name)}`;
  } catch (error) {
    problem(error.message);
    button.disabled = false;
  }
});
