
/* ---- the page ---- */

function navigation() {
  const titles = {curves: "Curves", comparisons: "Comparisons", searches: "Sweeps and tunings", layers: "Curvature", analyses: "Analyses", settings: "Settings", runs: "Runs"};
  $("nav").replaceChildren(...Object.entries(titles).filter(([id]) => !$(id).hidden).map(([id, text]) => make("a", {href: "#" + id}, text)));
}

function show(fresh) {
  data = fresh;
  data.runs.forEach(prepare);
  findFamilies();
  const count = kind => data.groups.filter(g => g.kind === kind).length;
  const parts = [[data.runs.length, "run"], [count("comparison"), "comparison"], [count("sweep"), "sweep"], [count("tuning"), "tuning"]].filter(([n]) => n > 0).map(([n, name]) => plural(n, name));
  $("about").textContent = [parts.join(", ") || "no runs yet", "abar " + data.abar].join(" · ");
  curvesPart();
  comparisonsPart();
  searchesPart();
  layersPart();
  analysesPart();
  settingsPart();
  runsPart();
  navigation();
}

const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const nameTheme = () => { $("theme").textContent = dark() ? "light" : "dark"; $("theme").setAttribute("aria-pressed", String(dark())); };
$("theme").addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; nameTheme(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();
show(JSON.parse($("data").textContent));
if (data.live) follow();
