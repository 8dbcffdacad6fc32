// Search, filter by state and sort the tables of a release.
const rows = [...document.querySelectorAll(".release tbody tr")].map((row) => ({ row, text: row.textContent.toLowerCase() }));
const search = document.getElementById("search"), state = document.getElementById("state"), order = document.getElementById("order");
const built = new Map([...document.querySelectorAll(".release tbody")].map((body) => [body, [...body.rows]]));

function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const { row, text } of rows) {
    const held = row.dataset.state; // the rows of a comparison have none
    row.hidden = !(words.every((word) => text.includes(word)) && (!state.value || !held || held === state.value));
  }
  for (const table of document.querySelectorAll(".release")) table.closest("section").hidden = !table.querySelector("tbody tr:not([hidden])");
  const count = document.querySelectorAll("tr[data-state]:not([hidden])").length;
  document.getElementById("count").textContent = `${count} of ${document.querySelectorAll("tr[data-state]").length}`;
}

function sort(heading, down) {
  const body = heading.closest("table").tBodies[0], column = heading.cellIndex;
  for (const other of heading.parentNode.cells) other.ariaSort = "none";
  heading.ariaSort = down ? "descending" : "ascending";
  const value = (row) => row.cells[column].dataset.value;
  const sorted = [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    return (down ? -1 : 1) * (isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
  });
  body.append(...sorted);
}

// Where a window is too narrow for headings: all pools at once.
function arrange() {
  const [column, way] = order.value.split(" ");
  for (const table of document.querySelectorAll(".pool table")) {
    if (order.value) sort(table.rows[0].cells[column], way === "down");
    else {
      for (const heading of table.rows[0].cells) heading.ariaSort = "none";
      table.tBodies[0].append(...built.get(table.tBodies[0]));
    }
  }
}

search.addEventListener("input", show);
state.addEventListener("change", show);
order.addEventListener("change", arrange);
for (const button of document.querySelectorAll(".release th button")) {
  const heading = button.parentNode;
  button.addEventListener("click", () => sort(heading, heading.ariaSort === "ascending"));
}
show();
