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
  // A title that is longer than the box is wide goes on in lines below, at spaces.
  const fit = () => {
    const { title, margin, height } = figure.layout;
    if (!title || !title.text || !margin || !height || !box.clientWidth) return;
    const lines = title.text.split("<br>").flatMap((line, number) => {
      const [, open, words, close] = line.match(/^((?:<[^>]*>)*)(.*?)((?:<[^>]*>)*)$/);
      const most = Math.max(box.clientWidth / (open.includes("<b>") ? 7.6 : number ? 6.8 : 9), 20);
      const found = [""];
      for (const word of words.split(" ")) {
        const last = found.length - 1;
        if (found[last] && (found[last] + word).length >= most) found.push(word);
        else found[last] += (found[last] && " ") + word;
      }
      return found.map((text) => open + text + close);
    });
    const more = 18 * (lines.length - title.text.split("<br>").length);
    title.text = lines.join("<br>");
    title.y = 1 - ((1 - title.y) * height) / (height + more);
    margin.t += more;
    figure.layout.height += more;
  };
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
    fit();
    picture.remove();
    return Plotly.newPlot(box, figure.data, figure.layout, config).then(() => {
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        paint();
        Plotly.react(box, figure.data, figure.layout, config);
      });
    });
  }).catch(() => box.append(picture));
})(this);
