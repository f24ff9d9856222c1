
"use strict";
/* Elements and numbers. Everything that comes from a run becomes a text node or an attribute value, never markup. */
const $ = id => document.getElementById(id);
const drawnTags = new Set(["svg", "path", "line", "text", "rect", "g", "circle"]);

function make(tag, attributes, ...children) {
  const node = drawnTags.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children.flat()) if (child !== null && child !== "") node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return node;
}

function shown(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return String(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(Math.max(digits, Math.min(7, Math.floor(Math.log10(size)) + 1)))));
}

/* Large numbers of an axis: 250 k */
function short(value) {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]])
    if (size >= unit) return shown(value / (name === " k" ? 1e3 : unit), 4) + name;
  return shown(value);
}

const plural = (n, one, many = one + "s") => n + " " + (n === 1 ? one : many);
const mean = list => list.reduce((a, b) => a + b, 0) / list.length;
const present = v => v !== null && v !== undefined && !Number.isNaN(v);
/* Losses as any number; accuracies in percent as in a terminal, with two decimals. */
const result = (value, text) => text || !present(value) ? shown(value) : value.toFixed(2);
const where = path => path === "" ? "(this folder)" : path;

/* Cells are texts, numbers or elements; best: column -> row to emphasise; wide: columns whose text may break */
function table(head, rows, best = {}, wide = []) {
  const numeric = head.map((_, j) => rows.some(row => typeof row[j] === "number"));
  const decimals = head.map((_, j) => rows.map(row => typeof row[j] === "number" ? shown(row[j]) : "").reduce((most, t) => /e|^-?\d+$/.test(t) ? most : Math.max(most, (t.split(".")[1] || "").length), 0));
  const number = (v, j) => Math.abs(v) < 1e6 && (v === 0 || Math.abs(v) >= 1e-4) ? v.toFixed(Math.min(decimals[j], 4)) : shown(v);
  const body = rows.map((row, i) => make("tr", {}, row.map((cell, j) => {
    const classes = [numeric[j] ? "n" : "", best[j] === i ? "best" : "", wide.includes(j) ? "wide" : ""].filter(Boolean).join(" ");
    return make("td", classes ? {class: classes} : {}, cell instanceof Node ? cell : typeof cell === "number" ? number(cell, j) : shown(cell));
  })));
  return make("table", {}, make("thead", {}, make("tr", {}, head.map((h, j) => make("th", {class: numeric[j] ? "n" : "", scope: "col"}, h)))), make("tbody", {}, body));
}

const scroll = node => make("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": "table"}, node);
const badge = state => make("span", {class: "badge " + state}, state);

function options(select, list, chosen) {
  select.replaceChildren(...list.map(([value, text]) => make("option", {value}, text)));
  if (list.some(([value]) => value === chosen)) select.value = chosen;
}

function section(id, title, ...children) {
  $(id).hidden = children.flat().length === 0;
  $(id).replaceChildren(make("h2", {}, title), ...children.flat());
}
