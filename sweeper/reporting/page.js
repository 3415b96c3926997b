"use strict";
/* Draws the plots and tables of the report from the JSON in the page. Nothing is loaded from anywhere. */

const root = document.documentElement;
const hiddenStatuses = new Set();
const drawn = new Set();

/* Large data stand in the page compressed; `unpacked` has their texts once they have been asked for. */
const unpacked = new Map();
const isPacked = (script) => script.type === "application/gzip";
const atHand = (id) => unpacked.has(id) || !isPacked(document.getElementById(id));
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
  const figure = resolveColours(read(plot.dataset.plot), getComputedStyle(root));
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
  drawn.add(plot);
  plot.dataset.drawn = "yes";
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

function spread(pair, scale) {
  const [mean, deviation] = pair.map((part) => (part === null ? null : part * scale));
  if (!deviation) return String(Number(mean.toPrecision(3)));
  const places = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(deviation))));
  return `${mean.toFixed(places)} ± ${deviation.toFixed(places)}`;
}

function cellText(value, kind) {
  if (value === null || value === undefined || (Array.isArray(value) && value[0] === null)) return "";
  if (kind === "spread") return spread(value, 1);
  if (kind === "percent") return spread(value, 100);
  if (kind === "status") return STATUS_WORDS[value] || value;
  return typeof value === "number" ? brief(value) : String(value);
}

function makeCell(value, column) {
  const cell = document.createElement("td");
  const text = cellText(value, column.kind);
  if (isNumeric(column.kind)) cell.className = "right";
  if (column.kind === "status" || column.label === "decision") {
    const pill = document.createElement("span");
    pill.className = `pill ${value}`;
    pill.textContent = text;
    cell.append(pill);
  } else {
    if (text.length > 48) cell.className = "long";
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
  const data = read(section.dataset.table);
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
      return !wanted || row.some((value, at) => cellText(value, data.columns[at].kind).toLowerCase().includes(wanted));
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
