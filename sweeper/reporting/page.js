"use strict";
/* Draws the plots and tables of the report from the JSON in the page. Nothing is loaded from anywhere. */

const root = document.documentElement;
const hiddenStatuses = new Set();
const drawn = new Map(); // plot → its view

/* Large data stand in the page compressed; `unpacked` has their texts once they have been asked for. */
const unpacked = new Map();
const isPacked = (script) => script.type === "application/gzip";
const atHand = (id) => {
  const script = document.getElementById(id);
  return script !== null && (unpacked.has(id) || !isPacked(script));
};
const read = (id) => JSON.parse(unpacked.get(id) ?? document.getElementById(id).textContent);

async function gunzip(base64) {
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function unpack(id) {
  if (atHand(id)) return;
  if (!("DecompressionStream" in window)) throw new Error("this page needs a browser of 2023 or later");
  unpacked.set(id, await gunzip(document.getElementById(id).textContent));
}

const STATUS_WORDS = read("status-words");

/* --- colours ------------------------------------------------------------------------------------------------- */

/* Charts name colours of page.css, so they are resolved when a theme is drawn. */
function resolveColours(value, style) {
  if (typeof value === "string") {
    return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
  }
  if (Array.isArray(value)) return value.map((item) => resolveColours(item, style));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolveColours(item, style)]));
  }
  return value;
}

function setTheme(theme) {
  root.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) button.textContent = theme === "dark" ? "Light" : "Dark";
  drawn.forEach((_, plot) => draw(plot));
}

/* --- plots ---------------------------------------------------------------------------------------------------- */

const MOST_SVG_ROWS = 4000; // SVG prints well but becomes slow; of more rows a plot is a canvas
const BRUSH = !window.matchMedia("(pointer: coarse)").matches; // a finger scrolls the page instead
const marked = (names) => Object.fromEntries([...names].map((name) => [name, true]));

function hiddenGroups(plot) {
  const pressed = plot.closest("section").querySelectorAll('.key [aria-pressed="false"]');
  return marked([...pressed].map((chip) => chip.dataset.group));
}

/* What readers hide and brush are parameters of every chart. */
const choices = (plot) => ({ hidden: marked(hiddenStatuses), off: hiddenGroups(plot), chosen: brushed && marked(brushed) });

function choose() {
  for (const [plot, view] of drawn) {
    for (const [name, value] of Object.entries(choices(plot))) view.signal(name, value);
    view.runAsync();
  }
}

/* A range brushed in one plot leaves its trials in all plots and in the table of trials. */
let brushed = null;

function brush(rows, range) {
  const within = ([low, high], value) => Math.min(low, high) <= value && value <= Math.max(low, high);
  const inside = (extent, value) => (typeof extent[0] === "number" && extent.length === 2 ? within(extent, value) : extent.includes(value));
  const { axis, place, ...columns } = range ?? {}; // parallel coordinates have a column of the rows for each axis
  const meets = axis ? (row) => axis.some((name) => within(place, row[name]))
    : (row) => Object.entries(columns).every(([name, extent]) => inside(extent, row[name]));
  brushed = range && Object.keys(range).length ? new Set(rows.filter(meets).map((row) => row.trial)) : null;
  choose();
  document.getElementById("trials")?.refresh?.();
}

/* What a dot of a small plot says begins with its trial. */
const trialIn = (text) => (/\bc\d{5,}\b/.exec(String(text ?? "")) || [null])[0];

async function draw(plot) {
  drawn.get(plot)?.finalize();
  try {
    await unpack(plot.dataset.plot);
  } catch (error) {
    plot.textContent = String(error.message);
    return;
  }
  const chart = plot.closest("[data-choose]") ? chosen(plot) : read(plot.dataset.plot);
  const config = resolveColours(read("chart-theme"), getComputedStyle(root));
  const values = choices(plot);
  for (const parameter of config.params) parameter.value = values[parameter.name] ?? parameter.value;
  const layers = chart.layer ?? [];
  const brushable = layers.find((layer) => layer.params);
  if (!BRUSH && brushable) delete brushable.params;
  const rows = layers.reduce((count, layer) => count + layer.data.values.length, 0);
  const sized = { width: "container", height: "container", autosize: { type: "fit", contains: "padding" }, ...chart };
  const options = { actions: false, ast: true, config, renderer: rows > MOST_SVG_ROWS ? "canvas" : "svg" };
  const { view } = await vegaEmbed(plot, sized, options);
  view.addEventListener("click", (_, item) => showTrial(item?.datum?.trial));
  if (BRUSH && brushable) view.addSignalListener("brush", (_, range) => brush(brushable.data.values, range));
  drawn.set(plot, view);
  plot.dataset.drawn = "yes";
}

