
/* ---- runs: a value for every axis at every line of the log ---- */

let data = null;
let families = []; /* runs that differ in their seed alone */

/* A log's line of an epoch says how many steps there were, and config.json how many there will be. Older runs may say neither. null: it
   is not known. */
function stepsPerEpoch(run) {
  const {epoch = [], step = []} = run.epochs;
  for (let i = epoch.length - 1; i >= 0; i--) if (step[i] > 0) return step[i] / epoch[i];
  return run.steps_per_epoch || (run.text && run.config?.train?.["epoch-steps"]) || null;
}

function prepare(run) {
  const train = run.config?.train || {};
  const per = stepsPerEpoch(run), size = (Number(train.batch) || 1) * (Number(train.accumulate) || 1), seconds = [0];
  for (const s of run.epochs.seconds || []) seconds.push(seconds[seconds.length - 1] + (s || 0));
  const timeAt = epoch => {
    const k = Math.min(Math.floor(epoch), seconds.length - 1), next = Math.min(k + 1, seconds.length - 1);
    return seconds[k] + (seconds[next] - seconds[k]) * (epoch - k);
  };
  const axes = epochs => ({epoch: epochs, step: per ? epochs.map(e => e * per) : [], time: epochs.map(timeAt), samples: per ? epochs.map(e => e * per * size) : []});
  run.label ??= train.optim ?? run.optim ?? "run";
  run.seed ??= train.seed ?? 0;
  run.series = Object.create(null); /* names come from the log: one may be __proto__ */
  const byEpoch = axes(run.epochs.epoch || []), steps = run.steps.step || [];
  const byStep = {...axes(per ? steps.map(s => s / per) : []), step: steps, samples: steps.map(s => s * size)};
  for (const [name, y] of Object.entries(run.epochs)) if (!["epoch", "step", "skipped_steps"].includes(name)) run.series[name === "seconds" ? "seconds per epoch" : name.replaceAll("_", " ")] = {x: byEpoch, y};
  for (const [name, y] of Object.entries(run.steps)) if (name === "loss") run.series["batch loss"] = {x: byStep, y};
}

function flat(object, prefix, out) {
  for (const [name, value] of Object.entries(object || {}))
    if (value !== null && typeof value === "object") flat(value, prefix + name + ".", out); else out[prefix + name] = value;
  return out;
}

/* All settings but those that differ between seeds. */
function settingsOf(run) {
  const all = flat(run.config, "", {});
  delete all["train.seed"];
  delete all["train.out"];
  return all;
}

const lastPart = path => where(path).split("/").pop();

function nameOf(family) {
  const first = family.runs[0];
  if (family.group !== null) return first.label;
  if (family.runs.length === 1) return where(first.path);
  let common = family.runs.map(r => r.path).reduce((a, b) => { let n = 0; while (n < a.length && a[n] === b[n]) n++; return a.slice(0, n); });
  common = common.replace(/[-_]?s?$/, "");
  return common || first.label;
}

function findFamilies() {
  const found = new Map();
  for (const run of data.runs) {
    let key = run.group !== null ? "g\n" + run.group + "\n" + run.label : run.config ? "s\n" + JSON.stringify(settingsOf(run)) : "p\n" + run.path;
    if (found.get(key)?.runs.some(r => r.seed === run.seed)) key = "p\n" + run.path;
    if (!found.has(key)) found.set(key, {key, group: run.group, runs: []});
    found.get(key).runs.push(run);
  }
  families = [...found.values()];
  /* those of a comparison in the order of its table */
  const place = new Map(data.groups.map(g => [g.path, (g.table?.rows || []).map(r => r.label)]));
  const order = f => f.group === null ? 0 : place.get(f.group)?.indexOf(f.runs[0].label) ?? 0;
  const groups = new Map();
  for (const f of families) groups.set(f.group, groups.get(f.group) ?? groups.size);
  families.sort((a, b) => groups.get(a.group) - groups.get(b.group) || order(a) - order(b));
  /* the same optimizer has the same colour in every comparison, unless there are more names than colours */
  const known = new Map(), count = new Map();
  for (const f of families) {
    f.name = nameOf(f);
    if (f.group !== null && !known.has(f.name)) known.set(f.name, known.size);
  }
  for (const f of families) {
    const at = count.get(f.group) || 0;
    count.set(f.group, at + 1);
    f.colour = f.group !== null && known.size <= 10 ? known.get(f.name) : at % 10;
    f.dash = Math.floor(at / 10) % 4;
  }
}
