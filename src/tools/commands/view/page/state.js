// SPDX-License-Identifier: MIT
// The state at one moment: what is mapped, which blocks are there, and a map of them.
const State = (() => {
  const ROWS = 6;
  const GAP = 4;
  const LINE = 0.15; // of a row's height: the line beneath what is registered
  const { rounded } = Pages;

  function order(numbers) {
    return Uint32Array.from(numbers.keys()).sort((a, b) => numbers[a] - numbers[b]);
  }

  // Finds states; sorting all lives by address once makes each a matter of one pass.
  class Finder {
    constructor(model) {
      this.model = model;
      this.lives = order(model.lives.address);
      this.spans = order(model.spans.address);
    }

    at(moment) {
      const { lives, spans } = this.model;
      const state = { moment, lives: [], spans: [], live: 0, pending: 0, liveBlocks: 0, pendingBlocks: 0, reserved: 0 };
      for (const i of this.spans)
        if (spans.born[i] <= moment && moment < spans.died[i]) { state.spans.push(i); state.reserved += spans.bytes[i]; }
      for (const i of this.lives) {
        if (lives.born[i] > moment || moment >= lives.died[i]) continue;
        state.lives.push(i);
        if (lives.freed[i] <= moment) { state.pending += lives.bytes[i]; state.pendingBlocks++; }
        else { state.live += lives.bytes[i]; state.liveBlocks++; }
      }
      this.place(state);
      this.split(state);
      this.explain(state);
      return state;
    }

    // Where spans and blocks are when what is not mapped is left out.
    place(state) {
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

    // Cached memory, and the part of it that is stranded.
    split(state) {
      const { lives, spans } = this.model;
      const used = new Map();
      let blocks = 0;
      // Pages between two addresses of a span, by where they begin, with their bytes that are mapped.
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
        // A block may lie in several expandable spans.
        const end = lives.address[i] + bytes;
        let start = lives.address[i];
        for (let s = span; s < state.spans.length && start < end && start >= spans.address[state.spans[s]]; s++) {
          const stop = spans.address[state.spans[s]] + spans.bytes[state.spans[s]];
          forPages(state.spans[s], start, Math.min(end, stop), (page, mapped) => used.set(page, mapped));
          if (spans.isClassic[state.spans[s]]) break;
          start = stop;
        }
      });
      let held = 0;
      for (const mapped of used.values()) held += mapped;
      state.stranded = Math.max(0, held - blocks);
      state.cached = state.reserved - blocks;
    }

    // Why pages without blocks stay, and which are registered, as the allocator explained it when the file was written: of
    // the end alone.
    explain(state) {
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

    // The place in state.lives of the block at an offset, or -1.
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

  // Draw offsets from..to in rows.
  function draw(context, width, height, pane) {
    const { state, model } = pane;
    const { from, to } = pane.stateView;
    const rowHeight = height / ROWS - GAP;
    const perRow = (to - from) / ROWS;
    // A rectangle of full height, or of a part of it at the lower end.
    const rect = (offset, bytes, part = 1) => {
      const start = Math.max(0, offset - from);
      const end = Math.min(to - from, offset + bytes - from);
      for (let row = Math.floor(start / perRow); row < ROWS && row * perRow < end; row++) {
        const x = ((Math.max(start, row * perRow) - row * perRow) / perRow) * width;
        const behind = ((Math.min(end, (row + 1) * perRow) - row * perRow) / perRow) * width;
        context.fillRect(x, row * (rowHeight + GAP) + (1 - part) * rowHeight, Math.max(0.4, behind - x - (behind - x > 4 ? 0.5 : 0)), part * rowHeight);
      }
    };
    context.clearRect(0, 0, width, height);
    if (perRow <= 0) return;
    context.fillStyle = Colors.theme("empty");
    rect(0, state.reserved);
    context.fillStyle = Colors.PAGES.pinned;
    for (const page of state.pinned) rect(page.offset, page.bytes);
    drawBlocks(context, pane, rect, from, to);
    context.fillStyle = Colors.PAGES.registered;
    for (const page of state.registered) rect(page.offset, page.bytes, LINE);
    drawBorders(context, pane, perRow, rowHeight, width);
    if (pane.chosen >= 0) outline(context, pane, rect, model);
  }

  function drawBlocks(context, pane, rect, from, to) {
    const { state, model } = pane;
    const { lives } = model;
    for (let band = 0; band <= Sites.PENDING; band++) {
      context.fillStyle = pane.fills[band];
      for (let at = 0; at < state.lives.length; at++) {
        const i = state.lives[at];
        const bytes = rounded(lives.bytes[i]);
        if (pane.bandOf(i, state.moment) !== band || state.offset[at] < 0 || state.offset[at] > to || state.offset[at] + bytes < from) continue;
        context.globalAlpha = pane.isLifeDim(i) ? 0.18 : 1;
        rect(state.offset[at], bytes);
      }
    }
    context.globalAlpha = 1;
  }

  // Where a segment ends and the next begins.
  function drawBorders(context, pane, perRow, rowHeight, width) {
    const { state, model } = pane;
    const { spans } = model;
    context.fillStyle = Colors.theme("text");
    for (let at = 1; at < state.spans.length; at++) {
      const before = state.spans[at - 1];
      const offset = state.spanOffset[at] - pane.stateView.from;
      const touches = spans.address[before] + spans.bytes[before] === spans.address[state.spans[at]];
      if ((touches && !spans.isClassic[before]) || offset < 0 || offset >= perRow * ROWS) continue;
      const row = Math.floor(offset / perRow);
      context.fillRect(((offset - row * perRow) / perRow) * width, row * (rowHeight + GAP) - 1, 1, rowHeight + 2);
    }
  }

  function outline(context, pane, rect, model) {
    const at = pane.state.lives.indexOf(pane.chosen);
    if (at < 0 || pane.state.offset[at] < 0) return;
    context.fillStyle = Colors.theme("reserved");
    rect(pane.state.offset[at], rounded(model.lives.bytes[pane.chosen]));
  }

  // The offset under a point.
  function offsetAt(pane, x, y, width, height) {
    const { from, to } = pane.stateView;
    const row = Math.min(ROWS - 1, Math.max(0, Math.floor(y / (height / ROWS))));
    return from + ((to - from) / ROWS) * (row + x / width);
  }

  return { Finder, draw, offsetAt };
})();
