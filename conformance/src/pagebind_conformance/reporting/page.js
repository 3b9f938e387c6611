// The matrix, the filters, the list of cases and the runs. What is looked at stands in the address behind `#`.

const state = { statuses: new Set(), text: "", run: null, row: null, feature: null, open: null, shown: 60 };
const PER_LIST = 60;
let written = location.hash;
const BAD = ["failed", "errored"];
const WORST = ["failed", "errored", "known-failure", "passed", "not-supported", "skipped"];
const byId = (id) => document.getElementById(id);

// ---- what there is ----

// One item for each case that did not pass, and one for all of a group that did.
const ITEMS = DATA.runs.flatMap((run, r) => {
  const told = (group) => ({ run, r, test: DATA.tests[group[0]], row: group[1], features: DATA.features[group[2]] });
  const passed = run.groups.filter((group) => group[3]).map((group) => ({ ...told(group), status: "passed", count: group[3], id: DATA.tests[group[0]] }));
  const others = run.cases.map(([group, parameters, status, reason, again, details]) => {
    const about = told(run.groups[group]);
    return { ...about, id: about.test + parameters, status: DATA.statuses[status], count: 1, reason: DATA.reasons[reason], again, details };
  });
  return [...others, ...passed];
});
ITEMS.forEach((item, i) => {
  item.number = i;
  item.words = [item.id, DATA.rows[item.row].join(": "), item.reason ?? "", label(item.run), ...item.features].join("\n").toLowerCase();
});
const FEATURES = [...new Set(DATA.runs.flatMap((run) => [...run.features, ...run.groups.flatMap((g) => DATA.features[g[2]])]))].sort();

const matches = (item) => (!state.statuses.size || state.statuses.has(item.status)) && (!state.text || state.text.split(/\s+/).every((word) => item.words.includes(word)));
const inScope = (item) => (state.run === null || item.r === state.run) && (state.row === null || item.row === state.row) && (state.feature === null || item.features.includes(state.feature));

function counted(items) {
  const counts = Object.fromEntries(DATA.statuses.map((status) => [status, 0]));
  for (const item of items) counts[item.status] += item.count;
  return counts;
}

// ---- matrix ----

function cellText(counts) {
  const ran = counts.passed + counts.failed + counts.errored + counts["known-failure"];
  const wrong = counts.failed + counts.errored;
  if (!ran) return counts["not-supported"] ? ["not-supported", "○ not supported"] : counts.skipped ? ["skipped", "– skipped"] : null;
  const known = counts["known-failure"];
  const more = [known ? `${known} known` : "", counts["not-supported"] ? `${counts["not-supported"]} not supported` : ""].filter(Boolean);
  if (wrong) return ["failed", `✗ ${wrong} of ${ran} failed`];
  return [known ? "known-failure" : "passed", counts.passed ? [`✓ ${counts.passed}`, ...more].join(", ") : `◐ ${more.join(", ")}`];
}

function cell(run, r, chosen, items, empty = "") {
  const told = cellText(counted(items));
  const td = el("td", {});
  if (!told) { td.append(el("span", { class: "soft" }, empty)); return td; }
  const [kind, text] = told;
  const pressed = state.run === r && state.row === (chosen.row ?? null) && state.feature === (chosen.feature ?? null);
  const counts = counted(items);
  const spoken = DATA.statuses.filter((status) => counts[status]).map((status) => `${counts[status]} ${status}`).join(", ");
  td.append(el("button", { type: "button", class: kind, tabindex: -1, "aria-pressed": String(pressed), title: `${label(run)}: ${spoken}`, onclick: () => choose(r, chosen) }, text));
  if (!items.some(matches)) td.className = "dim";
  return td;
}

function declared(run, feature) {
  if (!run.features.includes(feature)) return "not declared";
  return run.by_feature ? "declared, no case" : el("span", { title: "this report is of a suite that did not note the features of a case" }, "declared");
}

