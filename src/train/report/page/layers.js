
/* ---- curvature by layer ---- */

const quantities = {
  mean_square: ["squared norm of the mean activation", "ascending"], damping: ["damping", "ascending"], condition: ["condition number", "ascending"], cosine: ["cosine of step and gradient", "ascending"],
  ratio: ["norm of the step over that of the gradient", "ascending"], events: ["events: statistics dropped, damping raised or doubled, inverse kept", "events"]};
const eventNames = ["dropped", "raised", "doubled", "kept"];
const stops = {ascending: [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], events: [[128, 128, 128, 40], [250, 190, 80], [235, 110, 40], [200, 40, 40], [140, 0, 30]]};

/* A colour of a map, 0 to 1, as [red, green, blue, alpha]. */
function shade(map, s) {
  const list = stops[map], k = Math.min(Math.floor(4 * s), 3), mix = i => (list[k][i] ?? 255) + ((list[k + 1][i] ?? 255) - (list[k][i] ?? 255)) * (4 * s - k);
  return [0, 1, 2, 3].map(i => Math.round(mix(i)));
}

/* Rows of one quantity: by line of the log, then by layer. Events are counted since the start: shown are those since the line before. */
function rowsOf(layers, name) {
  if (name !== "events") return layers[name] || [];
  const total = k => layers.names.map((_, i) => eventNames.reduce((sum, e) => sum + (layers[e]?.[k]?.[i] ?? 0), 0));
  return layers.step.map((_, k) => { const now = total(k), before = k ? total(k - 1) : now.map(() => 0); return now.map((v, i) => Math.max(0, v - before[i])); });
}

function eventText(layers, k, i) {
  return eventNames.map(e => [e, (layers[e]?.[k]?.[i] ?? 0) - (k ? layers[e]?.[k - 1]?.[i] ?? 0 : 0)]).filter(([, n]) => n > 0).map(([e, n]) => n + " " + e).join(", ") || "none";
}

function heatMap(layers, name) {
  const [title, map] = quantities[name], rows = rowsOf(layers, name), names = layers.names, steps = layers.step;
  let low = Infinity, high = -Infinity, positive = true;
  for (const row of rows) for (const v of row) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); positive = positive && v > 0; }
  if (low > high) return null;
  if (low === high) return make("div", {class: "card heat"}, make("h3", {}, title), make("p", {}, map === "events" && high === 0 ? "none" : shown(low) + " in every layer, at every step"));
  const log = positive && high / low > 30, to = v => log ? Math.log(v) : v, share = v => (to(v) - to(low)) / (to(high) - to(low));
  const canvas = make("canvas", {width: steps.length, height: names.length}), image = new ImageData(steps.length, names.length);
  rows.forEach((row, k) => row.forEach((v, i) => { if (v !== null) image.data.set(shade(map, share(v)), 4 * (i * steps.length + k)); }));
  canvas.getContext("2d").putImageData(image, 0, 0);
  const tall = Math.min(420, Math.max(60, names.length * 20)), labels = make("div", {class: "names"}), every = Math.ceil(names.length * 13 / tall);
  canvas.style.height = labels.style.height = tall + "px";
  names.forEach((layer, i) => { if (i % every === 0) labels.append(make("span", {title: layer}, layer)); });
  const bar = make("i", {}), tip = make("div", {class: "tip", hidden: ""});
  bar.style.background = "linear-gradient(90deg, " + [0, .25, .5, .75, 1].map(s => "rgb(" + shade(map, s).map((v, i) => i < 3 ? v : v / 255).join(" ").replace(/ (\S+)$/, " / $1") + ")").join(", ") + ")";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title} of ${plural(names.length, "layer")} from step ${steps[0]} to ${steps[steps.length - 1]}: ${shown(low)} to ${shown(high)}`);
  const box = make("div", {class: "card heat"}, make("h3", {}, title), make("div", {class: "map"}, labels, canvas, make("div", {class: "ends"}, make("span", {}, "step " + steps[0]), make("span", {}, "step " + steps[steps.length - 1]))),
    make("div", {class: "key"}, make("span", {}, shown(low)), bar, make("span", {}, shown(high) + (log ? ", logarithmic" : ""))), tip);
  canvas.addEventListener("pointermove", e => {
    const place = canvas.getBoundingClientRect(), k = Math.min(steps.length - 1, Math.max(0, Math.floor((e.clientX - place.left) / place.width * steps.length))), i = Math.min(names.length - 1, Math.max(0, Math.floor((e.clientY - place.top) / place.height * names.length)));
    tip.replaceChildren(make("div", {}, names[i] + ", step " + steps[k]), make("div", {}, name === "events" ? eventText(layers, k, i) : shown(rows[k][i])));
    tip.hidden = false;
    const outer = box.getBoundingClientRect(), x = e.clientX - outer.left + 14;
    tip.style.left = (x + tip.offsetWidth > outer.width ? x - 28 - tip.offsetWidth : x) + "px";
    tip.style.top = e.clientY - outer.top + 14 + "px";
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  return box;
}

function heats() {
  const run = data.runs.find(r => r.path === $("layer-run").value);
  if (!run?.layers) return;
  $("heats").replaceChildren(...Object.keys(quantities).map(name => heatMap(run.layers, name)).filter(Boolean).sort((a, b) => Boolean(b.querySelector("canvas")) - Boolean(a.querySelector("canvas"))));
  const used = Object.keys(quantities).filter(name => name !== "events" && run.layers[name]?.some(row => row.some(present))), last = run.layers.step.length - 1;
  const total = i => eventNames.map(e => [e, run.layers[e]?.[last]?.[i] ?? 0]).filter(([, n]) => n > 0).map(([e, n]) => n + " " + e).join(", ") || "none";
  $("layer-values").replaceChildren(table(["layer at step " + run.layers.step[last], ...used.map(n => quantities[n][0]), "events in all"], run.layers.names.map((layer, i) => [layer, ...used.map(n => { const v = run.layers[n][last][i]; return v === null ? null : Number(v.toPrecision(4)); }), total(i)])));
}

function layersPart() {
  const observed = data.runs.filter(r => r.layers), before = $("layer-run").value;
  $("layers").hidden = !observed.length;
  options($("layer-run"), observed.map(r => [r.path, where(r.path)]), before);
  heats();
}

$("layer-run").addEventListener("change", heats);
