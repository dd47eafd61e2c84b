// SPDX-License-Identifier: MIT
// The second picture: the state of pages over time.  Each row of pixels is an address range, each column a moment; a pixel has
// the color of the state of most of its bytes.  Addresses that were never mapped have no row.
//
// A page is the unit that is released to the driver: the page size of an expandable segment, or a whole classic segment.  Cached
// memory is fragmented if its page also contains a block, and idle otherwise.
const Pages = (() => {
  const GRANULE = 2 * 1024 * 1024; // of the driver; the pages of expandable segments are multiples
  const UNIT = 512; // of block sizes
  const rounded = (bytes) => Math.max(1, Math.ceil(bytes / UNIT)) * UNIT;

  // All addresses that were ever mapped, as offsets without gaps.
  class Addresses {
    constructor(spans) {
      this.start = [];
      this.end = [];
      for (const i of Array.from({ length: spans.count }, (_, i) => i).sort((a, b) => spans.address[a] - spans.address[b])) {
        const start = Math.floor(spans.address[i] / GRANULE) * GRANULE;
        const end = Math.ceil((spans.address[i] + spans.bytes[i]) / GRANULE) * GRANULE;
        const last = this.end.length - 1;
        if (last >= 0 && start <= this.end[last]) this.end[last] = Math.max(this.end[last], end);
        else { this.start.push(start); this.end.push(end); }
      }
      this.offset = [];
      this.total = 0;
      for (let i = 0; i < this.start.length; i++) {
        this.offset.push(this.total);
        this.total += this.end[i] - this.start[i];
      }
    }

    // Get the offset of an address; -1: the address was never mapped.
    of(address) {
      let low = 0;
      let high = this.start.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.end[middle] > address) high = middle;
        else low = middle + 1;
      }
      return low < this.start.length && this.start[low] <= address ? this.offset[low] + address - this.start[low] : -1;
    }
  }

  // The pages that contain blocks, as changes in the order of moments: offset, and bytes with a sign.
  class UsedPages {
    constructor(model, addresses) {
      this.count = 0;
      this.moment = new Uint32Array(1024);
      this.offset = new Float64Array(1024);
      this.bytes = new Float64Array(1024);
      const granules = addresses.total / GRANULE;
      this.used = new Float64Array(granules); // bytes of blocks in the page that begins at a granule
      this.first = Uint32Array.from({ length: granules }, (_, i) => i); // granule of the page that a granule belongs to
      this.end = this.first.map((i) => i + 1); // granule after that page
      this.owner = new Int32Array(granules).fill(-1); // the classic segment at a granule
      this.usedOf = new Float64Array(model.spans.count);
      this.model = model;
      this.addresses = addresses;
      this.addEvents();
    }

    add(moment, offset, bytes) {
      if (this.count === this.moment.length)
        for (const name of ["moment", "offset", "bytes"]) {
          const grown = new this[name].constructor(2 * this.count);
          grown.set(this[name]);
          this[name] = grown;
        }
      this.moment[this.count] = moment;
      this.offset[this.count] = offset;
      this.bytes[this.count++] = bytes;
    }

    // Add bytes of blocks to the page that begins at a granule, or remove them.
    changePageUse(moment, first, bytes) {
      const previous = this.used[first];
      this.used[first] += bytes;
      const page = (this.end[first] - first) * GRANULE;
      if (previous === 0 && bytes > 0) this.add(moment, first * GRANULE, page);
      if (this.used[first] === 0 && bytes < 0) this.add(moment, first * GRANULE, -page);
    }

    changeSegmentUse(moment, span, bytes) {
      const { spans } = this.model;
      const previous = this.usedOf[span];
      this.usedOf[span] += bytes;
      if ((previous === 0) === (this.usedOf[span] === 0)) return;
      this.add(moment, this.addresses.of(spans.address[span]), previous === 0 ? spans.bytes[span] : -spans.bytes[span]);
    }

    changeBlock(moment, life, sign) {
      const bytes = rounded(this.model.lives.bytes[life]);
      const start = this.addresses.of(this.model.lives.address[life]);
      if (start < 0) return;
      const end = Math.min(start + bytes, this.addresses.total);
      const granule = Math.floor(start / GRANULE);
      if (this.owner[granule] >= 0) { this.changeSegmentUse(moment, this.owner[granule], sign * bytes); return; }
      const first = this.first[granule];
      const last = this.first[Math.floor((end - 1) / GRANULE)];
      const pageEnd = this.end[first] * GRANULE;
      this.changePageUse(moment, first, sign * (Math.min(end, pageEnd) - start));
      if (last === first) return;
      if (last * GRANULE > pageEnd) this.add(moment, pageEnd, sign * (last * GRANULE - pageEnd));
      this.changePageUse(moment, last, sign * (end - last * GRANULE));
    }

    // Get the granules of a span: the first, and the end.
    granules(span) {
      const { spans } = this.model;
      const offset = this.addresses.of(spans.address[span]);
      return [Math.floor(offset / GRANULE), Math.ceil((offset + spans.bytes[span]) / GRANULE)];
    }

    setOwner(span, owner) {
      this.owner.fill(owner, ...this.granules(span));
      if (owner >= 0) this.usedOf[span] = 0;
    }

    map(span) {
      if (this.model.spans.isClassic[span]) { this.setOwner(span, span); return; }
      const page = Math.max(1, Math.floor(this.model.spans.page[span] / GRANULE));
      const [first, end] = this.granules(span);
      for (let at = first; at < end; at += page) {
        const next = Math.min(end, at + page);
        this.first.fill(at, at, next);
        this.end.fill(next, at, next);
      }
    }

    addEvents() {
      const { lives, spans, events, n } = this.model;
      const all = Array.from(spans.isClassic.keys());
      const byMapping = all.sort((a, b) => spans.mappedAt[a] - spans.mappedAt[b]);
      const byUnmapping = all.filter((i) => spans.isClassic[i]).sort((a, b) => spans.unmappedAt[a] - spans.unmappedAt[b]);
      let mapped = 0;
      let unmapped = 0;
      const { ALLOC, DONE, FREE_DONE } = Model.KINDS;
      for (; mapped < byMapping.length && spans.mappedAt[byMapping[mapped]] === 0; mapped++) this.map(byMapping[mapped]);
      for (let i = 0; i < lives.count && lives.allocatedAt[i] === 0; i++) this.changeBlock(0, i, 1);
      for (let m = 1; m <= n; m++) {
        for (; unmapped < byUnmapping.length && spans.unmappedAt[byUnmapping[unmapped]] === m; unmapped++) this.setOwner(byUnmapping[unmapped], -1);
        for (; mapped < byMapping.length && spans.mappedAt[byMapping[mapped]] === m; mapped++) this.map(byMapping[mapped]);
        const kind = events.kind[m];
        if (kind === ALLOC) this.changeBlock(m, events.life[m], 1);
        else if (kind === DONE || kind === FREE_DONE) this.changeBlock(m, events.life[m], -1);
      }
    }
  }

  // Bytes by row and column; until sum() is called, the differences between columns.
  class Grid {
    constructor(width, height, bytesPerRow) {
      Object.assign(this, { width, height, bytesPerRow, cells: new Float64Array((width + 1) * height) });
    }

    add(offset, bytes, from, to, sign = 1) {
      if (from >= to || offset < 0) return;
      const end = offset + bytes;
      const last = Math.min(this.height - 1, Math.floor((end - 1) / this.bytesPerRow));
      for (let row = Math.floor(offset / this.bytesPerRow); row <= last; row++) {
        const part = Math.min(end, (row + 1) * this.bytesPerRow) - Math.max(offset, row * this.bytesPerRow);
        this.cells[row * (this.width + 1) + from] += sign * part;
        this.cells[row * (this.width + 1) + to] -= sign * part;
      }
    }

    sum() {
      for (let row = 0; row < this.height; row++) {
        const at = row * (this.width + 1);
        for (let c = 1; c < this.width; c++) this.cells[at + c] += this.cells[at + c - 1];
      }
      return this;
    }
  }

  class PageMap {
    constructor(model) {
      this.model = model;
      this.addresses = new Addresses(model.spans);
      this.used = new UsedPages(model, this.addresses);
    }

    // Make the function from a moment to the first column that shows it.
    columnOf(edges, width) {
      const first = edges[0];
      const last = edges[width - 1];
      const table = new Uint16Array(last - first + 1);
      for (let c = 1; c < width; c++) table.fill(c, edges[c - 1] - first + 1, edges[c] - first + 1);
      return (m) => (m <= first ? 0 : m > last ? width : table[m - first]);
    }

    grids(edges, width, height) {
      const { lives, spans } = this.model;
      const bytesPerRow = Math.max(1, this.addresses.total / height);
      const [mapped, allocated, pending, used] = Array.from({ length: 4 }, () => new Grid(width, height, bytesPerRow));
      const column = this.columnOf(edges, width);
      for (let i = 0; i < spans.count; i++)
        mapped.add(this.addresses.of(spans.address[i]), spans.bytes[i], column(spans.mappedAt[i]), column(spans.unmappedAt[i]));
      const last = edges[width - 1];
      for (let i = 0; i < lives.count && lives.allocatedAt[i] <= last; i++) {
        const from = column(lives.allocatedAt[i]);
        const to = column(lives.freedAt[i]);
        if (from >= to) continue;
        const at = this.addresses.of(lives.address[i]);
        const bytes = rounded(lives.bytes[i]);
        const freeRequested = column(lives.freeRequestedAt[i]);
        allocated.add(at, bytes, from, freeRequested);
        pending.add(at, bytes, freeRequested, to);
      }
      const changes = this.used;
      for (let i = 0; i < changes.count && changes.moment[i] <= last; i++)
        used.add(changes.offset[i], Math.abs(changes.bytes[i]), column(changes.moment[i]), width, Math.sign(changes.bytes[i]));
      return { mapped: mapped.sum(), allocated: allocated.sum(), pending: pending.sum(), used: used.sum() };
    }

    // Find the state of each cell, as an index of Colors.STATES.
    states(edges, width, height) {
      const { mapped, allocated, pending, used } = this.grids(edges, width, height);
      const states = new Uint8Array(width * height);
      const bytes = new Float64Array(Colors.STATES.length);
      for (let row = 0; row < height; row++)
        for (let c = 0; c < width; c++) {
          const at = row * (width + 1) + c;
          if (mapped.cells[at] < 1) continue;
          bytes[1] = allocated.cells[at];
          bytes[2] = pending.cells[at];
          bytes[3] = used.cells[at] - bytes[1] - bytes[2];
          bytes[4] = mapped.cells[at] - used.cells[at];
          let best = 4;
          for (let k = 1; k < 4; k++) if (bytes[k] > bytes[best]) best = k;
          states[row * width + c] = best;
        }
      return states;
    }

    // Draw an image with the columns of the timeline.
    draw(edges, width, height) {
      const colors = Colors.statePixels();
      const states = this.states(edges, width, height);
      const image = new ImageData(width, height);
      const pixels = new Uint32Array(image.data.buffer);
      for (let i = 0; i < pixels.length; i++) {
        const { color, stripe } = colors[states[i]];
        pixels[i] = Colors.isStripe(Math.floor(i / width), i % width) ? stripe : color;
      }
      return Colors.canvasOf(image);
    }
  }

  return { Addresses, PageMap, rounded };
})();
