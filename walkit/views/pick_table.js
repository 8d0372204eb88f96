// A table whose rows can be chosen: a button in each row, or a checkbox. The server says what is in it.
export function render({ model, el }) {
  const region = document.createElement("div");
  region.className = "region";
  let drawn = "";
  const element = (name, text, more = {}) => Object.assign(document.createElement(name), { textContent: text, ...more });
  const control = (row, kind) => {
    if (row.id === "") { return document.createTextNode(row.cells[0]); }
    if (kind === "checkbox") {
      const label = element("label", "");
      const box = element("input", "", { type: "checkbox", checked: row.on });
      box.setAttribute("aria-label", row.label);
      box.dataset.id = row.id;
      box.addEventListener("change", () => model.send_msg({ id: row.id, on: box.checked }));
      label.append(box, element("span", row.cells[0]));
      return label;
    }
    const button = element("button", row.cells[0], { type: "button" });
    button.dataset.id = row.id;
    if (row.on) { button.setAttribute("aria-current", "true"); }
    button.setAttribute("aria-label", row.label);
    button.addEventListener("click", () => model.send_msg({ id: row.id, on: true }));
    return button;
  };
  const draw = () => {
    const told = JSON.stringify(model.shown);
    if (told === drawn) { return; }
    drawn = told;
    const { label, head, right, kind, rows } = model.shown;
    const focused = region.getRootNode().activeElement?.dataset?.id;
    region.replaceChildren();
    region.hidden = rows.length === 0;
    if (rows.length === 0) { return; }
    // Wider than the page, it is scrolled: so the keyboard must reach it.
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", label);
    const table = element("table", "");
    table.append(element("caption", label));
    const line = table.createTHead().insertRow();
    head.forEach((name, at) => {
      const cell = element("th", name, { scope: "col" });
      if (right.includes(at)) { cell.className = "right"; }
      line.append(cell);
    });
    const body = table.createTBody();
    for (const row of rows) {
      const made = body.insertRow();
      made.className = row.tone + (row.on ? " on" : "");
      row.cells.forEach((text, at) => {
        const cell = at === 0 ? element("th", "", { scope: "row" }) : element("td", text);
        if (at === 0) { cell.append(control(row, kind)); }
        if (right.includes(at)) { cell.classList.add("right"); }
        made.append(cell);
      });
    }
    region.append(table);
    if (focused) { [...region.querySelectorAll("[data-id]")].find((each) => each.dataset.id === focused)?.focus(); }
  };
  model.on("shown", draw);
  draw();
  return region;
}
