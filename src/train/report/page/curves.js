
/* ---- curves ---- */

const view = {group: null, axis: "epoch", smooth: 0, band: true, logx: false, logy: false, find: ""};
const hidden = new Set();
const dashes = ["", "8 4", "2 3", "9 3 2 3"];
const height = 340, left = 58, right = 14, top_ = 10, bottom = 40;

function smoothed(y) {
  if (!view.smooth) return y;
  let sum = 0, weight = 0;
  return y.map(v => {
    if (v === null) return null;
    sum = view.smooth * sum + (1 - view.smooth) * v;
    weight = view.smooth * weight + 1 - view.smooth;
    return sum / weight;
  });
}

/* The mean over seeds at each line, and its extremes. */
function bandOf(parts) {
  const n = Math.max(...parts.map(p => p.x.length)), out = {x: [], y: [], low: [], high: []};
  for (let i = 0; i < n; i++) {
    let count = 0, x = 0, y = 0, low = Infinity, high = -Infinity;
    for (const p of parts) {
      if (i >= p.x.length || p.y[i] === null) continue;
      count++; x += p.x[i]; y += p.y[i];
      low = Math.min(low, p.y[i]); high = Math.max(high, p.y[i]);
    }
    if (!count) continue;
    out.x.push(x / count); out.y.push(y / count); out.low.push(low); out.high.push(high);
  }
  return out;
}

const inView = f => view.group === "all" || (f.group ?? "single") === view.group;

/* What is drawn: {key, name, colour, dash, x, y, low, high}. */
function curvesOf(metric) {
  const list = [];
  for (const f of families.filter(inView)) {
    const look = {colour: `var(--c${f.colour})`, dash: dashes[f.dash]}, name = (view.group === "all" && f.group !== null ? where(f.group) + ": " : "") + f.name;
    const parts = f.runs.filter(r => r.series[metric]).map(r => ({run: r, x: r.series[metric].x[view.axis], y: smoothed(r.series[metric].y)})).filter(p => p.x.length);
    if (parts.length > 1 && view.band) list.push({...look, key: f.key, name: name + " (" + parts.length + " seeds)", ...bandOf(parts)});
    else for (const p of parts) list.push({...look, key: parts.length > 1 ? p.run.path : f.key, name: f.runs.length > 1 ? name + ", seed " + p.run.seed : name, x: p.x, y: p.y});
  }
  return list;
}

/* least: the least distance, 1 where parts of a unit mean nothing. */
function ticks(low, high, log, count, least = 0) {
  const list = [];
  if (log) {
    const decades = Math.log10(high / low), factors = decades > 3 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], skip = Math.ceil(decades / 8);
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      if (e % skip === 0) for (const f of factors) if (f * 10 ** e >= low && f * 10 ** e <= high) list.push(f * 10 ** e);
    return list;
  }
  const rough = Math.max((high - low) / count, least), unit = 10 ** Math.floor(Math.log10(rough)), step = unit * [1, 2, 5, 10].find(f => f * unit >= rough * 0.999);
  for (let k = Math.ceil(low / step), n = 0; k * step <= high * (1 + 1e-12) && n < 50; k++, n++) list.push(Number((k * step).toPrecision(12)));
  return list;
}

function rangeOf(lists, log) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const v of list) if (v !== null && (!log || v > 0)) { if (v < low) low = v; if (v > high) high = v; }
  if (low > high) return null;
  if (low === high) return log ? [low / 2, high * 2] : [low - Math.max(1, Math.abs(low) / 10), high + Math.max(1, Math.abs(high) / 10)];
  const margin = log ? (high / low) ** 0.03 : 0.03 * (high - low);
  return log ? [low / margin, high * margin] : [low - margin, high + margin];
}

/* At most a few points for each pixel: first, least, greatest and last of its column. */
function pathOf(x, y, sx, sy) {
  const text = [];
  let pen = "M", column = null, low = 0, high = 0, last = 0;
  const put = py => { text.push(pen, column, " ", py.toFixed(1)); pen = "L"; };
  const flush = () => {
    if (column === null) return;
    if (low !== high) { put(low); put(high); }
    put(last);
    column = null;
  };
  for (let i = 0; i < x.length; i++) {
    const px = sx(x[i]), py = y[i] === null ? NaN : sy(y[i]);
    if (!(px - px === 0 && py - py === 0)) { flush(); pen = "M"; continue; }
    const here = Math.round(px * 2) / 2;
    if (here !== column) { flush(); column = here; low = high = py; }
    if (py < low) low = py;
    if (py > high) high = py;
    last = py;
  }
  flush();
  return text.join("");
}

