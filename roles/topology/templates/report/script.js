"use strict";
// Adds sorting and a filter to tables with data-sort. The page works without it.
for (const table of document.querySelectorAll("table[data-sort]")) {
  const body = table.tBodies[0];
  const order = new Intl.Collator(undefined, { numeric: true }).compare;
  const value = (row, n) => row.cells[n].dataset.v ?? row.cells[n].textContent.trim();
  [...table.tHead.rows[0].cells].forEach((head, n) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * order(value(a, n), value(b, n))));
    });
  });
  const box = document.getElementById(table.dataset.sort);
  if (!box) continue;
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("span");
  input.type = "search";
  input.id = "filter";
  label.htmlFor = "filter";
  label.textContent = "Filter";
  count.setAttribute("role", "status");
  count.className = "soft";
  box.append(label, input, count);
  const texts = new Map([...body.rows].map((row) => [row, row.textContent.toLowerCase()]));
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const [row, text] of texts) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${texts.size}`;
  });
}
// Opens all details for printing. The style sheet does the same in browsers that support it.
const unfolded = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    unfolded.push(details);
  }
});
addEventListener("afterprint", () => {
  for (const details of unfolded.splice(0)) details.open = false;
});
