"use strict";
// One case in a dialog: why it failed, what was expected and what is there as grids, the call, and how to run it again.
// Text of a report is only ever put into text nodes.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ICONS = { passed: "✓", failed: "✗", errored: "!", skipped: "–", "not-supported": "○", "known-failure": "◐" };

function el(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const badge = (kind, text) => el("span", { class: `badge ${kind}` }, text);
const statusBadge = (status) => badge(status, `${ICONS[status]} ${status.replace("-", " ")}`);
const label = (run) => `${run.name} (${run.mode})`;
const commitOf = (run) => (run.commit ? run.commit.slice(0, 12) : "no commit");

function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return el("dl", {}, told.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

function again(command) {
  const code = el("code", {}, command);
  const button = el("button", { type: "button", class: "copy", onclick: () => copy(command, code, button) }, "Copy");
  return el("div", { class: "again" }, code, button);
}

async function copy(text, code, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(code); // a browser that keeps the clipboard from files still copies a selection
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = "Copy"; }, 1800);
}

// ---- commands ----

const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

function commandOf(run, id, told) {
  if (told !== 1) return told || "";
  const [module, test] = [id.slice(0, id.indexOf(".py::")), id.slice(id.indexOf(".py::") + 5)];
  return run.around[0] + quote(`pagebind_conformance.suite.${module}::${test}`) + run.around[1];
}

// ---- grids ----

const HIGH = 12; // rows of a grid that is drawn whole
const AROUND = 1; // rows shown on both sides of a difference
const cellsOf = (row) => (row === "" ? [] : row.split(" "));
const shown = (cell) => (cell === "." ? "·" : cell);

// A table of cells with the numbers of rows and columns; marks those where another grid of the same window differs.
// Of a high one, equal rows away from a difference are left out unless all are asked for.
function grid(rows, { row = 0, column = 0, other = null, mark = "wrong", flat = false, whole = true }) {
  const width = rows.length ? cellsOf(rows[0]).length : 0;
  if (!rows.length || !width) return el("p", { class: "soft" }, "no cells");
  const head = el("tr", {}, el("th"), Array.from({ length: width }, (_, i) => el("th", { scope: "col" }, String(column + i))));
  const near = (r) => whole || rows.slice(Math.max(0, r - AROUND), r + AROUND + 1).some((line, i) => line !== other[Math.max(0, r - AROUND) + i]);
  const lines = [];
  let left = 0;
  const skip = () => { if (left) lines.push(el("tr", { class: "skip" }, el("th"), el("td", { colspan: width }, `${left} equal row${left > 1 ? "s" : ""}`))); left = 0; };
  rows.forEach((line, r) => {
    if (!near(r)) { left += 1; return; }
    skip();
    const against = other ? cellsOf(other[r]) : null;
    const tds = cellsOf(line).map((cell, c) => {
      const differs = against !== null && against[c] !== cell;
      const kind = differs ? mark : cell === "." ? "none" : null;
      const title = cell === "." ? (mark === "due" ? "nothing belongs here" : "not written") : null;
      return el("td", { class: kind, title }, shown(cell));
    });
    lines.push(el("tr", {}, el("th", { scope: "row" }, flat ? "" : String(row + r)), tds));
  });
  skip();
  return el("div", { class: "scroll" }, el("table", { class: "grid" }, el("thead", {}, head), el("tbody", {}, lines)));
}

// State blocks: a line for each word, a column for each block.
function wordsTable(words, columns) {
  const split = columns.map(([title, rows, other, mark]) =>
    rows.map((line, block) => [rows.length > 1 ? `${title}, block ${block}` : title, cellsOf(line), other && cellsOf(other[block]), mark]),
  ).flat();
  const head = el("tr", {}, el("th"), split.map(([title]) => el("th", { scope: "col" }, title)));
  const lines = words.map((word, i) => el("tr", {}, el("th", { scope: "row" }, word), split.map(([, cells, against, mark]) => {
    const differs = against && against[i] !== cells[i];
    return el("td", { class: differs ? mark : cells[i] === "." ? "none" : null }, shown(cells[i]));
  })));
  return el("div", { class: "scroll" }, el("table", { class: "grid" }, el("thead", {}, head), el("tbody", {}, lines)));
}

function shapeOf(tensor) {
  return `${tensor.name} [${tensor.shape.join(", ")}]`;
}

// What of a tensor is drawn, where it is not all.
function windowOf(tensor, rows) {
  const flat = tensor.shape.length === 1;
  const [height, width] = flat ? [1, tensor.shape[0]] : tensor.shape;
  const seen = [rows.length, rows.length ? cellsOf(rows[0]).length : 0];
  if (tensor.words || (seen[0] >= height && seen[1] >= width)) return "";
  const span = (what, first, count, all) => `${what} ${first} to ${first + count - 1} of ${all}`;
  const columns = span(flat ? "elements" : "columns", tensor.column ?? 0, seen[1], width);
  return flat ? columns : `${span("rows", tensor.row ?? 0, seen[0], height)}, ${columns}`;
}

