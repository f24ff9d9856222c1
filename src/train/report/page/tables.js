
/* ---- comparisons ---- */

const partOf = rows => rows.some(r => "validation_loss" in r) ? "validation" : "test";
const judgedOf = group => group.text ? "loss" : "acc";
const bestRow = (values, low) => values.reduce((best, v, i) => !present(v) ? best : best < 0 || (low ? v < values[best] : v > values[best]) ? i : best, -1);
const spread = (value, std, text) => result(value, text) + (present(std) ? " ± " + (text ? shown(std, 2) : std.toFixed(2)) : "");

function resultsTable(group) {
  const rows = group.table.rows, part = partOf(rows), judged = judgedOf(group), has = name => rows.some(r => present(r[name]));
  const columns = [
    ["optimizer", r => r.label], ["seeds", r => r.runs], [part + (group.text ? " loss" : " accuracy, %"), r => r[part + "_" + judged]], ["±", r => { const std = r[part + "_" + judged + "_std"]; return present(std) ? Number(group.text ? std.toPrecision(2) : std.toFixed(2)) : null; }],
    ["best epoch's", r => r["best_" + judged]], ["train loss", r => r.train_loss], ["ms per step", r => r.ms_per_step], ["time ratio", r => present(r.time_ratio) ? Number(r.time_ratio.toFixed(2)) : null],
    ["memory, MiB", r => r.memory_bytes ? Number((r.memory_bytes / 1048576).toPrecision(3)) : null], ["failed", r => r.failures || null]];
  if (has("reached") || has("never")) columns.push([group.target ? group.target + " reached" : "target reached", r => (r.reached || 0) + " of " + ((r.reached || 0) + (r.never || 0))], ["after epochs", r => r.target_epochs], ["steps", r => r.target_steps], ["seconds", r => r.target_seconds]);
  const used = columns.filter(([, get]) => rows.some(r => present(get(r)))), cells = rows.map(r => used.map(([, get]) => { const v = get(r); return typeof v === "number" && !Number.isInteger(v) ? Number(v.toPrecision(4)) : v ?? null; }));
  return table(used.map(c => c[0]), cells, {[used.findIndex(c => c[0].startsWith(part))]: bestRow(rows.map(r => r[part + "_" + judged]), group.text)});
}

/* Intervals on one scale: what is left of the dashed line or right of it as a whole is told apart. */
function forest(pair, reach) {
  const wide = 170, at = v => Math.min(wide, Math.max(0, wide / 2 + v / reach * (wide / 2 - 6)));
  return make("svg", {class: "forest" + (pair.told_apart ? " apart" : ""), width: wide, height: 18, viewBox: `0 0 ${wide} 18`, "aria-hidden": "true"},
    make("line", {class: "zero", x1: wide / 2, x2: wide / 2, y1: 0, y2: 18}), make("line", {x1: at(pair.low), x2: at(pair.high), y1: 9, y2: 9}), make("circle", {cx: at(pair.difference), cy: 9, r: 3.5}));
}

function pairsTable(group) {
  const pairs = (group.table.pairs || []).filter(p => present(p.difference));
  if (!pairs.length) return [];
  const reach = Math.max(...pairs.flatMap(p => [Math.abs(p.low ?? p.difference), Math.abs(p.high ?? p.difference)]), 1e-30);
  const cells = pairs.map(p => [p.a + " − " + p.b, (p.difference > 0 ? "+" : "") + result(p.difference, group.text), present(p.low) ? result(p.low, group.text) + " to " + result(p.high, group.text) : "–", present(p.low) ? forest(p, reach) : "", shown(p.p_holm, 2),
    p.told_apart ? "told apart" : "not told apart" + (p.seeds_needed ? ", " + p.seeds_needed + " seeds might" : "")]);
  return [make("h4", {}, `Differences in ${partOf(group.table.rows)} ${group.text ? "loss" : "accuracy"} with 95 % intervals (Welch; Holm's correction over ${plural(pairs.length, "pair")})`),
    scroll(table(["pair", "difference", "interval", "", "p", "verdict"], cells))];
}