function areaOf(c, sx, sy) {
  const there = c.x.map((_, i) => i).filter(i => Number.isFinite(sx(c.x[i])) && Number.isFinite(sy(c.low[i])) && Number.isFinite(sy(c.high[i])));
  const point = (i, y) => sx(c.x[i]).toFixed(1) + " " + sy(y).toFixed(1);
  return there.length ? "M" + there.map(i => point(i, c.high[i])).concat(there.reverse().map(i => point(i, c.low[i]))).join("L") + "Z" : "";
}

function scaleOf(range, log, from, to) {
  const [low, high] = range;
  if (!log) return v => from + (v - low) / (high - low) * (to - from);
  const span = Math.log(high / low);
  return v => v > 0 ? from + Math.log(v / low) / span * (to - from) : NaN;
}

function nearest(x, px, sx) {
  let low = 0, high = x.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (sx(x[middle]) < px) low = middle + 1; else high = middle; }
  return low > 0 && Math.abs(sx(x[low - 1]) - px) <= Math.abs(sx(x[low]) - px) ? low - 1 : low;
}

class Chart {
  constructor(box, at) {
    this.box = box;
    this.at = at;
    this.metric = make("select", {"aria-label": "What is drawn"});
    this.plot = make("div", {class: "plot", tabindex: "0", role: "group"});
    this.tip = make("div", {class: "tip", hidden: ""});
    this.keyed = -1;
    box.replaceChildren(make("div", {class: "top"}, this.metric), this.plot, this.tip);
    this.metric.addEventListener("change", () => { this.draw(); legend(); });
    this.plot.addEventListener("pointermove", e => this.drawn && this.showAt((e.clientX - this.plot.getBoundingClientRect().left)));
    for (const event of ["pointerleave", "blur"]) this.plot.addEventListener(event, () => charts.forEach(c => c.leave()));
    this.plot.addEventListener("keydown", e => this.key(e));
  }

