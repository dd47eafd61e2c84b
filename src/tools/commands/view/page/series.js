// SPDX-License-Identifier: MIT
// Memory over time: the bytes of each band (a site, all other sites, pending) and the reserved bytes, at any moment and for each
// pixel column.  Active bytes are allocated or pending.  Every 256 events, a checkpoint has all values, and the values at the
// peak of active bytes before the next checkpoint.
const Series = (() => {
  const CHECKPOINT_EVENTS = 256;
  const RESERVED = Sites.PENDING + 1;
  const VALUES = RESERVED + 1;
  const { ALLOC, FREE, DONE, FREE_DONE, MAPPING } = Model.KINDS;

  // Sum the active bytes of the values at an index.
  function active(values, at) {
    let sum = 0;
    for (let i = 0; i < RESERVED; i++) sum += values[at + i];
    return sum;
  }

  class Memory {
    constructor(model, sites) {
      const { n, lives, events } = model;
      this.n = n;
      this.kind = events.kind;
      this.mapped = events.mapped;
      this.band = new Uint8Array(n + 2);
      this.bytes = new Float64Array(n + 2);
      for (let m = 1; m <= n; m++) {
        const life = events.life[m];
        if (life < 0) continue;
        this.band[m] = sites.band[sites.ofLife[life]];
        this.bytes[m] = lives.bytes[life];
      }
      this.summed = model.summed;
      this.first = this.computeFirst(model, sites);
      this.makeCheckpoints();
    }

    computeFirst(model, sites) {
      const first = new Float64Array(VALUES);
      const { lives, spans } = model;
      for (let i = 0; i < lives.count && lives.allocatedAt[i] === 0; i++)
        first[lives.freeRequestedAt[i] === 0 ? Sites.PENDING : sites.band[sites.ofLife[i]]] += lives.bytes[i];
      if (model.summed) first[Sites.OTHERS] += model.summed[0];
      for (let i = 0; i < spans.count; i++) if (spans.mappedAt[i] === 0) first[RESERVED] += spans.bytes[i];
      return first;
    }

    // Apply event m to the values.
    applyEvent(values, m) {
      if (this.summed) values[Sites.OTHERS] += this.summed[m] - this.summed[m - 1];
      switch (this.kind[m]) {
        case ALLOC: values[this.band[m]] += this.bytes[m]; break;
        case FREE: values[this.band[m]] -= this.bytes[m]; values[Sites.PENDING] += this.bytes[m]; break;
        case DONE: values[Sites.PENDING] -= this.bytes[m]; break;
        case FREE_DONE: values[this.band[m]] -= this.bytes[m]; break;
        case MAPPING: values[RESERVED] += this.mapped[m]; break;
      }
    }

    // Get the change of active bytes by event m.
    change(m) {
      const kind = this.kind[m];
      const ofEvent = kind === ALLOC ? this.bytes[m] : kind === DONE || kind === FREE_DONE ? -this.bytes[m] : 0;
      return this.summed ? ofEvent + this.summed[m] - this.summed[m - 1] : ofEvent;
    }

    makeCheckpoints() {
      const count = Math.floor(this.n / CHECKPOINT_EVENTS) + 1;
      const values = Float64Array.from(this.first);
      this.checkpoint = new Float64Array(count * VALUES);
      this.peak = new Float64Array(count * VALUES);
      this.peakActive = new Float64Array(count);
      this.peakReserved = new Float64Array(count);
      this.peakMoment = new Uint32Array(count);
      let total = active(values, 0);
      for (let k = 0; k < count; k++) {
        const start = k * CHECKPOINT_EVENTS;
        const end = Math.min(this.n, start + CHECKPOINT_EVENTS);
        this.checkpoint.set(values, k * VALUES);
        const best = this.findPeak(start, end, total);
        const reserved = this.applyEvents(values, start, end, best.moment, this.peak, k * VALUES);
        this.peakActive[k] = best.active;
        this.peakMoment[k] = best.moment;
        this.peakReserved[k] = reserved;
        total = best.end;
      }
    }

    // Find the peak of active bytes in start..end; total: the active bytes at start.
    findPeak(start, end, total) {
      let best = total;
      let moment = start;
      for (let m = start + 1; m <= end; m++) {
        total += this.change(m);
        if (total > best) { best = total; moment = m; }
      }
      return { active: best, moment, end: total };
    }

    // Apply start + 1..end, and copy the values at `moment` to `into`.  Returns the peak of reserved bytes.
    applyEvents(values, start, end, moment, into, at) {
      let reserved = values[RESERVED];
      if (moment === start) into.set(values, at);
      for (let m = start + 1; m <= end; m++) {
        this.applyEvent(values, m);
        if (values[RESERVED] > reserved) reserved = values[RESERVED];
        if (m === moment) into.set(values, at);
      }
      return reserved;
    }

    // Compute all values after event m.
    at(m) {
      m = Math.min(Math.max(m, 0), this.n);
      const k = Math.floor(m / CHECKPOINT_EVENTS);
      const values = this.checkpoint.slice(k * VALUES, (k + 1) * VALUES);
      for (let i = k * CHECKPOINT_EVENTS + 1; i <= m; i++) this.applyEvent(values, i);
      return values;
    }

    // Compute the column of start..end: the values at its peak of active bytes, and its peak of reserved bytes.
    column(values, start, end, into, at) {
      const total = active(values, 0);
      const from = Math.ceil(start / CHECKPOINT_EVENTS);
      const to = Math.floor(end / CHECKPOINT_EVENTS);
      if (to - from < 1) {
        const best = this.findPeak(start, end, total);
        into[at + RESERVED] = this.applyEvents(values, start, end, best.moment, into, at);
        return;
      }
      const best = this.findPeak(start, from * CHECKPOINT_EVENTS, total);
      let reserved = this.applyEvents(values, start, from * CHECKPOINT_EVENTS, best.moment, into, at);
      let max = best.active;
      for (let k = from; k < to; k++) {
        if (this.peakReserved[k] > reserved) reserved = this.peakReserved[k];
        if (this.peakActive[k] <= max) continue;
        max = this.peakActive[k];
        into.set(this.peak.subarray(k * VALUES, (k + 1) * VALUES), at);
      }
      values.set(this.checkpoint.subarray(to * VALUES, (to + 1) * VALUES));
      const last = this.findPeak(to * CHECKPOINT_EVENTS, end, active(values, 0));
      const lastReserved = this.applyEvents(values, to * CHECKPOINT_EVENTS, end, last.active > max ? last.moment : -1, into, at);
      into[at + RESERVED] = Math.max(reserved, lastReserved);
    }

    // Compute the columns between edges[c] and edges[c + 1].
    columns(edges) {
      const count = edges.length - 1;
      const into = new Float64Array(count * VALUES);
      const values = this.at(edges[0]);
      for (let c = 0; c < count; c++) {
        this.column(values, edges[c], edges[c + 1], into, c * VALUES);
      }
      return into;
    }

    // Find the peak of active bytes in from..to.
    peakBetween(from, to) {
      let best = { active: -1, moment: from };
      let total = active(this.at(from), 0);
      for (let m = from; m <= to;) {
        const k = Math.floor(m / CHECKPOINT_EVENTS);
        const end = Math.min(to, (k + 1) * CHECKPOINT_EVENTS);
        const found = this.findPeak(m, end, total);
        if (found.active > best.active) best = found;
        total = found.end;
        m = end;
        if (end === to) break;
      }
      return best;
    }
  }

  return { Memory, RESERVED, VALUES, active };
})();
