// A range with a label and its number, so that keyboard and screen reader have both. The server says from where to where.
export function render({ model, el }) {
  const label = document.createElement("label");
  const words = document.createElement("span");
  const range = Object.assign(document.createElement("input"), { type: "range", step: "1" });
  label.append(words, range);
  const say = () => { words.textContent = `${model.words}: ${Number(range.value).toLocaleString("en-US")}`; };
  const draw = () => {
    range.min = "0";
    range.max = String(model.end);
    range.value = String(model.value);
    say();
  };
  range.addEventListener("input", say);
  range.addEventListener("change", () => { model.send_msg({ value: Number(range.value) }); });
  for (const name of ["value", "end", "words"]) { model.on(name, draw); }
  draw();
  el.append(label);
}