/* --- two columns of the table of trials against each other ---------------------------------------------------- */

const WIDE = 20; // ratio of the largest to the smallest value from which an axis is logarithmic, as in the figures

function setUpChoice(section) {
  const { columns, rows } = tableOf("trials-rows");
  const fill = (name, fits, preferred) => {
    const select = section.querySelector(`[data-axis=${name}]`);
    columns.forEach((column, at) => { if (fits(column, at)) select.add(new Option(column.label, at)); });
    const first = preferred.map((text) => [...select.options].find((option) => option.text === text)).find(Boolean);
    if (first) select.value = first.value;
    select.addEventListener("change", () => draw(section.querySelector(".plot")));
  };
  // A sweep without test data has empty columns, which would be an empty plot.
  const measured = (column, at) => isNumeric(column.kind) && column.label !== "replicates"
    && rows.some((row) => numberIn(row[at], column.kind) !== null);
  fill("x", measured, ["test accuracy %"]);
  fill("y", measured, ["test ECE", "validation NLL"]);
  fill("by", (column) => !isNumeric(column.kind) && !["trial", "configuration"].includes(column.label), ["loss"]);
}

const numberIn = (value, kind) => {
  const mean = Array.isArray(value) ? value[0] : value;
  return mean === null || mean === undefined ? null : mean * (kind === "percent" ? 100 : 1);
};

function chosenAxis(name, title, values) {
  const log = values.every((value) => value > 0) && Math.max(...values) / Math.min(...values) >= WIDE;
  const scale = { zero: false, nice: false, padding: 10, ...(log ? { type: "log" } : {}) };
  return { field: name, type: "quantitative", title, scale, axis: log ? { format: ",.6~g", tickCount: 8 } : {} };
}

function chosen(plot) {
  const data = tableOf("trials-rows");
  const section = plot.closest("[data-choose]");
  if (!section.querySelector("option")) setUpChoice(section);
  const [x, y, by] = ["x", "y", "by"].map((name) => Number(section.querySelector(`[data-axis=${name}]`).value));
  const said = (row) => [`${row[0]} ${row[1]}`, ...[data.status, x, y].map((at) =>
    `${at === data.status ? "" : `${data.columns[at].label} `}${cellText(row[at], data.columns[at])}`)].join("\n");
  const place = (row, at) => numberIn(row[at], data.columns[at].kind);
  const values = data.rows.filter((row) => place(row, x) !== null && place(row, y) !== null).map((row) => ({
    trial: trialIn(row[0]), status: row[data.status], says: said(row),
    x: place(row, x), y: place(row, y), by: cellText(row[by], data.columns[by]) || "none",
  }));
  const axis = (name, at) => chosenAxis(name, data.columns[at].label, values.map((row) => row[name]));
  return {
    layer: [{ ...pointsLayer(), data: { values } }],
    encoding: { x: axis("x", x), y: axis("y", y), color: { field: "by", type: "nominal", legend: { orient: "bottom", title: null, columns: 4 } } },
  };
}

/* Points as the report's figures have them. */
function pointsLayer() {
  return read("chart-points");
}

const allPlots = () => [...document.querySelectorAll(".plot")];
const drawAll = () => Promise.all(allPlots().map((plot) => (drawn.has(plot) ? null : draw(plot))));

function drawWhenNear() {
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "500px 0px" });
  allPlots().forEach((plot) => watcher.observe(plot));
}

/* --- tables --------------------------------------------------------------------------------------------------- */

const CHUNK = 100;
const PRINTED = 40; // rows of a table that page.css leaves on paper
const isNumeric = (kind) => kind === "number" || kind === "spread" || kind === "percent";

function brief(value) {
  if (Number.isInteger(value)) return String(value);
  const magnitude = Math.abs(value);
  return magnitude >= 1e5 || magnitude < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/* All numbers of a column have the same decimals, those that its usual deviation needs, unless it spans decades. */
function placesOf(rows, at, kind) {
  if (kind !== "spread" && kind !== "percent") return null;
  const pairs = rows.map((row) => row[at]).filter((pair) => Array.isArray(pair) && pair[0]);
  const means = pairs.map(([mean]) => Math.abs(mean));
  if (means.length === 0 || Math.max(...means) / Math.min(...means) > 1000) return null;
  const deviations = pairs.map(([, deviation]) => deviation).filter((deviation) => deviation > 0).sort((a, b) => a - b);
  const [usual, digits] = deviations.length ? [deviations[deviations.length >> 2], 1] : [Math.min(...means), 2];
  return Math.min(8, Math.max(0, digits - Math.floor(Math.log10(usual * (kind === "percent" ? 100 : 1)))));
}

function spread(pair, scale, fixed) {
  const [mean, deviation] = pair.map((part) => (part === null ? null : part * scale));
  if (!deviation && typeof fixed !== "number") return String(Number(mean.toPrecision(3)));
  const places = fixed ?? Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(deviation))));
  const around = deviation ? deviation.toFixed(places) : "0";
  return Number(around) ? `${mean.toFixed(places)} ± ${around}` : mean.toFixed(places);
}