function drawMatrix() {
  const names = [...new Set(DATA.runs.map((run) => run.name))];
  const heads = el("tr", {}, el("td"), names.map((name) => el("th", { scope: "colgroup", colspan: DATA.runs.filter((run) => run.name === name).length }, name)));
  const modes = el("tr", {}, el("td"), DATA.runs.map((run) => el("th", { scope: "col", class: run.older ? "older" : null },
    run.mode, " ", badge(run.verdict === "passed" ? "passed" : run.verdict === "failed" ? "failed" : "part", run.verdict),
    el("small", {}, run.device.name),
    run.older ? el("small", { class: "mark" }, `older build ${commitOf(run)}`) : null,
    run.newer ? el("small", { class: "mark" }, "newer run beside it") : null)));
  const filtered = state.statuses.size || state.text;
  const bodies = [];
  const section = (title, lines) => {
    const kept = lines.filter(([, items]) => !filtered || items.some(matches));
    if (!kept.length) return;
    bodies.push(el("tbody", {}, el("tr", { class: "level" }, el("th", { scope: "rowgroup" }, title), DATA.runs.map(() => el("td"))), kept.map(([name, , cells]) => el("tr", {}, el("th", { scope: "row" }, name), cells()))));
  };
  const byRow = Map.groupBy ? Map.groupBy(ITEMS, (item) => item.row) : grouped(ITEMS, (item) => item.row);
  for (const level of DATA.levels) {
    section(level, DATA.rows.flatMap(([at, name], row) => (at !== level ? [] : [[name, byRow.get(row) ?? [], () => DATA.runs.map((run, r) => cell(run, r, { row }, (byRow.get(row) ?? []).filter((item) => item.r === r), "—"))]])));
  }
  section("features", FEATURES.map((feature) => {
    const items = ITEMS.filter((item) => item.features.includes(feature));
    return [feature, items, () => DATA.runs.map((run, r) => cell(run, r, { feature }, items.filter((item) => item.r === r), declared(run, feature)))];
  }));
  byId("matrix").replaceChildren(bodies.length ? el("table", {}, el("thead", {}, heads, modes), bodies) : el("p", { class: "block" }, "Nothing matches the filter."));
  const first = document.querySelector('#matrix td button[aria-pressed="true"]') ?? document.querySelector("#matrix td:not(.dim) button");
  if (first) first.tabIndex = 0;
}

function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) (groups.get(keyOf(item)) ?? groups.set(keyOf(item), []).get(keyOf(item))).push(item);
  return groups;
}

byId("matrix").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  const td = event.target.closest("td");
  if (!td || !moves[event.key]) return;
  event.preventDefault();
  const lines = [...document.querySelectorAll("#matrix tbody tr")];
  let [x, y] = [[...td.parentNode.children].indexOf(td), lines.indexOf(td.parentNode)];
  for (let next = null; ;) {
    [x, y] = [x + moves[event.key][0], y + moves[event.key][1]];
    if (!lines[y]?.children[x]) return;
    next = lines[y].children[x].querySelector("button");
    if (!next) continue;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    return;
  }
});

// ---- headline and filters ----

function drawHeadline() {
  const wrong = DATA.runs.map((run, r) => [run, r, ITEMS.filter((item) => item.r === r && BAD.includes(item.status))]).filter(([, , items]) => items.length);
  const partial = DATA.runs.filter((run, r) => !run.success && !wrong.some(([, w]) => w === r));
  const runs = DATA.runs.length === 1 ? "one run" : `${DATA.runs.length} runs`;
  const box = byId("headline");
  box.className = wrong.length ? "bad" : partial.length ? "part" : "";
  const lines = wrong.map(([run, r, items]) => {
    const rows = [...grouped(items, (item) => item.row)].map(([row, some]) => `${DATA.rows[row][1]} ${some.length}`);
    return el("li", {}, el("button", { type: "button", onclick: () => { state.statuses = new Set(BAD); choose(r, {}); } }, el("b", {}, label(run)), ` fails ${items.length}: ${rows.join(", ")}`));
  });
  lines.push(...partial.map((run) => el("li", {}, el("b", {}, label(run)), ` is no success: ${run.why}`)));
  const good = DATA.runs.length - wrong.length - partial.length;
  const title = !DATA.runs.length ? "No report was given." : wrong.length ? `✗ ${wrong.length} of ${runs} fail${wrong.length === 1 ? "s" : ""}` : partial.length ? `◐ ${good} of ${runs} passed` : `✓ Nothing failed in ${runs}`;
  box.replaceChildren(el("strong", {}, title), lines.length ? el("ul", {}, lines) : "");
  byId("about").textContent = [...new Set(DATA.runs.map((run) => `suite ${run.suite}`))].concat(`${ITEMS.reduce((sum, item) => sum + item.count, 0).toLocaleString("en")} cases in ${runs}`).join(" · ");
}

