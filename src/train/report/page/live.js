
/* ---- new lines of a log, as the C code reads them ---- */

const layerQuantities = ["mean_square", "damping", "condition", "cosine", "ratio", "dropped", "raised", "doubled", "kept"];
const isNumber = v => typeof v === "number" && Number.isFinite(v);

function addRow(series, object) {
  const rows = Object.values(series)[0]?.length ?? 0;
  for (const [name, value] of Object.entries(object)) {
    if (!isNumber(value) || (!Object.hasOwn(series, name) && Object.keys(series).length >= 24)) continue;
    if (!Object.hasOwn(series, name)) Object.defineProperty(series, name, {value: new Array(rows).fill(null), enumerable: true, configurable: true, writable: true});
    series[name].push(value);
  }
  for (const list of Object.values(series)) while (list.length <= rows) list.push(null);
}

function addLayers(run, step, list) {
  if (run.layer_lines++ % run.layer_stride !== 0 || !list.length) return;
  run.layers ??= {names: list.map(m => String(m?.layer ?? "?") + (m?.group > 0 ? ` [${m.group}]` : "")), step: [], ...Object.fromEntries(layerQuantities.map(q => [q, []]))};
  if (list.length !== run.layers.names.length) return;
  run.layers.step.push(step);
  for (const q of layerQuantities) run.layers[q].push(list.map(m => isNumber(m?.[q]) ? m[q] : null));
}

function addLine(run, line) {
  let object = null;
  try { object = JSON.parse(line); } catch { /* counted below */ }
  const plain = object !== null && typeof object === "object" && !Array.isArray(object), epoch = plain ? object.epoch : null, step = plain ? object.step : null;
  if (isNumber(epoch) && epoch >= 1) {
    run.epochs_done = epoch;
    const part = run.validation ? "validation" : "test";
    run.acc = object[part + "_acc"] ?? null;
    run.loss = object[part + "_loss"] ?? null;
    addRow(run.epochs, object);
  } else if (!isNumber(step) || step < 0) {
    run.damaged_lines++;
  } else if (Array.isArray(object.layers)) {
    addLayers(run, step, object.layers);
  } else if (run.step_lines++ % run.step_stride === 0) {
    addRow(run.steps, object);
  }
}

/* ---- the server of `abar serve` ---- */

const token = new URLSearchParams(location.search).get("token");
const pause = ms => new Promise(done => setTimeout(done, ms));
let stamp = null; /* of what the page shows */
const pieces = 64, longest = 4 << 20; /* pieces of a log in one go; bytes of a line */

async function ask(path) {
  const answer = await fetch(path, {cache: "no-store", headers: token ? {Authorization: "Bearer " + token} : {}});
  if (!answer.ok) throw new Error(path + ": " + answer.status);
  return answer;
}

/* Whole lines from the byte on that the page has already; true: there were some. A line may come in several pieces. */
async function fetchLines(run, log) {
  let kept = new Uint8Array(0), any = false;
  for (let i = 0; i < pieces && run.log_bytes + kept.length < log.bytes; i++) {
    const piece = new Uint8Array(await (await ask("log/" + log.id + "?from=" + (run.log_bytes + kept.length))).arrayBuffer());
    if (!piece.length) break;
    const bytes = new Uint8Array(kept.length + piece.length);
    bytes.set(kept);
    bytes.set(piece, kept.length);
    const end = bytes.lastIndexOf(10) + 1;
    kept = bytes;
    if (end === 0 && bytes.length < longest) continue;
    if (end === 0) run.damaged_lines++;
    else for (const line of new TextDecoder().decode(bytes.subarray(0, end)).split("\n")) if (line) addLine(run, line);
    run.log_bytes += end || bytes.length;
    kept = bytes.subarray(end || bytes.length);
    any = true;
  }
  return any;
}

async function poll() {
  const now = await (await ask("poll")).json();
  const known = new Map(data.runs.map(r => [r.path, r]));
  if (now.stamp !== stamp || now.logs.some(l => !known.has(l.path) || l.bytes < known.get(l.path).log_bytes)) {
    show(await (await ask("data")).json());
    stamp = data.live;
    return;
  }
  let changed = false;
  for (const log of now.logs) {
    const run = known.get(log.path);
    if (log.bytes <= run.log_bytes || !await fetchLines(run, log)) continue;
    prepare(run);
    changed = true;
  }
  if (changed) {
    drawAll();
    layersPart();
    runsPart();
  }
}

async function follow() {
  $("kind").textContent = "live";
  stamp = data.live;
  $("live").hidden = false;
  for (;;) {
    try {
      await poll();
      $("live").textContent = "live";
      $("live").className = "badge finished";
    } catch (error) {
      $("live").textContent = "no answer from abar serve";
      $("live").className = "badge damaged";
    }
    await pause(document.hidden ? 5000 : 1000);
  }
}
