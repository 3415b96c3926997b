"use strict";
/* Draws the plots and tables of the report from the JSON in the page. Nothing is loaded from anywhere. */

const root = document.documentElement;
const hiddenStatuses = new Set();
const drawn = new Set();

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
  drawn.forEach(draw);
}

/* --- plots ---------------------------------------------------------------------------------------------------- */

function hiddenGroups(plot) {
  const pressed = plot.closest("section").querySelectorAll('.key [aria-pressed="false"]');
  return new Set([...pressed].map((chip) => chip.dataset.group));
}

/* Parallel coordinates are one trace: hidden statuses are taken out of its rows. */
function keepShown(trace) {
  const keep = (values) => values.filter((_, at) => !hiddenStatuses.has(trace.meta.statuses[at]));
  for (const dimension of trace.dimensions) dimension.values = keep(dimension.values);
  trace.line.color = keep(trace.line.color);
  trace.meta.trials = keep(trace.meta.trials);
}

/* Ranges dragged along axes leave the lines through all of them: the table of trials then has those alone. */
let brushed = null;

function brush(plot) {
  const { dimensions, meta } = plot.data[0];
  const ranged = dimensions.filter((dimension) => dimension.constraintrange);
  const inside = (dimension, at) => [dimension.constraintrange].flat(Array.isArray(dimension.constraintrange[0]) ? 1 : 0)
    .some(([low, high]) => low <= dimension.values[at] && dimension.values[at] <= high);
  brushed = ranged.length === 0 ? null : new Set(meta.trials.filter((_, at) => ranged.every((each) => inside(each, at))));
  document.getElementById("trials")?.refresh?.();
}

/* What a point says begins with its trial. */
const trialIn = (text) => (/\bc\d{5,}\b/.exec(String(text ?? "")) || [null])[0];

function listen(plot) {
  if (drawn.has(plot)) return;
  plot.on("plotly_click", (event) => showTrial(trialIn(event.points[0].text)));
  if (plot.data[0]?.type === "parcoords") plot.on("plotly_restyle", () => brush(plot));
}

async function drawUnpacked(plot) {
  try {
    await unpack(plot.dataset.plot);
  } catch (error) {
    plot.textContent = String(error.message);
    return;
  }
  draw(plot);
}

/* Paper cannot be scrolled sideways: on it labels of many axes stand aslant, and are small. */
function squeeze(trace) {
  trace.labelangle = -25;
  trace.labelfont.size = 8;
  trace.tickfont.size = 7;
}

/* Draws at once where the data are at hand, as printing needs it. */
function draw(plot) {
  if (!atHand(plot.dataset.plot)) return drawUnpacked(plot);
  const made = plot.closest("[data-choose]") ? chosen(plot) : read(plot.dataset.plot);
  const figure = resolveColours(made, getComputedStyle(root));
  figure.layout.uirevision = "kept"; // ranges and zoom outlast a change of theme or filter
  const groups = hiddenGroups(plot);
  for (const trace of figure.data) {
    const tags = trace.meta || {};
    if (tags.statuses) keepShown(trace);
    if (hiddenStatuses.has(tags.status) || groups.has(tags.group)) trace.visible = false;
  }
  if (root.classList.contains("printing")) {
    figure.layout.width = plot.clientWidth;
    figure.layout.height = plot.clientHeight;
    figure.data.filter((trace) => trace.type === "parcoords").forEach(squeeze);
  }
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  Plotly.react(plot, figure.data, figure.layout, config);
  listen(plot);
  drawn.add(plot);
  plot.dataset.drawn = "yes";
}

/* --- two columns of the table of trials against each other ---------------------------------------------------- */

const SYMBOLS = { completed: "circle", early_stopped: "circle-open", failed: "x-thin-open" };
const SERIES = 8;
const WIDE = 20; // ratio of the largest to the smallest value from which an axis is logarithmic, as in the figures