  draw() {
    const width = Math.max(240, this.plot.clientWidth || 600), list = curvesOf(this.metric.value), visible = list.filter(c => !hidden.has(c.key));
    const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, width: "100%", height, "aria-hidden": "true"});
    this.list = list;
    this.drawn = null;
    this.tip.hidden = true;
    this.plot.replaceChildren(svg);
    this.plot.setAttribute("aria-label", `${this.metric.value} over ${$("axis").selectedOptions[0].textContent}, ${plural(visible.length, "curve")}. Arrow keys read values.`);
    const xr = rangeOf(visible.map(c => c.x), view.logx), yr = rangeOf(visible.flatMap(c => [c.y, c.low || [], c.high || []]), view.logy);
    if (!xr || !yr) {
      svg.append(make("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, !list.length ? ["step", "samples"].includes(view.axis) ? "the logs do not say how many steps an epoch has" : "nothing logged yet" : visible.length ? "no value above 0 for a logarithmic axis" : "all curves are hidden"));
      return;
    }
    const sx = scaleOf(xr, view.logx, left, width - right), sy = scaleOf(yr, view.logy, height - bottom, top_);
    for (const v of ticks(xr[0], xr[1], view.logx, width / 75, view.axis === "time" ? 0 : 1))
      svg.append(make("line", {class: "grid", x1: sx(v), x2: sx(v), y1: top_, y2: height - bottom}), make("text", {x: sx(v), y: height - bottom + 17, "text-anchor": "middle"}, short(v)));
    for (const v of ticks(yr[0], yr[1], view.logy, 6))
      svg.append(make("line", {class: "grid", x1: left, x2: width - right, y1: sy(v), y2: sy(v)}), make("text", {x: left - 7, y: sy(v) + 4, "text-anchor": "end"}, short(v)));
    svg.append(make("text", {x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle"}, $("axis").selectedOptions[0].textContent));
    for (const c of visible) if (c.low) {
      const area = make("path", {class: "area", d: areaOf(c, sx, sy), "data-key": c.key});
      area.style.fill = c.colour;
      svg.append(area);
    }
    const thin = visible.length > 30;
    for (const c of visible) {
      const path = make("path", {class: "curve", d: pathOf(c.x, c.y, sx, sy), "data-key": c.key});
      path.style.stroke = c.colour;
      if (thin) path.style.strokeWidth = 1;
      if (c.dash) path.setAttribute("stroke-dasharray", c.dash);
      svg.append(path);
      if (c.x.length === 1) { const dot = make("circle", {cx: sx(c.x[0]), cy: sy(c.y[0]), r: 3.5}); dot.style.fill = c.colour; svg.append(dot); }
    }
    const cross = make("line", {class: "cross", y1: top_, y2: height - bottom, visibility: "hidden"}), dots = make("g", {});
    svg.append(cross, dots);
    this.drawn = {visible, sx, sy, cross, dots, width};
  }

  /* Values of all curves near a place on the x axis, the highest first, and beside the pointer. Other charts show their crosshair. */
  showAt(px, others = true) {
    const {visible, sx, sy, cross, dots, width} = this.drawn;
    const at = visible.filter(c => c.x.length).map(c => ({c, i: nearest(c.x, px, sx)}));
    if (!at.length) return [];
    const best = at.reduce((a, b) => Math.abs(sx(a.c.x[a.i]) - px) <= Math.abs(sx(b.c.x[b.i]) - px) ? a : b), x = best.c.x[best.i];
    cross.setAttribute("x1", sx(x));
    cross.setAttribute("x2", sx(x));
    cross.setAttribute("visibility", "visible");
    const rows = at.filter(a => present(a.c.y[a.i]) && Math.abs(sx(a.c.x[a.i]) - sx(x)) < 24).sort((a, b) => b.c.y[b.i] - a.c.y[a.i]), some = rows.slice(0, 12);
    dots.replaceChildren(...some.filter(a => Number.isFinite(sy(a.c.y[a.i]))).map(a => { const dot = make("circle", {cx: sx(a.c.x[a.i]), cy: sy(a.c.y[a.i]), r: 3.5}); dot.style.fill = a.c.colour; return dot; }));
    if (!others) return [];
    for (const chart of charts) if (chart !== this && chart.drawn) chart.showAt(chart.drawn.sx(x), false);
    const said = a => shown(a.c.y[a.i]) + (a.c.low ? ` (${shown(a.c.low[a.i], 4)} to ${shown(a.c.high[a.i], 4)})` : "");
    this.tip.replaceChildren(make("div", {}, (view.axis === "time" ? "second" : view.axis === "samples" ? "sample" : view.axis) + " " + shown(x, 6)), ...some.map(a => {
      const dot = make("span", {class: "dot"});
      dot.style.background = a.c.colour;
      return make("div", {}, dot, a.c.name, make("b", {}, said(a)));
    }), ...(rows.length > 12 ? [make("div", {}, rows.length - 12 + " more")] : []));
    charts.forEach(c => { c.tip.hidden = c !== this; });
    const offset = this.plot.offsetLeft, place = offset + sx(x) + 12, over = place + this.tip.offsetWidth > offset + width;
    this.tip.style.left = Math.max(4, over ? place - 24 - this.tip.offsetWidth : place) + "px";
    this.tip.style.top = this.plot.offsetTop + 14 + "px";
    return [(view.axis === "time" ? "second" : view.axis === "samples" ? "sample" : view.axis) + " " + shown(x, 6), ...some.map(a => a.c.name + " " + said(a))];
  }

  leave() {
    this.tip.hidden = true;
    if (!this.drawn) return;
    this.drawn.cross.setAttribute("visibility", "hidden");
    this.drawn.dots.replaceChildren();
  }

  key(e) {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(e.key) || !this.drawn) return;
    e.preventDefault();
    const longest = this.drawn.visible.reduce((a, b) => a.x.length >= b.x.length ? a : b).x, last = longest.length - 1;
    this.keyed = e.key === "Home" ? 0 : e.key === "End" ? last : Math.min(last, Math.max(0, this.keyed + (e.key === "ArrowRight" ? 1 : -1)));
    $("said").textContent = this.showAt(this.drawn.sx(longest[this.keyed])).join("; ");
  }
}

const charts = [...document.querySelectorAll(".chart")].map((box, i) => new Chart(box, i));

function drawAll() {
  charts.forEach(c => c.draw());
  legend();
}

/* One box for each curve that any chart has. */
function legend() {
  const kept = document.activeElement?.dataset?.key, all = new Map();
  for (const chart of charts) for (const c of chart.list || []) if (!all.has(c.key)) all.set(c.key, c);
  const list = [...all.values()], wanted = list.filter(c => c.name.toLowerCase().includes(view.find.toLowerCase()));
  $("find-label").hidden = list.length <= 12;
  $("legend").replaceChildren(...wanted.map(c => {
    const box = make("input", {type: "checkbox", "data-key": c.key}), swatch = make("span", {class: "swatch"});
    box.checked = !hidden.has(c.key);
    swatch.style.borderTopColor = c.colour;
    if (c.dash) swatch.style.borderTopStyle = "dashed";
    const label = make("label", {}, box, swatch, c.name);
    const fade = on => document.querySelectorAll(".plot [data-key]").forEach(p => p.classList.toggle("faded", on && p.dataset.key !== c.key));
    label.addEventListener("pointerenter", () => fade(!hidden.has(c.key)));
    label.addEventListener("pointerleave", () => fade(false));
    box.addEventListener("change", () => { if (box.checked) hidden.delete(c.key); else hidden.add(c.key); drawAll(); });
    return label;
  }));
  if (kept !== undefined) [...$("legend").querySelectorAll("input")].find(b => b.dataset.key === kept)?.focus();
  valuesTable();
}

/* The same for readers who cannot see curves. */
function valuesTable() {
  if (!$("values").parentElement.open) return;
  const rows = charts.flatMap(chart => (chart.list || []).filter(c => c.y.some(present)).map(c => {
    const y = c.y.filter(present), good = /loss|seconds/.test(chart.metric.value) ? Math.min : Math.max;
    return [chart.metric.value, c.name, y[y.length - 1], y.reduce((a, b) => good(a, b)), c.x[c.x.length - 1]];
  }));
  $("values").replaceChildren(table(["", "curve", "last", "best", "at " + $("axis").selectedOptions[0].textContent], rows));
}

function curvesPart() {
  $("curves").hidden = data.runs.length === 0;
  const kinds = new Map(data.groups.map(g => [g.path, g.kind])), groups = [...new Set(families.map(f => f.group ?? "single"))];
  const text = g => g === "single" ? (groups.length > 1 ? "single runs" : "all folders") : where(g) + " (" + (kinds.get(g) || "group") + ")";
  const list = groups.map(g => [g, text(g)]);
  if (list.length > 1) list.push(["all", "all folders"]);
  const first = groups.find(g => kinds.get(g) === "comparison") ?? groups[0] ?? "all";
  if (view.group === null || !list.some(([g]) => g === view.group)) view.group = first;
  options($("group"), list, view.group);
  const metrics = [...new Set(data.runs.flatMap(r => Object.keys(r.series)))], texts = data.runs.every(r => r.text);
  const wanted = texts ? [["test loss", "validation loss"], ["train loss", "batch loss"]] : [["test acc", "validation acc", "test loss"], ["train loss", "batch loss", "test loss"]];
  charts.forEach((chart, i) => {
    const before = chart.metric.value;
    options(chart.metric, metrics.map(m => [m, m.replace(/\bacc\b/, "accuracy, %")]), metrics.includes(before) ? before : wanted[i].find(m => metrics.includes(m)) ?? metrics[0]);
  });
  drawAll();
}

for (const id of ["group", "axis"]) $(id).addEventListener("change", () => { view[id] = $(id).value; drawAll(); settingsPart(); });
for (const id of ["band", "logx", "logy"]) $(id).addEventListener("change", () => { view[id] = $(id).checked; drawAll(); });
$("smooth").addEventListener("input", () => { view.smooth = Number($("smooth").value); $("smooth-value").value = view.smooth; drawAll(); });
$("find").addEventListener("input", () => { view.find = $("find").value; legend(); });
$("all").addEventListener("click", () => { hidden.clear(); drawAll(); });
$("none").addEventListener("click", () => { for (const chart of charts) for (const c of chart.list) hidden.add(c.key); drawAll(); });
$("values").parentElement.addEventListener("toggle", valuesTable);
let drawnWidth = 0;
new ResizeObserver(() => requestAnimationFrame(() => {
  const width = charts[0].plot.clientWidth;
  if (data === null || width === drawnWidth) return;
  drawnWidth = width;
  charts.forEach(c => c.draw());
})).observe(charts[0].box);
