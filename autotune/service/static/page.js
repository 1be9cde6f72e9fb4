"use strict";
// Shared by every page: calls to the API, and showing why one was refused.
async function call(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const detail = data.detail;
    throw new Error(Array.isArray(detail) ? detail.map(d => `${d.loc.slice(1).join(".")}: ${d.msg}`).join("; ") : detail || answer.statusText);
  }
  return data;
}
function problem(text) {
  const place = document.getElementById("problem");
  place.textContent = text || "";
  place.hidden = !text;
}