function setUpChoice(section) {
  const { columns } = tableOf("trials-rows");
  const fill = (name, fits, preferred) => {
    const select = section.querySelector(`[data-axis=${name}]`);
    columns.forEach((column, at) => { if (fits(column)) select.add(new Option(column.label, at)); });
    const first = [...select.options].find((option) => preferred.includes(option.text));
    if (first) select.value = first.value;
    select.addEventListener("change", () => draw(section.querySelector(".plot")));
  };
  const measured = (column) => isNumeric(column.kind) && column.label !== "replicates";
  fill("x", measured, ["test accuracy %"]);
  fill("y", measured, ["test ECE"]);
  fill("by", (column) => !isNumeric(column.kind) && !["trial", "configuration"].includes(column.label), ["loss"]);
}

const numberIn = (value, kind) => {
  const mean = Array.isArray(value) ? value[0] : value;
  return mean === null || mean === undefined ? null : mean * (kind === "percent" ? 100 : 1);
};

function chosenAxis(column, values) {
  const log = values.every((value) => value > 0) && Math.max(...values) / Math.min(...values) >= WIDE;
  const [first, last] = log ? [Math.min(...values), Math.max(...values)].map((value) => Math.floor(Math.log10(value))) : [0, -1];
  const ticks = Array.from({ length: last - first + 2 }, (_, at) => [1, 2, 5].map((each) => Number(`${each}e${first + at}`))).flat();
  return {
    title: { text: column.label, standoff: 8, font: { size: 12 } }, type: log ? "log" : "linear", gridcolor: "var(--grid)",
    linecolor: "var(--axis)", zeroline: false, showline: true, automargin: true, tickfont: { size: 11 },
    ...(log ? { tickvals: ticks, ticktext: ticks.map(String) } : {}),
  };
}

function chosen(plot) {
  const data = tableOf("trials-rows");
  const section = plot.closest("[data-choose]");
  if (!section.querySelector("option")) setUpChoice(section);
  const [x, y, by] = ["x", "y", "by"].map((name) => Number(section.querySelector(`[data-axis=${name}]`).value));
  const place = (row, at) => numberIn(row[at], data.columns[at].kind);
  const rows = data.rows.filter((row) => place(row, x) !== null && place(row, y) !== null);
  const groups = [...new Set(rows.map((row) => cellText(row[by], data.columns[by])))].sort();
  const traces = [];
  groups.forEach((group, at) => [...new Set(rows.map((row) => row[data.status]))].forEach((status) => {
    const mine = rows.filter((row) => cellText(row[by], data.columns[by]) === group && row[data.status] === status);
    if (mine.length === 0) return;
    const said = (row) => [`<b>${row[0]}</b> ${row[1]}`, ...[data.status, x, y].map((each) =>
      `${each === data.status ? "" : `${data.columns[each].label} `}${cellText(row[each], data.columns[each])}`)].join("<br>");
    const colour = `var(--series-${(at % SERIES) + 1})`;
    traces.push({
      type: "scatter", mode: "markers", x: mine.map((row) => place(row, x)), y: mine.map((row) => place(row, y)),
      text: mine.map(said), hovertemplate: "%{text}<extra></extra>", meta: { status },
      name: group || "none", legendgroup: group, showlegend: !traces.some((trace) => trace.legendgroup === group),
      marker: { size: 8, symbol: SYMBOLS[status] || "diamond-open", color: colour, line: { width: 1.4, color: colour } },
    });
  }));
  const axis = (at) => chosenAxis(data.columns[at], rows.map((row) => place(row, at)));
  return {
    data: traces,
    layout: {
      paper_bgcolor: "var(--card)", plot_bgcolor: "var(--card)", font: { color: "var(--soft)" }, hovermode: "closest",
      margin: { l: 52, r: 14, t: 10, b: 44 }, xaxis: axis(x), yaxis: axis(y), showlegend: true,
      legend: { orientation: "h", y: -0.2 },
    },
  };
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
  const row = rows.find((each) => trialIn(each[0]) === trial);
  if (!row) return;
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
    const dot = event.target.closest(".small-plots svg g");
    if (named ?? dot) showTrial(named ? named.dataset.trial : trialIn(dot.querySelector("title")?.textContent));
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
    drawn.forEach(draw);
    tables.forEach((section) => section.refresh?.());
  }));
  document.querySelectorAll(".key [data-group]").forEach((chip) => chip.addEventListener("click", () => {
    press(chip);
    chip.closest("section").querySelectorAll(".plot").forEach(draw);
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