function cellText(value, { kind, places }) {
  if (value === null || value === undefined || (Array.isArray(value) && value[0] === null)) return "";
  if (kind === "spread") return spread(value, 1, places);
  if (kind === "percent") return spread(value, 100, places);
  if (kind === "status") return STATUS_WORDS[value] || value;
  return typeof value === "number" ? brief(value) : String(value);
}

const parsed = new Map();

function tableOf(id) {
  if (!parsed.has(id)) {
    const data = read(id);
    data.columns.forEach((column, at) => { column.places = placesOf(data.rows, at, column.kind); });
    parsed.set(id, data);
  }
  return parsed.get(id);
}

function makeCell(value, column) {
  const cell = document.createElement("td");
  const text = cellText(value, column);
  if (isNumeric(column.kind)) cell.className = "right";
  cell.dataset.label = text === "" ? "" : column.label; // for narrow screens, which have no head
  if (column.label === "trial") {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.trial = trialIn(text) ?? "";
    button.textContent = text;
    cell.append(button);
  } else if (column.kind === "status" || column.label === "decision") {
    const pill = document.createElement("span");
    pill.className = `pill ${value}`;
    pill.textContent = text;
    cell.append(pill);
  } else {
    if (text.length > 24 && !isNumeric(column.kind)) cell.className = "long";
    cell.textContent = text;
  }
  return cell;
}

const sortKey = (value) => (Array.isArray(value) ? value[0] : value);

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}

function setUpTable(section) {
  const data = tableOf(section.dataset.table);
  const scroll = section.querySelector(".scroll");
  const body = section.querySelector("tbody");
  const count = section.querySelector(".count");
  const search = section.querySelector("input");
  let rows = data.rows;
  let order = null;
  let shown = 0;

  function more() {
    const piece = document.createDocumentFragment();
    for (const row of rows.slice(shown, shown + CHUNK)) {
      const line = document.createElement("tr");
      row.forEach((value, at) => line.append(makeCell(value, data.columns[at])));
      piece.append(line);
    }
    shown = Math.min(rows.length, shown + CHUNK);
    body.append(piece);
  }

  function refresh() {
    const wanted = search.value.trim().toLowerCase();
    rows = data.rows.filter((row) => {
      if (data.status !== null && hiddenStatuses.has(row[data.status])) return false;
      if (section.id === "trials" && brushed && !brushed.has(trialIn(row[0]))) return false;
      return !wanted || row.some((value, at) => cellText(value, data.columns[at]).toLowerCase().includes(wanted));
    });
    if (order) {
      rows = [...rows].sort((a, b) => {
        const [x, y] = [sortKey(a[order.at]), sortKey(b[order.at])];
        const missing = x === null || y === null;
        return compare(x, y) * (order.up || missing ? 1 : -1);
      });
    }
    count.textContent = rows.length === data.rows.length
      ? `${rows.length.toLocaleString("en")} rows`
      : `${rows.length.toLocaleString("en")} of ${data.rows.length.toLocaleString("en")} rows`;
    body.replaceChildren();
    shown = 0;
    scroll.scrollTop = 0;
    more();
  }

  section.querySelectorAll("th").forEach((head, at) => {
    head.querySelector("button").addEventListener("click", () => {
      order = { at, up: !(order && order.at === at && order.up) };
      section.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order.up ? "ascending" : "descending");
      refresh();
    });
  });
  scroll.addEventListener("scroll", () => {
    if (shown < rows.length && scroll.scrollTop + scroll.clientHeight > scroll.scrollHeight - 600) more();
  });
  search.addEventListener("input", refresh);
  section.refresh = refresh;
  section.sayWhatIsPrinted = () => {
    const printed = Math.min(shown, PRINTED);
    if (printed < rows.length) count.textContent += `, the first ${printed} on paper`;
  };
  refresh();
}

/* --- one trial ------------------------------------------------------------------------------------------------ */

