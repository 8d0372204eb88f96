// The theme decides between light and dark when a page is loaded, which is after its figures are drawn: decide before, and
// paint the words of figures anew when a reader turns the page.
(() => {
  const page = document.documentElement;
  const wanted = localStorage.getItem("mode") || "auto";
  page.dataset.theme = wanted === "auto" ? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light") : wanted;
  new MutationObserver(() => {
    const colour = page.dataset.theme === "dark" ? "#d6d9de" : "#33373d";
    for (const figure of document.querySelectorAll(".js-plotly-plot")) {
      const meta = figure.layout && figure.layout.meta;
      if (!(meta && meta.theme)) Plotly.relayout(figure, { "font.color": colour });
    }
  }).observe(page, { attributes: true, attributeFilter: ["data-theme"] });
})();
