// SPDX-License-Identifier: MIT
// The third picture: a map of reserved memory at one moment.
const State = (() => {
  const ROWS = 6;
  const GAP = 4; // pixels between rows
  const GAP_OF_BLOCKS = 0.5;
  const UNDERLINE = 0.15; // height of the line of registered pages, as a part of a row
  const PIN_STEP = 5; // pixels between the lines of pinned pages
  const { rounded } = Pages;

  function order(numbers) {
    return Uint32Array.from(numbers.keys()).sort((a, b) => numbers[a] - numbers[b]);
  }

  // Computes states.  Lives and spans are sorted by address once, so the cost of a state is O(lives + spans).
  class Finder {
    constructor(model) {
      this.model = model;
      this.lives = order(model.lives.address);
      this.spans = order(model.spans.address);
    }

    at(moment) {
      const { lives, spans } = this.model;
      const state = { moment, lives: [], spans: [], allocated: 0, pending: 0, allocatedBlocks: 0, pendingBlocks: 0, reserved: 0 };
      for (const i of this.spans)
        if (spans.mappedAt[i] <= moment && moment < spans.unmappedAt[i]) { state.spans.push(i); state.reserved += spans.bytes[i]; }
      for (const i of this.lives) {
        if (lives.allocatedAt[i] > moment || moment >= lives.freedAt[i]) continue;
        state.lives.push(i);
        if (lives.freeRequestedAt[i] <= moment) { state.pending += lives.bytes[i]; state.pendingBlocks++; }
        else { state.allocated += lives.bytes[i]; state.allocatedBlocks++; }
      }
      this.placeSpans(state);
      this.splitCachedMemory(state);
      this.findReasons(state);
      return state;
    }

    // Compute the offsets of spans and blocks in reserved memory without gaps.
    placeSpans(state) {
      const { lives, spans } = this.model;
      state.spanOffset = new Float64Array(state.spans.length + 1);
      state.spans.forEach((i, at) => { state.spanOffset[at + 1] = state.spanOffset[at] + spans.bytes[i]; });
      state.offset = new Float64Array(state.lives.length).fill(-1);
      state.spanOf = new Int32Array(state.lives.length).fill(-1);
      let span = 0;
      state.lives.forEach((i, at) => {
        while (span < state.spans.length && spans.address[state.spans[span]] + spans.bytes[state.spans[span]] <= lives.address[i]) span++;
        if (span === state.spans.length || spans.address[state.spans[span]] > lives.address[i]) return;
        state.spanOf[at] = span;
        state.offset[at] = state.spanOffset[span] + lives.address[i] - spans.address[state.spans[span]];
      });
    }

    // Compute the cached memory, its fragmented part, and the pages that contain blocks.
    splitCachedMemory(state) {
      const { lives, spans } = this.model;
      const used = new Map();
      let blocks = 0;
      const usedRanges = [];
      // Visit the pages of a span between two addresses, with their mapped bytes.
      const forPages = (i, start, end, visit) => {
        const base = spans.address[i];
        const page = spans.page[i] || spans.bytes[i];
        for (let at = base + Math.floor((start - base) / page) * page; at < end; at += page)
          visit(at, Math.min(page, base + spans.bytes[i] - at));
      };
      state.lives.forEach((i, at) => {
        const span = state.spanOf[at];
        if (span < 0) return;
        const bytes = rounded(lives.bytes[i]);
        blocks += bytes;
        // A block can extend over several expandable spans.
        const end = lives.address[i] + bytes;
        let start = lives.address[i];
        for (let s = span; s < state.spans.length && start < end && start >= spans.address[state.spans[s]]; s++) {
          const spanEnd = spans.address[state.spans[s]] + spans.bytes[state.spans[s]];
          forPages(state.spans[s], start, Math.min(end, spanEnd), (page, mapped) => {
            if (used.has(page)) return;
            used.set(page, mapped);
            usedRanges.push({ offset: state.spanOffset[s] + page - spans.address[state.spans[s]], bytes: mapped });
          });
          if (spans.isClassic[state.spans[s]]) break;
          start = spanEnd;
        }
      });
      let usedBytes = 0;
      for (const mapped of used.values()) usedBytes += mapped;
      state.usedPages = usedRanges;
      state.fragmented = Math.max(0, usedBytes - blocks);
      state.cached = state.reserved - blocks;
    }

    // Find the reasons why pages without blocks are not released, and the registered pages.  xseg writes both only for the
    // state at the end.
    findReasons(state) {
      const { pages, spans } = this.model;
      state.reasons = new Map();
      state.pinned = [];
      state.registered = [];
      state.registeredBytes = 0;
      if (state.moment !== this.model.n) return;
      for (const page of pages) {
        state.registeredBytes += page.registered;
        if (page.reason !== "allocated" && page.reason !== "pending")
          state.reasons.set(page.reason, (state.reasons.get(page.reason) || 0) + page.bytes);
        const lists = [page.reason === "pinned" ? state.pinned : null, page.registered > 0 ? state.registered : null].filter(Boolean);
        const span = lists.length > 0 ? state.spans.findIndex((i) => spans.address[i] <= page.address && page.address < spans.address[i] + spans.bytes[i]) : -1;
        if (span < 0) continue;
        for (const list of lists)
          list.push({ offset: state.spanOffset[span] + page.address - spans.address[state.spans[span]], bytes: page.bytes });
      }
    }

    // Find the index in state.lives of the block at an offset; -1: none.
    find(state, offset) {
      let low = 0;
      let high = state.lives.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (state.offset[middle] > offset) high = middle;
        else low = middle + 1;
      }
      for (let at = low - 1; at >= 0 && at >= low - 2; at--)
        if (state.offset[at] >= 0 && offset < state.offset[at] + rounded(this.model.lives.bytes[state.lives[at]])) return at;
      return -1;
    }
  }

  // Get the rows of a view: the offset at their start, and the bytes of a row, both round.
  function rowsOf({ from, to }) {
    let bytes = Axis.roundUpBinary((to - from) / ROWS);
    let start = Math.floor(from / bytes) * bytes;
    while (start + ROWS * bytes < to) {
      bytes = Axis.roundUpBinary(bytes + 1);
      start = Math.floor(from / bytes) * bytes;
    }
    return { start, bytes };
  }

  // Call `paint` with the rectangle of each row that a range of offsets is in.
  function forRows({ start, bytes }, width, rowHeight, offset, size, paint) {
    const first = Math.max(0, offset - start);
    const end = Math.min(ROWS * bytes, offset + size - start);
    for (let row = Math.floor(first / bytes); row < ROWS && row * bytes < end; row++) {
      const left = ((Math.max(first, row * bytes) - row * bytes) / bytes) * width;
      const right = ((Math.min(end, (row + 1) * bytes) - row * bytes) / bytes) * width;
      paint(left, row * (rowHeight + GAP), right - left, rowHeight);
    }
  }

  function draw(context, width, height, pane) {
    const { state, model } = pane;
    const inner = Math.max(1, width - Timeline.LEFT);
    const rowHeight = height / ROWS - GAP;
    const rows = rowsOf(pane.stateView);
    const each = (offset, bytes, paint) => forRows(rows, inner, rowHeight, offset, bytes, paint);
    const rect = (offset, bytes, gap = 0) => each(offset, bytes, (x, y, w, h) => context.fillRect(x, y, Math.max(0.4, w - gap), h));
    context.clearRect(0, 0, width, height);
    if (state.reserved <= 0) return;
    context.save();
    context.translate(Timeline.LEFT, 0);
    context.fillStyle = Colors.theme("idle");
    rect(0, state.reserved);
    context.fillStyle = Colors.theme("fragmented");
    for (const page of state.usedPages) rect(page.offset, page.bytes);
    drawBlocks(context, pane, rect, rows);
    drawReasons(context, state, each);
    drawBorders(context, pane, rows, rowHeight, inner);
    if (pane.chosen >= 0) drawChosen(context, pane, each, model);
    const ticks = Array.from({ length: ROWS }, (_, row) => ({ at: row, text: Text.byteTick(rows.start + row * rows.bytes) }));
    Timeline.drawScale(context, "offset", ticks, (row) => (row + 0.5) * (rowHeight + GAP), height);
    context.restore();
  }

  function drawBlocks(context, pane, rect, rows) {
    const { state, model } = pane;
    const { lives } = model;
    const ground = Colors.theme("ground");
    for (let band = 0; band <= Sites.PENDING; band++)
      for (let at = 0; at < state.lives.length; at++) {
        const i = state.lives[at];
        const bytes = rounded(lives.bytes[i]);
        if (pane.bandOf(i, state.moment) !== band || state.offset[at] < 0 || state.offset[at] > rows.start + ROWS * rows.bytes ||
          state.offset[at] + bytes < rows.start) continue;
        context.fillStyle = ground;
        rect(state.offset[at], bytes);
        context.globalAlpha = pane.isLifeDim(i) ? Colors.DIM : 1;
        context.fillStyle = pane.bandFills[band];
        rect(state.offset[at], bytes, GAP_OF_BLOCKS);
        context.globalAlpha = 1;
      }
  }

  // Draw vertical lines on pinned pages, and a line below registered pages.
  function drawReasons(context, state, each) {
    context.fillStyle = Colors.theme("text");
    for (const page of state.pinned)
      each(page.offset, page.bytes, (x, y, w, h) => {
        for (let at = 0; at < w; at += PIN_STEP) context.fillRect(x + at, y, 1, h);
      });
    for (const page of state.registered)
      each(page.offset, page.bytes, (x, y, w, h) => context.fillRect(x, y + (1 - UNDERLINE) * h, Math.max(1, w), UNDERLINE * h));
  }

  // Draw the boundaries between segments.
  function drawBorders(context, pane, rows, rowHeight, width) {
    const { state, model } = pane;
    const { spans } = model;
    context.fillStyle = Colors.theme("text");
    for (let at = 1; at < state.spans.length; at++) {
      const previous = state.spans[at - 1];
      const offset = state.spanOffset[at] - rows.start;
      const touches = spans.address[previous] + spans.bytes[previous] === spans.address[state.spans[at]];
      if ((touches && !spans.isClassic[previous]) || offset < 0 || offset >= rows.bytes * ROWS) continue;
      const row = Math.floor(offset / rows.bytes);
      context.fillRect(((offset - row * rows.bytes) / rows.bytes) * width, row * (rowHeight + GAP) - 1, 1, rowHeight + 2);
    }
  }

  function drawChosen(context, pane, each, model) {
    const at = pane.state.lives.indexOf(pane.chosen);
    if (at < 0 || pane.state.offset[at] < 0) return;
    context.strokeStyle = Colors.theme("text");
    context.lineWidth = 2;
    each(pane.state.offset[at], rounded(model.lives.bytes[pane.chosen]),
      (x, y, w, h) => context.strokeRect(x + 1, y + 1, Math.max(1, w - 2), h - 2));
  }

  // Get the offset at a point.
  function offsetAt(pane, x, y, width, height) {
    const rows = rowsOf(pane.stateView);
    const row = Math.min(ROWS - 1, Math.max(0, Math.floor(y / (height / ROWS))));
    return rows.start + rows.bytes * (row + Math.max(0, x - Timeline.LEFT) / Math.max(1, width - Timeline.LEFT));
  }

  return { Finder, draw, offsetAt };
})();
