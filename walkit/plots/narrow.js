// Makes a layout fit a box of this width: a title that is longer goes on in lines below, at spaces; on a phone, room is
// made for what is drawn, and words are smaller. Changes the layout that it is given.
(layout, width) => {
  const { title, margin } = layout;
  if (!margin || !width) return;
  if (title && title.text && layout.height) {
    const lines = title.text.split("<br>").flatMap((line, number) => {
      const [, open, words, close] = line.match(/^((?:<[^>]*>)*)(.*?)((?:<[^>]*>)*)$/);
      const most = Math.floor(Math.max(width / (open.includes("<b>") ? 7.6 : number ? 6.8 : 9), 20));
      const found = [""];
      for (const word of words.split(" ")) {
        const last = found.length - 1;
        if (found[last] && (found[last] + " " + word).length > most) found.push(word);
        else found[last] += (found[last] && " ") + word;
      }
      return found.flatMap((text) => text.match(new RegExp(`.{1,${most}}`, "g")) || [""])
        .map((text) => open + text + close);
    });
    const more = 21 * (lines.length - title.text.split("<br>").length);
    title.text = lines.join("<br>");
    title.y = 1 - ((1 - title.y) * layout.height) / (layout.height + more);
    margin.t += more;
    layout.height += more;
  }
  if (width >= 600) return;
  margin.l = Math.min(margin.l, 48);
  if (margin.r < 60) margin.r = Math.min(margin.r, 44); // a wider one has the labels of lines
  const smaller = (part, size) => {
    part.font = { ...part.font, size: Math.min((part.font && part.font.size) || size, size) };
  };
  for (const [name, part] of Object.entries(layout)) {
    if (/^legend\d*$/.test(name)) {
      smaller(part, 10);
      // Between two panels there is room for one line of three names.
      if (part.y > 0 && part.y < 0.5) {
        smaller(part, 9);
        Object.assign(part, { entrywidth: 0.33, entrywidthmode: "fraction" });
      }
    }
    if (!/^[xy]axis\d*$/.test(name)) continue;
    part.tickfont = { ...part.tickfont, size: 10 };
    if (part.title && part.title.text) smaller(part.title, 11);
    if (name[0] !== "x") continue;
    if (part.title && part.title.text && part.title.text.length > 40) {
      part.title.text = part.title.text.replace(/^(.{15,30}?,?) /, "$1<br>");
      const inner = layout.height - margin.t - margin.b;
      if (layout.legend && layout.legend.y < 0) layout.legend.y -= 16 / inner;
    }
    const words = Array.from(part.ticktext || part.tickvals || [], String);
    const most = words.some((word) => word.length > 3) ? 3 : 8;
    const every = Math.ceil(words.length / most);
    if (every > 1) {
      const kept = (_, at) => at % every === 0;
      part.tickvals = Array.from(part.tickvals).filter(kept);
      if (part.ticktext) part.ticktext = Array.from(part.ticktext).filter(kept);
    }
    part.tickangle = 0;
  }
  for (const note of layout.annotations || []) smaller(note, 11);
}
