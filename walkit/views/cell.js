// The browser's side of walkit.views.cell: draws the widget's state, and sends nothing back.

// plotly.js is evaluated once for all views of a page, out of reach of a module loader that the page may have.
async function plotly(model) {
  globalThis.walkitPlotly ??= (() => {
    const module = { exports: {} };
    new Function("module", "exports", "define", model.get("plotly_js"))(module, module.exports, undefined);
    return module.exports;
  })();
  return globalThis.walkitPlotly;
}

async function render({ model, el }) {
  const [status, numbers, place] = [1, 2, 3].map(() => el.appendChild(document.createElement("div")));
  const figures = [];
  const Plotly = await plotly(model);
  let drawing = Promise.resolve();
  const write = () => {
    status.innerHTML = model.get("status");
    numbers.innerHTML = model.get("numbers");
  };
  const draw = () => {
    drawing = drawing.then(() => {
      const config = { displaylogo: false, responsive: true, showSendToCloud: false };
      return Promise.all(JSON.parse(model.get("figures")).map(({ data, layout }, at) => {
        figures[at] ??= place.appendChild(document.createElement("div"));
        return Plotly.react(figures[at], data, layout, config);
      }));
    });
  };
  write();
  // Figures without a width yet would be drawn in plotly's default one.
  const sized = new ResizeObserver(() => {
    if (el.clientWidth) {
      sized.disconnect();
      draw();
      model.on("change:figures", draw);
    }
  });
  sized.observe(el);
  model.on("change:status change:numbers", write);
  return () => {
    sized.disconnect();
    model.off("change:figures", draw);
    model.off("change:status change:numbers", write);
    drawing.then(() => figures.forEach(Plotly.purge));
  };
}

export default { render };
