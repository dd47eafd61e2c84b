// SPDX-License-Identifier: MIT
// One file on the page: its pictures, and the mouse.
const Pane = (() => {
  const REDRAW_MS = 60; // the delay after the last change of the view until the second picture is drawn again

  const STATE_NAMES = {
    unmapped: "unmapped",
    allocated: "allocated",
    pending: "pending: freed, but still in use on another stream",
    fragmented: "fragmented: cached, on a page with a block",
    idle: "idle: cached, on a page without a block",
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
      this.setGroups("site");
      this.view = new Axis.View(model);
      this.isDim = (band) => (this.search !== null && !this.search.bands[band]) || (this.chosenBand >= 0 && this.chosenBand !== band);
      this.isLifeDim = (life) => (this.search !== null && !this.search.found[life]) ||
        (this.chosenBand >= 0 && this.chosenBand !== this.bandOf(life, this.cursor));
      this.build(root);
      this.listen();
    }

    // Group the blocks by call site or by a kind of label.
    setGroups(kind) {
      this.kind = kind;
      this.sites = Sites.find(this.model, kind);
      this.memory = new Series.Memory(this.model, this.sites);
    }

    regroup(kind) {
      this.setGroups(kind);
      this.heading.textContent = this.timelineHeading();
      this.setTheme();
      this.chooseBand(-1);
      if (this.chosen >= 0) this.choose(this.chosen);
    }

    timelineHeading() {
      return `Memory over time: allocated by ${Sites.KINDS[this.kind]}, and reserved`;
    }

    bandOf(life, moment) {
      return this.model.lives.freeRequestedAt[life] <= moment ? Sites.PENDING : this.sites.band[this.sites.ofLife[life]];
    }

    // --- Elements. ---

    build(root) {
      this.root = make(root, "section", { className: "pane", tabIndex: 0 });
      make(this.root, "h2", { textContent: this.model.summary.name });
      make(this.root, "div", { className: "figures", textContent: Details.file(this) });
      this.heading = make(this.root, "h3", { textContent: this.timelineHeading() });
      this.timeline = make(this.root, "canvas", { className: "timeline" });
      this.legend = make(this.root, "ul", { className: "legend" });
      this.hover = make(this.root, "div", { className: "figures", textContent: "\u00a0" });
      make(this.root, "h3", { textContent: "Pages over time, by address (offsets skip addresses that were never mapped)" });
      this.pages = make(this.root, "canvas", { className: "pages" });
      this.pagesLegend = make(this.root, "ul", { className: "legend" });
      make(this.root, "h3", { textContent: "Reserved memory at the cursor, by address (offsets skip unmapped addresses)" });
      this.stateText = make(this.root, "div", { className: "figures" });
      this.stateMap = make(this.root, "canvas", { className: "state" });
      this.stateLegend = make(this.root, "ul", { className: "legend" });
      this.text = make(this.root, "pre", { textContent: "Click on a block to see its call stack." });
      this.timeline.setAttribute("aria-label", "allocated memory over time");
      this.pages.setAttribute("aria-label", "pages over time");
      this.stateMap.setAttribute("aria-label", "reserved memory at the cursor");
      this.setTheme();
    }

    setTheme() {
      this.bandFills = Colors.bandFills(this.timeline.getContext("2d"));
      this.pixels = Colors.timelinePixels();
      this.pagesImage = null;
      this.fillLegends();
    }

    // Add an item to a legend: a square, or with `line` a line: [x, y, width, height].
    addItem(legend, fill, text, line = [0, 0, 12, 12]) {
      const item = make(legend, "li");
      this.addSwatch(item, fill, line);
      item.append(text);
    }

    addSwatch(parent, fill, line = [0, 0, 12, 12]) {
      const context = make(parent, "canvas", { width: 12, height: 12 }).getContext("2d");
      context.fillStyle = fill;
      context.fillRect(...line);
    }

    fillLegends() {
      const text = Colors.theme("text");
      const context = this.timeline.getContext("2d");
      const { pages } = this.model;
      this.legend.replaceChildren();
      this.addItem(this.legend, Colors.theme("reserved"), "reserved", [0, 5, 12, 2]);
      for (const [band, name] of this.bandNames()) {
        const item = make(this.legend, "li");
        const button = make(item, "button", { type: "button" });
        this.addSwatch(button, this.bandFills[band]);
        button.append(name);
        button.addEventListener("click", () => this.chooseBand(this.chosenBand === band ? -1 : band));
        item.dataset.band = band;
      }
      this.pagesLegend.replaceChildren();
      for (const state of Colors.STATES) this.addItem(this.pagesLegend, Colors.stateFill(context, state), STATE_NAMES[state]);
      this.stateLegend.replaceChildren();
      this.addItem(this.stateLegend, text, "end of a segment", [5, 0, 1, 12]);
      if (pages.some((page) => page.reason === "pinned")) this.addItem(this.stateLegend, text, "pinned pages, at the end of the recording", [3, 0, 1, 12]);
      if (pages.some((page) => page.registered > 0)) this.addItem(this.stateLegend, text, "registered pages, at the end of the recording", [0, 10, 12, 2]);
      make(this.stateLegend, "li", { textContent: "outline: the selected block; colors as above" });
    }

    bandNames() {
      const { sites } = this;
      const names = sites.order.slice(0, Sites.BANDS).map((site, band) => [band, sites.names[site]]);
      const count = sites.order.length - names.length;
      const others = [count > 0 ? `${Text.count(count)} other ${Sites.KINDS[this.kind]}s` : "", this.model.summed ? "omitted blocks" : ""].filter((name) => name !== "");
      if (others.length > 0) names.push([Sites.OTHERS, others.join(", ")]);
      names.push([Sites.PENDING, STATE_NAMES.pending]);
      return names;
    }

    // --- Selection. ---

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

    // Move the cursor, and the view if the cursor is outside of it.
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

    // Find the largest block of a band at the cursor; -1: none.
    findLargest(band) {
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
      if (this.isScheduled) return;
      this.isScheduled = true;
      requestAnimationFrame(() => { this.isScheduled = false; this.draw(); });
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

    // Draw the pictures that take longer than the first.
    finish() {
      this.map = new Pages.PageMap(this.model);
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
      this.pagesImage = { canvas: this.map.draw(this.view.edges(inner), inner, Math.max(1, height - Timeline.FOOT)), from: this.view.from, to: this.view.to, byTime: this.view.byTime };
    }

    // Draw the last image, stretched to the current view; a new image follows after the last change of the view.
    drawPagesStretched() {
      const { from, to } = this.view;
      if (!this.pagesImage) this.drawPages();
      const image = this.pagesImage;
      const { context, width, height } = this.prepare(this.pages);
      const inner = Math.max(1, Math.floor(width - Timeline.LEFT));
      const foot = Math.max(1, Math.floor(height - Timeline.FOOT));
      const left = ((image.from - from) / (to - from)) * inner;
      const right = ((image.to - from) / (to - from)) * inner;
      context.clearRect(0, 0, width, height);
      context.save();
      context.beginPath();
      context.rect(Timeline.LEFT, 0, inner, foot);
      context.clip();
      context.imageSmoothingEnabled = false;
      context.drawImage(image.canvas, Timeline.LEFT + left, 0, right - left, foot);
      context.restore();
      this.drawPagesAxes(context, inner, foot);
      clearTimeout(this.redrawTimer);
      if (image.from !== from || image.to !== to || image.canvas.width !== inner || image.byTime !== this.view.byTime)
        this.redrawTimer = setTimeout(() => { this.drawPages(); this.drawPagesStretched(); }, REDRAW_MS);
    }

    drawPagesAxes(context, inner, foot) {
      const { total } = this.map.addresses;
      context.save();
      context.translate(Timeline.LEFT, 0);
      Timeline.drawScale(context, "offset", total > 0 ? Axis.byteTicks(total, 4) : [], (at) => (at / total) * foot, foot);
      Timeline.drawFoot(context, this.view, inner, foot);
      Timeline.drawCursor(context, this.view, this.cursor, inner, foot);
      context.restore();
    }

    // --- The mouse. ---

    listen() {
      this.listenTo(this.timeline, (x, y) => this.clickTimeline(x, y), (x, y) => this.hoverTimeline(x, y));
      this.listenTo(this.pages, (x) => this.goTo(this.view.fromX(x - Timeline.LEFT, this.picture.inner)), () => {});
      this.listenToState();
      new ResizeObserver(() => this.drawSoon()).observe(this.root);
    }

    // Handle clicks, dragging to pan, and the wheel to zoom.
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
      return band === Sites.PENDING ? "pending" : band === Sites.OTHERS ? "other sites" : this.sites.names[this.sites.order[band]];
    }

    hoverTimeline(x, y) {
      const hit = Timeline.hit(this.picture, x, y);
      const { columns } = this.picture;
      this.hover.textContent = `events ${Text.count(hit.from)} to ${Text.count(hit.to)}: active (allocated and pending) ${Text.bytes(Series.active(columns, hit.at))}, ` +
        `reserved ${Text.bytes(columns[hit.at + Series.RESERVED])}` +
        (hit.band >= 0 ? `; ${this.bandName(hit.band)}: ${Text.bytes(columns[hit.at + hit.band])}` : "");
    }

    clickTimeline(x, y) {
      const hit = Timeline.hit(this.picture, x, y);
      this.goTo(this.memory.peakBetween(hit.from, hit.to).moment);
      this.choose(hit.band >= 0 ? this.findLargest(hit.band) : -1);
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