function differing(tensor) {
  const notes = [
    tensor.differing ? `${tensor.differing} cell${tensor.differing > 1 ? "s" : ""} differ${tensor.differing > 1 ? "" : "s"}` : "",
    tensor.outside ? `${tensor.outside} element(s) were written outside the tensor, see the reason` : "",
    windowOf(tensor, tensor.actual),
  ].filter(Boolean);
  const { expected, actual, row, column } = tensor;
  const flat = tensor.shape.length === 1;
  const pair = [["expected", expected, actual, "due"], ["actual", actual, expected, "wrong"]];
  const box = el("div", { class: "pair" });
  const draw = (whole) => {
    box.className = "pair two";
    box.replaceChildren(...pair.map(([title, rows, other, mark]) =>
      el("figure", { class: title }, el("figcaption", {}, title), grid(rows, { row, column, other, mark, flat, whole }))));
    together(box.querySelectorAll(".scroll"));
  };
  let more = null;
  if (tensor.words) {
    box.append(wordsTable(tensor.words, pair));
  } else if (expected === null) {
    box.append(el("figure", {}, el("figcaption", {}, "actual; what it has to hold is said in the reason"), grid(actual, { row, column, flat })));
  } else {
    const high = actual.length > HIGH && actual.some((line, r) => line !== expected[r]);
    draw(!high);
    if (high) more = el("button", { type: "button", class: "rows", onclick: () => { more.remove(); draw(true); } }, "Show all rows");
  }
  return [el("h3", {}, shapeOf(tensor), " ", el("span", { class: "soft" }, notes.join("; ")), " ", more), box];
}

// Two grids of one tensor show the same columns.
function together(boxes) {
  for (const box of boxes) box.addEventListener("scroll", () => { for (const other of boxes) if (other !== box) other.scrollLeft = box.scrollLeft; });
}

function callOf(call) {
  const inputs = call.inputs.map((input) => el("figure", {},
    el("figcaption", {}, [shapeOf(input), windowOf(input, input.cells)].filter(Boolean).join(", ")),
    input.words ? wordsTable(input.words, [["before", input.cells, null, ""]]) : grid(input.cells, { flat: input.shape.length === 1 })));
  return [
    el("h3", {}, "Input: the call of ", el("code", {}, call.operation)),
    facts([...Object.entries(call.spec), ...Object.entries(call.arguments).map(([name, value]) => [`${name} (argument)`, value])]),
    el("div", { class: "pair" }, inputs),
  ];
}

// ---- the dialog ----

function environmentOf(run) {
  const libraries = Object.entries(run.environment).filter(([, value]) => value).map(([name, value]) => `${name} ${value}`);
  return [
    ["backend", `${run.distribution} ${run.version}, pagebind ${run.core}, suite ${run.suite}`],
    ["device", `${run.device.name} (${run.device.type}), mode ${run.mode}`],
    ["environment", libraries.join(", ")],
    ["commit", commitOf(run) + (run.older ? " (an older build than the one this page was made with)" : "")],
    ["sources", run.source.slice(0, 16)],
    ["run", `${run.started.replace("T", " ").replace("Z", " UTC")}, ${Math.round(run.duration_seconds)} s`],
  ];
}

function drawCase(dialog, item, { close, step, place }) {
  const { run, id, status, reason } = item;
  const details = item.details !== null && item.details >= 0 ? run.details[item.details] : null;
  const command = commandOf(run, id, item.again);
  const found = details?.difference;
  dialog.replaceChildren(
    el("header", {},
      statusBadge(status),
      el("h2", { id: "case-title" }, id, el("br"), el("span", { class: "soft" }, `${label(run)}, ${run.device.name}${place}`)),
      el("button", { type: "button", class: "previous", onclick: () => step(-1), title: "Case before (left arrow)" }, "←"),
      el("button", { type: "button", class: "next", onclick: () => step(1), title: "Next case (right arrow)" }, "→"),
      el("button", { type: "button", class: "close", onclick: close, title: "Close (Esc)" }, "Close")),
    el("div", { class: "body" },
      el("p", { class: "reason" }, details ? details.reason : reason),
      command ? again(command) : null,
      item.details === -1 ? el("p", { class: "soft" }, "This page had no room for the rest of it; render the report alone, or look into it.") : null,
      found ? found.tensors.map(differing) : null,
      found?.call ? callOf(found.call) : null,
      el("h3", {}, "Environment"), facts(environmentOf(run))));
  for (const box of dialog.querySelectorAll(".scroll")) {
    const first = box.querySelector(".wrong, .due");
    if (first && first.offsetLeft + first.offsetWidth > box.clientWidth) box.scrollLeft = first.offsetLeft - box.clientWidth / 2;
  }
}
