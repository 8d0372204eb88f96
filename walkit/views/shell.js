// The rail's links choose a page without a new session; the URL follows what the server says is shown.
(() => {
  // Between the making of a view and its drawing a model may change. Bokeh then sets fields of elements that are not there
  // ("Cannot set properties of undefined"), most often on a busy machine. The drawing takes what the model says, so that
  // such an error means nothing; any other is thrown as ever.
  let base = Bokeh.Models["Spinner"]?.prototype?.default_view?.prototype;
  while (base && !Object.hasOwn(base, "connect")) { base = Object.getPrototypeOf(base); }
  if (base) {
    const { connect, disconnect } = base;
    const undrawn = (view) => view.shadow_el !== undefined && view.shadow_el.childNodes.length === 0;
    const careful = (view, slot) => {
      view.walkitSlots ??= new WeakMap();
      if (!view.walkitSlots.has(slot)) {
        view.walkitSlots.set(slot, function (...told) {
          try { return slot.apply(this, told); } catch (error) {
            if (!(error instanceof TypeError && undrawn(view))) { throw error; }
          }
        });
      }
      return view.walkitSlots.get(slot);
    };
    base.connect = function (signal, slot) { return connect.call(this, signal, careful(this, slot)); };
    base.disconnect = function (signal, slot) { return disconnect.call(this, signal, careful(this, slot)); };
  }

  // What Bokeh draws without a name gets one, or is hidden from those who would need it.
  const mend = (name, how) => {
    const view = Bokeh.Models[name]?.prototype?.default_view?.prototype;
    if (view === undefined) { return; }
    const render = view.render;
    view.render = function () { render.call(this); how(this); };
  };
  mend("Checkbox", (view) => view.checkbox_el?.setAttribute("aria-label", view.model.label));
  mend("Spinner", (view) => {
    // For the mouse alone: in the field the keys up and down do the same.
    for (const button of [view.btn_up_el, view.btn_down_el]) {
      button?.setAttribute("aria-hidden", "true");
      button?.setAttribute("tabindex", "-1");
    }
  });

  // A figure is drawn once, in its place and at its size, when it comes into view. Panel's own view draws it apart, then at
  // its size, then once more after each change. On a phone figures have less room: their layout is changed as it is drawn.
  const phone = matchMedia("(max-width: 700px)");
  const narrow = WALKIT_NARROW;
  const drawings = new Set();  // of figures, as promises
  const main = document.getElementById("main");
  const pane = Bokeh.Models["panel.models.plotly.PlotlyPlot"]?.prototype?.default_view?.prototype;
  if (pane !== undefined) {
    const panes = new Map();  // by element
    const draw = async (view) => {
      const layout = view._layout_data();
      const width = view.el.clientWidth;
      if (view._plotInitialized && width !== view.walkitWidth) {
        Plotly.purge(view.container);  // at another width plotly leaves a legend where it was
        view._plotInitialized = false;
      }
      layout.width = view.walkitWidth = width;
      if (phone.matches) { narrow(layout, main.clientWidth - 30); }
      const clocks = layout.meta?.clock ?? [];
      if (zoom !== null && zoom.revision === layout.uirevision) {
        for (const name of clocks) { layout[name] = {...layout[name], range: [...zoom.range]}; }
      }
      view.container.style.height = `${layout.height}px`;
      // A double click would go back to the range that the figure had when it was empty.
      const config = {...view.model.config, responsive: false, doubleClick: clocks.length > 0 ? false : "reset+autosize"};
      await Plotly.react(view.container, view._trace_data(), layout, config);
      if (view._plotInitialized || !panes.has(view.el)) { return; }
      view._plotInitialized = true;
      view._setViewport = () => {};
      view._install_callbacks();
      if (clocks.length > 0) {
        view.container.on("plotly_relayout", (change) => zoomed(view, change));
        view.container.on("plotly_doubleclick", () => zoomed(view, null));
      }
    };
    // One range of time: the zoom of a figure is that of all others of its revision, until a double click.
    let zoom = null;
    const zoomed = (from, change) => {
      const name = Object.keys(change ?? {}).find((key) => /^xaxis\d*\.range/.test(key))?.split(".")[0];
      if (change !== null && name === undefined) { return; }
      const {_fullLayout: full} = from.container;
      zoom = change === null ? null : {range: full[name].range, revision: full.uirevision};
      for (const view of panes.values()) {
        if (!view.container?.layout?.meta?.clock) { continue; }
        if (change === null) { view.walkitWidth = null; }  // plotly keeps what a person chose in a figure that it knows
        if (change === null || view !== from) { view.plot(); }
      }
    };
    // One figure in a task: a click comes between two of them, and until its page is there none is drawn.
    let last = Promise.resolve();
    pane.plot = async function () {
      this.walkitLate = !this.walkitNear || this.el.clientWidth === 0;
      if (this.walkitLate || this.walkitWaits) { return; }
      this.walkitWaits = true;
      const drawing = last
        .then(() => new Promise((resolve) => { setTimeout(resolve); }))
        .then(() => {
          this.walkitWaits = false;
          if (panes.has(this.el) && !main.classList.contains("turning")) { return draw(this); }
        })
        .catch((error) => { if (panes.has(this.el)) { throw error; } })  // the page was turned while it was drawn
        .finally(() => drawings.delete(drawing));
      last = drawing.catch(() => {});
      drawings.add(drawing);
      await drawing;
    };
    const near = new IntersectionObserver((seen) => {
      for (const {target, isIntersecting} of seen) {
        const view = panes.get(target);
        if (view === undefined) { continue; }
        view.walkitNear = isIntersecting;
        if (view.walkitLate) { view.plot(); }
      }
    }, {root: main, rootMargin: "100px 0px"});
    const sized = new ResizeObserver((seen) => {
      for (const {target} of seen) {
        const view = panes.get(target);
        if (view !== undefined && target.clientWidth !== (view.walkitWidth ?? target.clientWidth)) { view.plot(); }
      }
    });
    const { remove } = pane;
    const render = Object.getPrototypeOf(pane).render;
    pane.render = function () {
      render.call(this);
      this.container = document.createElement("div");
      this.container.style.height = `${this.model.layout.height ?? 420}px`;
      this.shadow_el.append(this.container);
      this._plotInitialized = this.walkitNear = this.walkitWaits = false;
      this.walkitLate = true;
      panes.set(this.el, this);
      for (const observer of [near, sized]) { observer.unobserve(this.el); observer.observe(this.el); }
    };
    pane.resize_layout = () => {};
    pane.remove = function () {
      for (const observer of [near, sized]) { observer.unobserve(this.el); }
      panes.delete(this.el);
      const figure = this.container;
      this.container = null;
      remove.call(this);
      // Plotly may still draw the figure, and fails without it: it goes later.
      this.container = figure;
      if (figure) { setTimeout(() => { this.container = null; Plotly.purge(figure); }, 2000); }
    };
  }

  const model = (name) => {
    for (const known of Bokeh.documents) {
      const found = known.get_model_by_name(name);
      if (found !== null) { return found; }
    }
    return null;
  };
  const links = [...document.querySelectorAll("nav a[data-page]")];
  const pageOf = (query) => new URLSearchParams(query).get("page") ?? document.querySelector("nav[data-first]").dataset.first;
  const show = (slug) => {
    for (const link of links) {
      if (link.dataset.page !== slug) { link.removeAttribute("aria-current"); continue; }
      link.setAttribute("aria-current", "page");
      document.title = `${link.textContent} · walkit`;
    }
  };
  let asked = 0;
  const ask = (query) => {
    const wanted = model("wanted");
    if (wanted === null) { return false; }
    show(pageOf(query));
    main.classList.toggle("turning", pageOf(query) !== pageOf(location.search));
    wanted.value = `${query} ${++asked}`;
    return true;
  };
  for (const link of links) {
    link.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) { return; }
      if (!ask(`?page=${link.dataset.page}`)) { return; }  // not connected yet: the link loads its page
      event.preventDefault();
      main.focus({preventScroll: true});
    });
  }
  window.addEventListener("popstate", () => ask(location.search));
  const follow = () => {
    const query = model("query");
    if (query === null) { setTimeout(follow, 50); return; }
    let shown = pageOf(location.search);
    const write = () => {
      const page = pageOf(query.value);
      main.classList.remove("turning");
      if (query.value === location.search) { shown = page; show(page); return; }
      // A turned page is a step of the browser's history; a changed setting is not.
      if (page === shown) { history.replaceState(null, "", query.value); } else { history.pushState(null, "", query.value); }
      shown = page;
      show(page);
    };
    query.properties.value.change.connect(write);
    if (query.value) { write(); }
    document.documentElement.dataset.ready = "yes";
  };
  follow();

  // The server sends the next picture when this one is drawn and the browser has had a frame to show it: a window that
  // is hidden has no frames.
  const frame = () => new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve)); });
  let followed = null;
  const confirm = async () => {
    const number = followed.value;
    await frame();
    while (drawings.size) { await Promise.allSettled([...drawings]); }
    await frame();
    model("drawn").value = number;
  };
  const acknowledge = () => {  // a connection that was lost and found again has other models
    const picture = model("picture");
    if (picture === null || picture === followed) { return; }
    followed = picture;
    picture.properties.value.change.connect(confirm);
    confirm();
  };
  setInterval(acknowledge, 500);
  acknowledge();

  // One crosshair: where the pointer is on a figure's clock, a line stands on every clock of the page.
  const found = {at: -Infinity, plots: []};
  const collect = (root, into) => {
    for (const element of root.querySelectorAll("*")) {
      if (element.classList.contains("js-plotly-plot")) { into.push(element); continue; }
      if (element.shadowRoot !== null) { collect(element.shadowRoot, into); }
    }
    return into;
  };
  const withClocks = () => {
    if (performance.now() - found.at > 1000) {
      found.at = performance.now();
      found.plots = collect(document, []).filter((plot) => plot.layout?.meta?.clock && plot._fullLayout);
    }
    return found.plots;
  };
  const axesOf = (plot) => plot.layout.meta.clock.map((name) => {
    const x = plot._fullLayout[name];
    return [x, plot._fullLayout[`yaxis${x.anchor.slice(1)}`]];
  });
  const lines = (plot, count) => {
    plot.walkitLines ??= [];
    while (plot.walkitLines.length < count) {
      const line = document.createElement("div");
      line.style.cssText = "position:absolute;width:1px;background:var(--soft, gray);pointer-events:none;z-index:5";
      plot.walkitLines.push(line);
    }
    for (const line of plot.walkitLines) { if (line.parentNode !== plot) { plot.append(line); } }
    return plot.walkitLines;
  };
  const place = (time) => {
    for (const plot of withClocks()) {
      const axes = axesOf(plot);
      lines(plot, axes.length).forEach((line, index) => {
        const [x, y] = axes[index] ?? [];
        const at = x === undefined || time === null ? -1 : x.l2p(time);
        line.hidden = !(at >= 0 && at <= x._length);
        if (line.hidden) { return; }
        line.style.left = `${x._offset + at}px`;
        line.style.top = `${y._offset}px`;
        line.style.height = `${y._length}px`;
      });
    }
  };
  let standing = false;
  document.addEventListener("mousemove", (event) => {
    const over = event.composedPath().find((element) => element.classList?.contains("js-plotly-plot"));
    let time = null;
    if (over !== undefined && withClocks().includes(over)) {
      const box = over.getBoundingClientRect();
      const [left, top] = [event.clientX - box.left, event.clientY - box.top];
      for (const [x, y] of axesOf(over)) {
        const inside = left >= x._offset && left <= x._offset + x._length
          && top >= y._offset && top <= y._offset + y._length;
        if (inside) { time = x.p2l(left - x._offset); }
      }
    }
    if (time !== null || standing) { place(time); }
    standing = time !== null;
  }, {passive: true});
})();
