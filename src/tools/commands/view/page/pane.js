// SPDX-License-Identifier: MIT
// One file on the page: its pictures, and what the mouse does to them.
const Pane = (() => {
  const PAGES_REST_MS = 60; // so long a view stands still before its pages are drawn anew

  const PAGE_NAMES = {
    unmapped: "unmapped",
    allocated: "allocated",
    pending: "pending",
    fragmented: "fragmented: cached, a block on its page",
    cached: "cached, on free pages",
    pinned: "pinned, at the end, in the map below",
    registered: "registered, at the end, a line in the map below",
  };

  function make(parent, tag, properties = {}) {
    const node = document.createElement(tag);
    Object.assign(node, properties);
    parent.append(node);
    return node;
  }

  class Pane {
    constructor(number, model, root, changed) {
      Object.assign(this, { number, model, changed, cursor: model.n, chosen: -1, chosenBand: -1, search: null });
      this.sites = Sites.find(model);
      this.memory = new Series.Memory(model, this.sites);
      this.view = new Axis.View(model);
      this.isDim = (band) => (this.search !== null && !this.search.bands[band]) || (this.chosenBand >= 0 && this.chosenBand !== band);
      this.isLifeDim = (life) => (this.search !== null && !this.search.found[life]) ||
        (this.chosenBand >= 0 && this.chosenBand !== this.bandOf(life, this.cursor));
      this.build(root);
      this.listen();
    }

    bandOf(life, moment) {
      return this.model.lives.freed[life] <= moment ? Sites.PENDING : this.sites.band[this.sites.ofLife[life]];
    }

    // --- Elements. ---

    build(root) {
      this.root = make(root, "section", { className: "pane", tabIndex: 0 });
      make(this.root, "h2", { textContent: this.model.facts.name });
      make(this.root, "div", { className: "figures", textContent: Details.file(this) });
      make(this.root, "h3", { textContent: "allocated memory by call site, stacked; the line is reserved memory" });
      this.timeline = make(this.root, "canvas", { className: "timeline" });
      this.legend = make(this.root, "ul", { className: "legend" });
      this.hover = make(this.root, "div", { className: "figures", textContent: "\u00a0" });
      make(this.root, "h3", { textContent: "pages over time, by address" });
      this.pages = make(this.root, "canvas", { className: "pages" });
      this.pagesLegend = make(this.root, "ul", { className: "legend" });
      this.stateText = make(this.root, "h3");
      this.stateMap = make(this.root, "canvas", { className: "state" });
      this.text = make(this.root, "pre", { textContent: "A click on a picture chooses a block, and shows its call stack." });
      this.timeline.setAttribute("aria-label", "allocated memory over time");
      this.pages.setAttribute("aria-label", "pages over time");
      this.stateMap.setAttribute("aria-label", "map of the blocks at the chosen event");
      this.setTheme();
    }

    setTheme() {
      this.fills = Colors.bands(this.timeline.getContext("2d"));
      this.inks = Colors.inks();
      this.pagesImage = null;
      this.fillLegends();
    }

    swatch(parent, fill) {
      const canvas = make(parent, "canvas", { width: 12, height: 12 });
      const context = canvas.getContext("2d");
      context.fillStyle = fill;
      context.fillRect(0, 0, 12, 12);
    }

    fillLegends() {
      const { sites } = this;
      const names = sites.order.slice(0, Sites.BANDS).map((site, band) => [band, sites.names[site]]);
      const rest = sites.order.length - names.length;
      const others = [rest > 0 ? `${rest} more sites` : "", this.model.summed ? "blocks that are summed" : ""].filter((text) => text !== "");
      if (others.length > 0) names.push([Sites.REST, others.join(", ")]);
      names.push([Sites.PENDING, "pending"]);
      this.legend.replaceChildren();
      for (const [band, name] of names) {
        const item = make(this.legend, "li");
        const button = make(item, "button", { type: "button" });
        this.swatch(button, this.fills[band]);
        button.append(name);
        button.addEventListener("click", () => this.chooseBand(this.chosenBand === band ? -1 : band));
        item.dataset.band = band;
      }
      this.pagesLegend.replaceChildren();
      for (const name of [...Pages.CLASSES, "pinned", "registered"]) {
        if (name === "pinned" && !this.model.pages.some((page) => page.reason === "pinned")) continue;
        if (name === "registered" && !this.model.pages.some((page) => page.registered > 0)) continue;
        const item = make(this.pagesLegend, "li");
        this.swatch(item, name === "unmapped" ? Colors.theme("empty") : Colors.PAGES[name]);
        item.append(PAGE_NAMES[name]);
      }
    }

    // --- What is chosen. ---

    chooseBand(band) {
      this.chosenBand = band;
      for (const item of this.legend.children) item.className = Number(item.dataset.band) === band ? "chosen" : "";
      this.drawSoon();
    }

    goTo(moment) {
      this.cursor = Math.min(this.model.n, Math.max(0, moment));
      this.state = null;
      this.drawSoon();
    }

    // Show a moment, and move the picture if it is outside.
    show(moment) {
      this.goTo(moment);
      const share = this.view.share(this.cursor);
      const width = this.view.to - this.view.from;
      if (share < this.view.from || share > this.view.to) {
        this.view.set(share - width / 2, share + width / 2);
        this.changed(this);
      }
    }

    choose(life) {
      this.chosen = life;
      this.text.textContent = life < 0 ? "" : Details.block(this, life) + Details.reason(this, this.model.lives.address[life]);
      this.drawSoon();
    }

    clear() {
      this.chooseBand(-1);
      this.choose(-1);
    }

    setSearch(query) {
      this.search = Search.find(this, query);
      this.drawSoon();
      return this.search;
    }

    // The largest block of a band at the cursor.
    largestOf(band) {
      const { lives } = this.model;
      let best = -1;
      for (const i of this.findState().lives)
        if (this.bandOf(i, this.cursor) === band && (best < 0 || lives.bytes[i] > lives.bytes[best])) best = i;
      return best;
    }

    findState() {
      if (!this.finder) this.finder = new State.Finder(this.model);
      if (!this.state) {
        this.state = this.finder.at(this.cursor);
        if (!this.stateView || !this.stateView.zoomed) this.stateView = { from: 0, to: this.state.reserved, zoomed: false };
      }
      return this.state;
    }

    // --- Drawing. ---

    drawSoon() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.draw(); });
    }

    prepare(canvas) {
      const scale = window.devicePixelRatio || 1;
      const width = canvas.clientWidth;
      const height = canvas.clientHeight;
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(height * scale);
      }
      const context = canvas.getContext("2d");
      context.setTransform(scale, 0, 0, scale, 0, 0);
      return { context, width, height };
    }

    draw() {
      this.drawTimeline();
      if (!this.isReady) return;
      this.drawPagesStretched();
      this.drawState();
    }

    drawTimeline() {
      const { context, width, height } = this.prepare(this.timeline);
      this.picture = Timeline.draw(context, width, height, this);
    }

    // What takes longer comes behind the first picture.
    finish() {
      this.map = new Pages.Map(this.model);
      this.isReady = true;
      this.draw();
    }

    drawState() {
      this.findState();
      const { context, width, height } = this.prepare(this.stateMap);
      State.draw(context, width, height, this);
      this.stateText.textContent = Details.moment(this);
    }

    drawPages() {
      const { width, height } = this.prepare(this.pages);
      const inner = Math.max(1, Math.floor(width - Timeline.LEFT));
      this.pagesImage = { canvas: this.map.draw(this.view.edges(inner), inner, height), from: this.view.from, to: this.view.to };
    }

    // The last picture at the place that it has now; a new one follows when the view stands still.
    drawPagesStretched() {
      const { from, to } = this.view;
      if (!this.pagesImage) this.drawPages();
      const image = this.pagesImage;
      const { context, width, height } = this.prepare(this.pages);
      const inner = Math.max(1, Math.floor(width - Timeline.LEFT));
      const left = ((image.from - from) / (to - from)) * inner;
      const right = ((image.to - from) / (to - from)) * inner;
      context.clearRect(0, 0, width, height);
      context.save();
      context.beginPath();
      context.rect(Timeline.LEFT, 0, inner, height);
      context.clip();
      context.imageSmoothingEnabled = false;
      context.drawImage(image.canvas, Timeline.LEFT + left, 0, right - left, height);
      context.fillStyle = Colors.theme("text");
      const x = this.view.toX(this.cursor, inner);
      context.fillRect(Timeline.LEFT + x - 1, 0, 2, height);
      context.restore();
      clearTimeout(this.rest);
      if (image.from !== from || image.to !== to || image.canvas.width !== inner || image.byTime !== this.view.byTime)
        this.rest = setTimeout(() => { this.drawPages(); this.pagesImage.byTime = this.view.byTime; this.drawPagesStretched(); }, PAGES_REST_MS);
    }

    // --- The mouse. ---

    listen() {
      this.listenTo(this.timeline, (x, y) => this.clickTimeline(x, y), (x, y) => this.hoverTimeline(x, y));
      this.listenTo(this.pages, (x) => this.goTo(this.view.fromX(x - Timeline.LEFT, this.picture.inner)), () => {});
      this.listenToState();
      new ResizeObserver(() => this.drawSoon()).observe(this.root);
    }

    // A click, a drag that pans, and a wheel that zooms.
    listenTo(canvas, click, hover) {
      let last = null;
      let moved = 0;
      canvas.addEventListener("pointerdown", (event) => { last = event.clientX; moved = 0; canvas.setPointerCapture(event.pointerId); });
      canvas.addEventListener("pointermove", (event) => {
        if (last === null) { hover(event.offsetX, event.offsetY); return; }
        moved += Math.abs(event.clientX - last);
        if (moved > 3) { this.view.pan((last - event.clientX) / this.picture.inner); this.changed(this); }
        last = event.clientX;
      });
      canvas.addEventListener("pointerup", (event) => {
        if (last !== null && moved <= 3) click(event.offsetX, event.offsetY);
        last = null;
      });
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        this.view.zoom(Math.exp(event.deltaY * 0.002), Math.min(1, Math.max(0, (event.offsetX - Timeline.LEFT) / this.picture.inner)));
        this.changed(this);
      }, { passive: false });
    }

    bandName(band) {
      return band === Sites.PENDING ? "pending" : band === Sites.REST ? "more sites" : this.sites.names[this.sites.order[band]];
    }

    hoverTimeline(x, y) {
      const hit = Timeline.hit(this.picture, x, y);
      const { columns } = this.picture;
      this.hover.textContent = `events ${Text.count(hit.from)} to ${Text.count(hit.to)}: used ${Text.bytes(Series.used(columns, hit.at))}, ` +
        `reserved ${Text.bytes(columns[hit.at + Series.RESERVED])}` +
        (hit.band >= 0 ? `; ${this.bandName(hit.band)}: ${Text.bytes(columns[hit.at + hit.band])}` : "");
    }

    clickTimeline(x, y) {
      const hit = Timeline.hit(this.picture, x, y);
      this.goTo(this.memory.peakBetween(hit.from, hit.to).moment);
      this.choose(hit.band >= 0 ? this.largestOf(hit.band) : -1);
    }

    listenToState() {
      const canvas = this.stateMap;
      const offset = (event) => State.offsetAt(this, event.offsetX, event.offsetY, canvas.clientWidth, canvas.clientHeight);
      const lifeAt = (event) => {
        const at = this.isReady ? this.finder.find(this.findState(), offset(event)) : -1;
        return at < 0 ? -1 : this.state.lives[at];
      };
      canvas.addEventListener("click", (event) => this.choose(lifeAt(event)));
      canvas.addEventListener("pointermove", (event) => {
        const life = lifeAt(event);
        this.hover.textContent = life < 0 ? "\u00a0" : `${Text.bytes(this.model.lives.bytes[life])}, ${this.sites.names[this.sites.ofLife[life]]}`;
      });
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        const { from, to } = this.stateView;
        const at = offset(event);
        const width = Math.min(this.state.reserved, Math.max(4096, (to - from) * Math.exp(event.deltaY * 0.002)));
        const start = Math.min(this.state.reserved - width, Math.max(0, at - ((at - from) / (to - from)) * width));
        this.stateView = { from: start, to: start + width, zoomed: width < this.state.reserved };
        this.drawSoon();
      }, { passive: false });
    }
  }

  return { Pane };
})();
