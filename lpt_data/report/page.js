// Filters, search, sorting, copying. The page can be read without any of it; nothing here builds markup out of text.
"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

for (const bar of all(".toolbar")) {
  const target = document.getElementById(bar.dataset.for);
  const items = all("[data-group]", target);
  const search = bar.querySelector("input");
  const told = bar.querySelector(".told");
  let chosen = "";
  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const item of items) {
      const text = words.length ? item.textContent.toLowerCase() : "";
      item.hidden = (chosen !== "" && item.dataset.group !== chosen) || !words.every((word) => text.includes(word));
      shown += !item.hidden;
    }
    told.textContent = shown === items.length ? "" : `${shown} of ${items.length} shown`;
  };
  for (const button of all("[data-show]", bar)) {
    button.addEventListener("click", () => {
      chosen = button.dataset.show;
      for (const other of all("[data-show]", bar)) other.setAttribute("aria-pressed", String(other === button));
      apply();
    });
  }
  search.addEventListener("input", apply);
  const expand = bar.querySelector(".expand");
  if (expand) {
    expand.addEventListener("click", () => {
      const open = expand.getAttribute("aria-expanded") !== "true";
      for (const item of items) if (!item.hidden) item.open = open;
      expand.setAttribute("aria-expanded", String(open));
      expand.textContent = open ? "Collapse all" : "Expand all";
    });
  }
  bar.hidden = false;
}

// A number sorts as a number, a text as a text; where two are equal the order of the page stays.
const key = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.sort ?? cell.textContent.trim();
};
const before = (a, b) => {
  const numbers = a !== "" && b !== "" && !Number.isNaN(Number(a)) && !Number.isNaN(Number(b));
  return numbers ? Number(a) - Number(b) : a < b ? -1 : Number(a > b);
};
for (const table of all("table.sortable")) {
  all("thead th", table).forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => before(key(a, column), key(b, column)) * (up ? 1 : -1));
      body.append(...rows);
    });
  });
}

const copied = async (code) => {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  }
};
for (const button of all("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const done = await copied(button.previousElementSibling);
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

addEventListener("beforeprint", () => { for (const closed of all("details.pair:not([open])")) closed.open = true; });
