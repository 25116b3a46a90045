"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Sorting: rows stay between their headings, and rows that belong below one stay there.

const number = (text) => parseFloat(text.replace(/[\u2248,\s]/g, "").replace("\u2212", "-"));

function compare(first, second) {
  const [one, other] = [number(first), number(second)];
  if (isNaN(one) && isNaN(other)) return first.localeCompare(second);
  return isNaN(one) - isNaN(other) || one - other;
}

function sortBy(head) {
  const table = head.closest("table");
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
  head.ariaSort = sign > 0 ? "ascending" : "descending";
  const parts = [[]];
  for (const row of table.tBodies[0].rows) {
    if (row.cells[0].matches("th")) parts.push([[row]], []);
    else if (row.matches(".below")) parts.at(-1).at(-1).push(row);
    else parts.at(-1).push([row]);
  }
  const cell = ([row]) => row.cells[head.cellIndex]?.textContent ?? "";
  const missing = (rows) => isNaN(number(cell(rows)));
  for (const rows of parts) {
    rows.sort((one, other) => {
      const order = compare(cell(one), cell(other));
      return missing(one) !== missing(other) ? order : sign * order;
    });
  }
  table.classList.add("sorted");
  table.tBodies[0].append(...parts.flat(2));
}

// The files that a number is from

const packed = JSON.parse(document.getElementById("packed").textContent);
const dialog = document.getElementById("record");

async function content(index) {
  const response = await fetch(`data:application/gzip;base64,${packed[index][1]}`);
  return new Response(response.body.pipeThrough(new DecompressionStream("gzip"))).text();
}

function readable(path, text) {
  if (!path.endsWith(".json")) return text;
  const { result, ...rest } = JSON.parse(text);
  const shown = JSON.stringify(result === undefined ? rest : { result, ...rest }, null, 2);
  return shown.replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, items) => `[${items.replace(/\s+/g, " ")}]`);
}

async function show(indices) {
  const shown = await Promise.all(
    indices.map(async (index) => {
      const [path] = packed[index];
      const text = await content(index);
      const details = document.createElement("details");
      const save = document.createElement("a");
      const pre = document.createElement("pre");
      details.append(document.createElement("summary"), save, pre);
      details.open = indices.length === 1;
      details.firstChild.textContent = path;
      save.textContent = "download";
      save.download = path.replaceAll("/", "-");
      save.href = `data:text/plain;charset=utf-8,${encodeURIComponent(text)}`;
      pre.textContent = readable(path, text);
      return details;
    }),
  );
  present(shown);
}

function present(shown) {
  dialog.lastElementChild.replaceChildren(...shown);
  dialog.showModal();
}

// The notes that the marks of a cell, such as [2], stand for

function notes(cell) {
  const marks = cell.textContent.match(/\[\d+\]/g) ?? [];
  if (!marks.length) return marks;
  const own = all(".notes p", cell.closest("article"));
  return own.filter((note) => marks.some((mark) => note.textContent.startsWith(`${mark} `)));
}

// Searching: an article whose head has all words is shown whole, another one with the rows that have them.

const search = document.getElementById("search");

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => words.every((word) => text.toLowerCase().includes(word));
  let found = 0;
  for (const article of all("article")) {
    const head = all("h2, h3, .caption", article).map((part) => part.textContent);
    const rows = all("tbody tr, li", article);
    const whole = has([article.id, ...head].join(" "));
    const hits = whole ? rows : rows.filter((row) => has(row.textContent));
    const shown = whole || hits.length > 0 || has(article.textContent);
    const kept = new Set(hits.length ? hits : rows);
    rows.forEach((row) => (row.hidden = !kept.has(row)));
    for (const grid of all(".grid", article)) {
      grid.hidden = all("tbody tr:not([hidden])", grid).length === 0;
      if (grid.previousElementSibling?.matches("h4")) grid.previousElementSibling.hidden = grid.hidden;
    }
    article.hidden = !shown;
    all(`nav a[href="#${article.id}"]`).forEach((link) => (link.parentElement.hidden = !shown));
    found += shown;
  }
  for (const list of all("nav ul")) {
    list.previousElementSibling.hidden = all("li:not([hidden])", list).length === 0;
  }
  all("main > section").forEach((section) => {
    section.hidden = words.length > 0 && all("article:not([hidden])", section).length === 0;
  });
  document.getElementById("found").textContent = words.length ? `${found} found` : "";
}

function lookFor(words) {
  search.value = words;
  find();
}

document.addEventListener("click", ({ target }) => {
  const from = target.closest("[data-files]");
  if (from) return show(from.dataset.files.split(" ").map(Number));
  const marked = target.closest("td.marked");
  if (marked) return present(notes(marked).map((note) => note.cloneNode(true)));
  const head = target.closest("thead th");
  if (head) return sortBy(head);
  const chip = target.closest("[data-search]");
  if (chip) {
    lookFor(chip.dataset.search);
    document.getElementById(chip.dataset.to).scrollIntoView();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("td")) event.target.click();
});
search.addEventListener("input", find);
window.addEventListener("hashchange", () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.closest("[hidden]")) {
    lookFor("");
    target.scrollIntoView();
  }
});
all("td:not([data-files])").forEach((cell) => cell.classList.toggle("marked", notes(cell).length > 0));
all("td[data-files], td.marked").forEach((cell) => (cell.tabIndex = 0));
all("a[download]:not([href])").forEach((link) => (link.href = link.closest("article").querySelector("img").src));
if (matchMedia("(max-width: 60em)").matches) document.querySelector("nav details").open = false;
