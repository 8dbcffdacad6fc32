// Search, filter by state and sort the tables of a release.
const rows = [...document.querySelectorAll(".release tbody tr")].map((row) => ({ row, text: row.textContent.toLowerCase() }));
const search = document.getElementById("search"), state = document.getElementById("state");

function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const { row, text } of rows) {
    row.hidden = !(words.every((word) => text.includes(word)) && (!state.value || row.dataset.state === state.value));
    count += !row.hidden;
  }
  for (const pool of document.querySelectorAll(".pool")) pool.hidden = !pool.querySelector("tbody tr:not([hidden])");
  document.getElementById("count").textContent = `${count} of ${rows.length}`;
}

function sort(heading) {
  const body = heading.closest("table").tBodies[0], column = heading.cellIndex;
  const down = heading.ariaSort === "ascending";
  for (const other of heading.parentNode.cells) other.ariaSort = "none";
  heading.ariaSort = down ? "descending" : "ascending";
  const value = (row) => row.cells[column].dataset.value;
  const sorted = [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    return (down ? -1 : 1) * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
  });
  body.append(...sorted);
}

search.addEventListener("input", show);
state.addEventListener("change", show);
for (const button of document.querySelectorAll(".release th button")) button.addEventListener("click", () => sort(button.parentNode));
show();