function comparison(group) {
  const state = [plural(group.runs_done, "run"), group.runs_wanted > group.runs_done ? "of " + group.runs_wanted : "", "· " + [group.model, group.data].filter(Boolean).join(" · ")].filter(Boolean).join(" ");
  const head = [make("h3", {}, where(group.path), " ", badge(group.state)), make("p", {}, group.problem || state)];
  return make("div", {class: "card"}, ...head, ...(group.table?.rows?.length ? [scroll(resultsTable(group)), ...pairsTable(group)] : []));
}

/* Mean result and mean rank of the optimizers that all of these comparisons have. */
function ranks(compared) {
  const out = [];
  for (const text of [false, true]) {
    const same = compared.filter(g => Boolean(g.text) === text && g.table?.rows?.length);
    const value = (g, label) => g.table.rows.find(r => r.label === label)?.[partOf(g.table.rows) + "_" + judgedOf(g)] ?? null;
    const labels = same.length ? same[0].table.rows.map(r => r.label).filter(l => same.every(g => value(g, l) !== null)) : [];
    if (same.length < 2 || labels.length < 2) continue;
    const sign = text ? 1 : -1;
    /* equal results share the mean of their ranks */
    const rank = (g, label) => { const all = labels.map(l => sign * value(g, l)), own = sign * value(g, label); return all.filter(v => v < own).length + (all.filter(v => v === own).length + 1) / 2; };
    const rows = labels.map(l => [l, ...same.map(g => Number(value(g, l).toPrecision(5))), Number(mean(same.map(g => value(g, l))).toPrecision(5)), Number(mean(same.map(g => rank(g, l))).toFixed(2))]).sort((a, b) => a[a.length - 1] - b[b.length - 1]);
    const n = same.length;
    out.push(make("div", {class: "card", id: text ? "rank-text" : "rank"}, make("h3", {}, `Average and rank over ${n} comparisons`), scroll(table(["optimizer", ...same.map(g => where(g.path)), text ? "mean loss" : "mean accuracy, %", "mean rank"], rows,
      {...Object.fromEntries(same.map((g, i) => [i + 1, bestRow(rows.map(r => r[i + 1]), text)])), [n + 1]: bestRow(rows.map(r => r[n + 1]), text), [n + 2]: bestRow(rows.map(r => r[n + 2]), true)}))));
  }
  return out;
}

function comparisonsPart() {
  const compared = data.groups.filter(g => g.kind === "comparison");
  section("comparisons", compared.length > 1 ? "Comparisons" : "Comparison", ranks(compared.filter(g => !g.inside)).concat(compared.map(comparison)));
}

/* ---- sweeps and tunings ---- */

const valuesText = values => Object.entries(values || {}).map(([name, value]) => name + " " + value).join(", ") || "–";
const pictureOf = p => make("figure", {}, make("figcaption", {}, p.path), make("img", {src: "data:image/svg+xml;base64," + p.svg, alt: p.path, decoding: "async"}));

function sweep(group) {
  const best = group.best || [], judged = judgedOf(group), what = group.text ? "loss" : "accuracy, %";
  const rows = best.map(b => [b.optimizer, valuesText(b.values), spread(b["validation_" + judged], b["validation_" + judged + "_std"], group.text), spread(b["test_" + judged], b["test_" + judged + "_std"], group.text)]);
  const pictures = data.pictures.filter(p => p.folder === group.path);
  return make("div", {class: "card"}, make("h3", {}, where(group.path), " ", badge(group.state)), make("p", {}, group.problem || `sweep of ${(group.axes || []).map(a => a.name).join(" and ")}, ${plural(group.runs_done, "run")}`),
    ...(rows.length ? [scroll(table(["optimizer", "best values", "validation " + what, "test " + what], rows))] : []), make("div", {class: "pictures"}, pictures.map(pictureOf)));
}

