// Sorts a table by the heading that is clicked, and shows the rows with the words that are typed.
for (const table of document.querySelectorAll("#gallery ~ table, #gallery ~ * table")) {
  const rows = [...table.tBodies[0].rows];
  const value = (row, column) => row.cells[column].textContent;
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "Search runs";
  search.setAttribute("aria-label", "Search runs");
  search.className = "md-input md-input--stretch";
  search.oninput = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows)
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  };
  table.before(search);
  table.style.whiteSpace = "nowrap";
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.style.cursor = "pointer";
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const order = head.ariaSort === "descending" ? "ascending" : "descending";
      for (const each of table.tHead.rows[0].cells) {
        each.removeAttribute("aria-sort");
        each.firstChild.style.textDecoration = "";
      }
      head.setAttribute("aria-sort", order);
      button.style.textDecoration = order === "ascending" ? "overline" : "underline";
      const numbers = /^(-|[\d.]+( \(.*\))?|[\d.]+% .*)$/;
      const isNumber = rows.every((row) => numbers.test(value(row, column)));
      const key = (row) => (isNumber ? parseFloat(value(row, column)) || 0 : value(row, column));
      const up = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
      rows.sort((a, b) => (order === "ascending" ? up(a, b) : up(b, a)));
      table.tBodies[0].append(...rows);
    };
  });
}