/* All that the page has of a trial: its row, and why it went on or stopped. A click on a point or a name opens it. */
async function showTrial(trial) {
  const dialog = document.getElementById("trial");
  if (!trial || !dialog) return;
  await unpack("trials-rows");
  const { columns, rows } = tableOf("trials-rows");
  const row = rows.find((each) => trialIn(each[0]) === trial) ?? [trial]; // the table lists a part of a large sweep
  const pairs = row.map((value, at) => [columns[at].label, cellText(value, columns[at])]).slice(1);
  if (document.getElementById("decisions-rows")) {
    await unpack("decisions-rows");
    const told = tableOf("decisions-rows");
    const reason = told.columns.findIndex((column) => column.label === "reason");
    const reasons = told.rows.filter((each) => each[0] === trial).reverse().map((each) => ["scheduler", each[reason]]);
    pairs.splice(3, 0, ...reasons); // after configuration, status and epoch
  }
  dialog.querySelector("h2").textContent = String(row[0]);
  dialog.querySelector("a")?.setAttribute("href", `trials/${trial}`); // where a server has pages of trials
  dialog.querySelector("code").textContent = dialog.dataset.command.replace("TRIAL", trial);
  dialog.querySelector("dl").replaceChildren(...pairs.filter(([, text]) => text).flatMap(([name, text]) => {
    const [term, value] = ["dt", "dd"].map((kind) => document.createElement(kind));
    term.textContent = name;
    value.textContent = text;
    return [term, value];
  }));
  if (!dialog.open) dialog.showModal();
}

function setUpTrials() {
  const dialog = document.getElementById("trial");
  document.addEventListener("click", (event) => {
    const named = event.target.closest("[data-trial]");
    if (named) showTrial(named.dataset.trial);
    if (event.target === dialog || event.target.closest("dialog .close")) dialog.close();
  });
}

/* --- data ------------------------------------------------------------------------------------------------------- */

/* The link itself saves the compressed file; browsers that can unpack it hand over plain CSV. */
async function saveUnpacked(link) {
  const text = await gunzip(link.href.split(",", 2)[1]);
  const saved = document.createElement("a");
  saved.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  saved.download = link.download.replace(/\.gz$/, "");
  saved.click();
  setTimeout(() => URL.revokeObjectURL(saved.href), 10000);
}

function setUpDataLinks() {
  if (!("DecompressionStream" in window)) return;
  document.querySelectorAll(".data-link").forEach((link) => link.addEventListener("click", (event) => {
    event.preventDefault();
    saveUnpacked(link);
  }));
}

/* --- filters, theme, print ------------------------------------------------------------------------------------- */

function press(button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  return on;
}

function start() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  });

  const tables = [...document.querySelectorAll("section[data-table]")];
  tables.filter((section) => atHand(section.dataset.table)).forEach(setUpTable);
  document.querySelectorAll(".toolbar [data-status]").forEach((chip) => chip.addEventListener("click", () => {
    const on = press(chip);
    for (const status of chip.dataset.status.split(" ")) {
      if (on) hiddenStatuses.delete(status); else hiddenStatuses.add(status);
    }
    choose();
    tables.forEach((section) => section.refresh?.());
  }));
  document.querySelectorAll(".key [data-group]").forEach((chip) => chip.addEventListener("click", () => {
    press(chip);
    choose();
  }));

  let before = null;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.classList.add("printing");
    drawAll();
    setTheme("light");
    tables.forEach((section) => section.sayWhatIsPrinted?.());
  });
  window.addEventListener("afterprint", () => {
    root.classList.remove("printing");
    setTheme(before);
    tables.forEach((section) => section.refresh?.());
  });

  setUpDataLinks();
  setUpTrials();
  drawWhenNear();
  root.dataset.ready = "yes";
  setTimeout(() => unpackTheRest(tables), IDLE_MILLISECONDS);
}

/* So that tables are there to scroll to and all of it can be printed; figures that are drawn first come first. */
const IDLE_MILLISECONDS = 300;

async function unpackTheRest(tables) {
  if ("DecompressionStream" in window) {
    for (const section of tables) {
      if (section.refresh) continue;
      await unpack(section.dataset.table);
      setUpTable(section);
    }
    for (const plot of allPlots()) await unpack(plot.dataset.plot);
  }
  for (const plot of allPlots()) { // so that a picture of the whole page has them all
    await new Promise((resolve) => setTimeout(resolve));
    if (!drawn.has(plot)) await draw(plot);
  }
  root.dataset.unpacked = "yes";
}

start();