function tuning(group) {
  const judged = judgedOf(group), what = group.text ? "loss" : "accuracy, %", results = group.results || [];
  const rows = results.map(r => [r.optimizer, r.space, r.trials, r.failures, r.epochs, Number((r.seconds || 0).toPrecision(3)), valuesText(r.values), spread(r["validation_" + judged], null, group.text), spread(r["test_" + judged], r["test_" + judged + "_std"], group.text)]);
  return make("div", {class: "card"}, make("h3", {}, where(group.path), " ", badge(group.state)),
    make("p", {}, group.problem || "tuning with equal budgets" + (group.rounds?.length ? ": " + group.rounds.map(r => `${r.trials} trials of ${plural(r.epochs, "epoch")}`).join(", then ") + " for each optimizer" : "")),
    ...(rows.length ? [scroll(table(["optimizer", "search space", "trials", "failed", "epochs spent", "seconds", "winner", "validation " + what, "test " + what], rows))] : []));
}

function searchesPart() {
  section("searches", "Sweeps and tunings", data.groups.filter(g => g.kind === "tuning" || g.kind === "sweep").map(g => g.kind === "tuning" ? tuning(g) : sweep(g)));
}

/* ---- analyses ---- */

function analysesPart() {
  const sweeps = new Set(data.groups.map(g => g.path)), pictures = data.pictures.filter(p => !sweeps.has(p.folder));
  const folders = [...new Set([...pictures, ...data.texts].map(p => p.folder))];
  section("analyses", "Analyses", folders.map(folder => make("div", {class: "card"}, make("h3", {}, where(folder)),
    make("div", {class: "pictures"}, pictures.filter(p => p.folder === folder).map(pictureOf)),
    ...data.texts.filter(t => t.folder === folder).map(t => make("details", {}, make("summary", {}, t.path), make("pre", {}, t.text))))));
}

/* ---- runs and settings ---- */

function problemsOf(run) {
  return [run.problem, run.damaged_lines ? plural(run.damaged_lines, "damaged line") + " in log.jsonl" : "", run.step_stride > 1 ? "one of " + run.step_stride + " steps is drawn" : ""].filter(Boolean).join("; ");
}

function runsPart() {
  const rows = data.runs.map(r => [where(r.path), r.model, r.data, r.optim, String(r.seed), r.epochs_done + " of " + r.epochs_wanted, (r.validation ? "validation " : "") + result(r.text ? r.loss : r.acc, r.text) + (r.text || !present(r.acc) ? "" : " %"), badge(r.state), problemsOf(r)]);
  section("runs", "Runs", rows.length ? [make("div", {class: "card"}, scroll(table(["run", "model", "data", "optimizer", "seed", "epochs", "result", "state", ""], rows, {}, [8])))] : []);
}

function settingsPart() {
  const list = families.filter(inView).filter(f => f.runs[0].config).map(f => ({name: f.name, all: settingsOf(f.runs[0])}));
  if (!list.length) { $("settings").hidden = true; return; }
  const names = [...new Set(list.flatMap(l => Object.keys(l.all)))], cell = v => v === undefined ? "–" : v === "" ? "(empty)" : String(v);
  const differ = names.filter(n => new Set(list.map(l => JSON.stringify(l.all[n] ?? null))).size > 1), equal = names.filter(n => !differ.includes(n));
  const rows = list.length > 8 ? list.map(l => [l.name, ...differ.map(n => cell(l.all[n]))]) : differ.map(n => [n, ...list.map(l => cell(l.all[n]))]);
  const head = list.length > 8 ? ["run", ...differ] : ["setting", ...list.map(l => l.name)];
  section("settings", "Settings", make("div", {class: "card"}, ...(list.length > 1 ? [make("h3", {}, "What differs"), differ.length ? scroll(table(head, rows)) : make("p", {}, "Nothing but seeds.")] : []),
    make("details", {}, make("summary", {}, list.length > 1 ? "What is equal" : "All settings"), table(["setting", "value"], equal.map(n => [n, cell(list[0].all[n])])))));
}