function drawFilters() {
  const counts = counted(ITEMS);
  byId("statuses").replaceChildren(...DATA.statuses.map((status) => el("button", {
    type: "button", "aria-pressed": String(state.statuses.has(status)), "data-status": status, disabled: !counts[status],
    onclick: () => { if (!state.statuses.delete(status)) state.statuses.add(status); update(); byId("statuses").querySelector(`[data-status="${status}"]`).focus(); },
  }, `${ICONS[status]} ${status.replace("-", " ")} ${counts[status].toLocaleString("en")}`)));
  byId("clear").hidden = !(state.statuses.size || state.text || state.run !== null || state.row !== null || state.feature !== null);
}

// ---- cases ----

function listed() {
  const nothing = !state.statuses.size && !state.text && state.run === null;
  const items = ITEMS.filter((item) => (nothing ? BAD.includes(item.status) : inScope(item) && matches(item)));
  const rank = (some) => Math.min(...some.map((item) => WORST.indexOf(item.status)));
  return [...grouped(items, (item) => item.test)].sort(([, a], [, b]) => rank(a) - rank(b));
}

function block([test, items]) {
  const single = items.filter((item) => [...BAD, "known-failure"].includes(item.status));
  const many = grouped(items.filter((item) => !single.includes(item)), (item) => [item.r, item.status, item.reason ?? ""].join("\n"));
  return el("section", { class: "block" },
    el("h3", { class: "mono" }, test),
    el("ul", {}, single.slice(0, state.shown).map((item) => el("li", {}, el("button", { type: "button", class: "open", onclick: () => { state.open = item.number; note(); } },
      statusBadge(item.status), el("span", { class: "mono" }, `${label(item.run)} ${item.id.slice(test.length)}`), el("span", {}, item.reason))))),
    single.length > state.shown ? el("p", { class: "soft" }, `and ${single.length - state.shown} more; filter to see them`) : null,
    [...many.values()].map((some) => {
      const count = some.reduce((sum, item) => sum + item.count, 0);
      const told = [statusBadge(some[0].status), ` ${count} in ${label(some[0].run)}`, some[0].reason ? el("span", { class: "soft" }, `: ${some[0].reason}`) : ""];
      return some[0].status === "passed" ? el("p", {}, told) : el("details", {}, el("summary", {}, told), el("div", { class: "ids mono" }, some.map((item) => el("div", {}, item.id.slice(test.length) || "the only case"))));
    }));
}

function drawCases() {
  const about = [state.run !== null ? label(DATA.runs[state.run]) : "", state.row !== null ? DATA.rows[state.row].join(": ") : "", state.feature ? `feature ${state.feature}` : ""].filter(Boolean).join(", ");
  byId("cases-title").textContent = about ? `Cases: ${about}` : "Cases";
  const blocks = listed();
  const nothing = !state.statuses.size && !state.text && state.run === null;
  const more = blocks.length - state.shown;
  byId("cases").replaceChildren(
    nothing ? el("p", { class: "hint" }, blocks.length ? "These failed. A cell of the matrix, a status or a word shows others." : "Nothing failed. Choose a cell of the matrix, a status or a word to see cases.") : "",
    ...blocks.slice(0, state.shown).map(block),
    !blocks.length && !nothing ? el("p", { class: "hint" }, "No case matches. Passed cases are counted by test: their parameters are not in this page.") : "",
    more > 0 ? el("button", { type: "button", onclick: () => { state.shown += PER_LIST; drawCases(); } }, `Show more (${more} tests)`) : "");
}

