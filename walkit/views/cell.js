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
  const [status, numbers, figure] = [1, 2, 3].map(() => el.appendChild(document.createElement("div")));
  const Plotly = await plotly(model);
  let drawing = Promise.resolve();
  const write = () => {
    status.innerHTML = model.get("status");
    numbers.innerHTML = model.get("numbers");
  };
  const draw = () => {
    drawing = drawing.then(() => {
      const { data, layout } = JSON.parse(model.get("figure"));
      return Plotly.react(figure, data, layout, { displaylogo: false, responsive: true, showSendToCloud: false });
    });
  };
  write();
  // A figure that has no width yet would be drawn in plotly's default one.
  const sized = new ResizeObserver(() => {
    if (el.clientWidth) {
      sized.disconnect();
      draw();
      model.on("change:figure", draw);
    }
  });
  sized.observe(el);
  model.on("change:status change:numbers", write);
  return () => {
    sized.disconnect();
    model.off("change:figure", draw);
    model.off("change:status change:numbers", write);
    drawing.then(() => Plotly.purge(figure));
  };
}

export default { render };
