// The onload of a figure's picture: draws the figure in its place, and leaves the picture where that cannot be done.
(function (picture) {
  const box = picture.parentElement;
  const { figure, config, source } = Object.fromEntries(
    Object.entries(picture.dataset).map(([name, text]) => [name, JSON.parse(text)])
  );
  if (!box || box.dataset.drawn) return;
  box.dataset.drawn = "1";
  // A figure for either page takes the colour of text that this page wants.
  const dark = () => {
    for (let at = box; at; at = at.parentElement) {
      const [r, g, b, a = 1] = getComputedStyle(at).backgroundColor.match(/[\d.]+/g).map(Number);
      if (a > 0.5) return r + g + b < 380;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches && getComputedStyle(document.documentElement).colorScheme.includes("dark");
  };
  const paint = () => {
    const theme = figure.layout.meta && figure.layout.meta.theme;
    const look = figure.layout.template && figure.layout.template.layout;
    if (!theme && look && look.font) look.font.color = dark() ? "#d6d9de" : "#33373d";
  };
  const narrow = WALKIT_NARROW;
  // One script for all figures of a page, asked for once.
  const plotly = () => {
    if (window.Plotly) return Promise.resolve(window.Plotly);
    if (!source) return Promise.reject();
    window.walkitPlotlyAsked = window.walkitPlotlyAsked || new Promise((done, failed) => {
      const script = document.createElement("script");
      Object.assign(script, source, { crossOrigin: "anonymous" });
      script.onload = () => (window.Plotly ? done(window.Plotly) : failed());
      script.onerror = failed;
      document.head.append(script);
    });
    return window.walkitPlotlyAsked;
  };
  plotly().then((Plotly) => {
    paint();
    narrow(figure.layout, box.clientWidth);
    picture.remove();
    return Plotly.newPlot(box, figure.data, figure.layout, config).then(() => {
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        paint();
        Plotly.react(box, figure.data, figure.layout, config);
      });
    });
  }).catch(() => box.append(picture));
})(this);