function drawRuns() {
  byId("runs").replaceChildren(...DATA.runs.map((run) => el("details", { class: "block run" },
    el("summary", {}, el("b", {}, label(run)), badge(run.verdict === "passed" ? "passed" : run.verdict === "failed" ? "failed" : "part", run.verdict), run.older ? badge("part", `older build ${commitOf(run)}`) : null, el("span", { class: "soft" }, `${run.distribution} ${run.version} on ${run.device.name}`)),
    facts([["no success", run.why], ...environmentOf(run), ["features", run.features.join(", ")], ["own planners", run.planners.join(", ")], ...run.notes.map((line) => line.split(/: (.*)/s).slice(0, 2)), ["stale known failures", run.stale.join(", ")]]),
    again(run.reproduce))));
}

// ---- moving about ----

function choose(run, { row = null, feature = null }) {
  const same = state.run === run && state.row === row && state.feature === feature;
  Object.assign(state, same ? { run: null, row: null, feature: null } : { run, row, feature }, { shown: PER_LIST });
  update();
  if (same) return;
  byId("cases-title").scrollIntoView({ block: "start" });
  document.querySelector('#matrix button[aria-pressed="true"]')?.focus({ preventScroll: true });
}

function note() {
  const words = new URLSearchParams();
  for (const [name, value] of [["status", [...state.statuses].join(",")], ["text", state.text], ["run", state.run], ["row", state.row], ["feature", state.feature], ["case", state.open]]) {
    if (value !== null && value !== "") words.set(name, value);
  }
  const target = String(words) && `#${words}`;
  if (location.hash !== target) location.hash = written = target;
  drawDialog();
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = (name, end) => (words.has(name) && Number(words.get(name)) < end ? Number(words.get(name)) : null);
  Object.assign(state, {
    statuses: new Set((words.get("status") ?? "").split(",").filter((status) => DATA.statuses.includes(status))),
    text: words.get("text") ?? "", run: number("run", DATA.runs.length), row: number("row", DATA.rows.length), feature: words.get("feature"), open: number("case", ITEMS.length),
  });
  if (byId("text").value.trim().toLowerCase() !== state.text) byId("text").value = state.text;
}

function draw() { drawFilters(); drawMatrix(); drawCases(); drawDialog(); }
function update() { state.shown = PER_LIST; draw(); note(); }

function drawDialog() {
  const dialog = byId("case");
  const item = state.open === null ? null : ITEMS[state.open];
  if (!item || item.status === "passed") { if (dialog.open) dialog.close(); return; }
  const around = listed().flatMap(([, items]) => items).filter((one) => [...BAD, "known-failure"].includes(one.status));
  const at = around.indexOf(item);
  const step = (by) => { const next = around[at + by]; if (next) { state.open = next.number; note(); } };
  if (!dialog.open) dialog.showModal(); // before it is drawn, so that there are widths to scroll by
  const focus = document.activeElement.className;
  drawCase(dialog, item, { close: () => dialog.close(), step, place: at < 0 ? "" : `, ${at + 1} of ${around.length}` });
  dialog.onkeydown = (event) => { if (event.key === "ArrowRight") step(1); else if (event.key === "ArrowLeft") step(-1); };
  dialog.querySelector(["previous", "next"].includes(focus) ? `.${focus}` : ".close").focus();
}

byId("case").addEventListener("close", () => { if (state.open !== null) { state.open = null; note(); } });
byId("text").addEventListener("input", () => { state.text = byId("text").value.trim().toLowerCase(); state.shown = PER_LIST; draw(); note(); });
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("clear").addEventListener("click", () => { Object.assign(state, { statuses: new Set(), text: "", run: null, row: null, feature: null }); byId("text").value = ""; update(); byId("text").focus(); });
byId("theme").addEventListener("click", () => { const dark = matchMedia("(prefers-color-scheme: dark)").matches; const root = document.documentElement.style; root.colorScheme = (root.colorScheme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark"; });
document.addEventListener("keydown", (event) => { if (event.key === "/" && !byId("case").open && event.target !== byId("text")) { event.preventDefault(); byId("text").focus(); } });
window.addEventListener("hashchange", () => {
  if (location.hash === written) return; // it was written here, and is drawn
  written = location.hash;
  readAddress();
  draw();
});

readAddress();
drawHeadline();
drawRuns();
draw();
