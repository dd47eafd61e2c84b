// SPDX-License-Identifier: MIT
// Memory over time: bytes of each band (a site, the rest, pending) and reserved bytes, at any moment and by column of a
// picture.  A checkpoint each 256 events has all values, and those of the peak up to the next checkpoint.
const Series = (() => {
  const EVERY = 256;
  const RESERVED = Sites.PENDING + 1;
  const VALUES = RESERVED + 1;
  const { ALLOC, FREE, DONE, FREE_DONE, MAPPING } = Model.KINDS;

  // What is live or pending, of the values at `at`.
  function used(values, at) {
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
      this.first = this.begin(model, sites);
      this.makeCheckpoints();
    }

    begin(model, sites) {
      const first = new Float64Array(VALUES);
      const { lives, spans } = model;
      for (let i = 0; i < lives.count && lives.born[i] === 0; i++)
        first[lives.freed[i] === 0 ? Sites.PENDING : sites.band[sites.ofLife[i]]] += lives.bytes[i];
      if (model.summed) first[Sites.REST] += model.summed[0];
      for (let i = 0; i < spans.count; i++) if (spans.born[i] === 0) first[RESERVED] += spans.bytes[i];
      return first;
    }

    // Event m happens to the values.
    play(values, m) {
      if (this.summed) values[Sites.REST] += this.summed[m] - this.summed[m - 1];
      switch (this.kind[m]) {
        case ALLOC: values[this.band[m]] += this.bytes[m]; break;
        case FREE: values[this.band[m]] -= this.bytes[m]; values[Sites.PENDING] += this.bytes[m]; break;
        case DONE: values[Sites.PENDING] -= this.bytes[m]; break;
        case FREE_DONE: values[this.band[m]] -= this.bytes[m]; break;
        case MAPPING: values[RESERVED] += this.mapped[m]; break;
      }
    }

    // By how much event m changes what is used.
    change(m) {
      const kind = this.kind[m];
      const own = kind === ALLOC ? this.bytes[m] : kind === DONE || kind === FREE_DONE ? -this.bytes[m] : 0;
      return this.summed ? own + this.summed[m] - this.summed[m - 1] : own;
    }

    makeCheckpoints() {
      const count = Math.floor(this.n / EVERY) + 1;
      const values = Float64Array.from(this.first);
      this.checkpoint = new Float64Array(count * VALUES);
      this.peak = new Float64Array(count * VALUES);
      this.peakUsed = new Float64Array(count);
      this.peakReserved = new Float64Array(count);
      this.peakMoment = new Uint32Array(count);
      let total = used(values, 0);
      for (let k = 0; k < count; k++) {
        const start = k * EVERY;
        const end = Math.min(this.n, start + EVERY);
        this.checkpoint.set(values, k * VALUES);
        const best = this.findPeak(start, end, total);
        const reserved = this.walk(values, start, end, best.moment, this.peak, k * VALUES);
        this.peakUsed[k] = best.used;
        this.peakMoment[k] = best.moment;
        this.peakReserved[k] = reserved;
        total = best.end;
      }
    }

    // The moment of start..end at which most is used; total: of start.
    findPeak(start, end, total) {
      let best = total;
      let moment = start;
      for (let m = start + 1; m <= end; m++) {
        total += this.change(m);
        if (total > best) { best = total; moment = m; }
      }
      return { used: best, moment, end: total };
    }

    // Play start + 1..end; what there is at `moment` goes into `into`.  Returns the most that was reserved.
    walk(values, start, end, moment, into, at) {
      let reserved = values[RESERVED];
      if (moment === start) into.set(values, at);
      for (let m = start + 1; m <= end; m++) {
        this.play(values, m);
        if (values[RESERVED] > reserved) reserved = values[RESERVED];
        if (m === moment) into.set(values, at);
      }
      return reserved;
    }

    // All values right behind event m.
    at(m) {
      m = Math.min(Math.max(m, 0), this.n);
      const k = Math.floor(m / EVERY);
      const values = this.checkpoint.slice(k * VALUES, (k + 1) * VALUES);
      for (let i = k * EVERY + 1; i <= m; i++) this.play(values, i);
      return values;
    }

    // A column of start..end: what there is at its peak, into `into`, and the most that is reserved behind it.
    column(values, start, end, into, at) {
      const total = used(values, 0);
      const from = Math.ceil(start / EVERY);
      const to = Math.floor(end / EVERY);
      if (to - from < 1) {
        const best = this.findPeak(start, end, total);
        into[at + RESERVED] = this.walk(values, start, end, best.moment, into, at);
        return;
      }
      const best = this.findPeak(start, from * EVERY, total);
      let reserved = this.walk(values, start, from * EVERY, best.moment, into, at);
      let most = best.used;
      for (let k = from; k < to; k++) {
        if (this.peakReserved[k] > reserved) reserved = this.peakReserved[k];
        if (this.peakUsed[k] <= most) continue;
        most = this.peakUsed[k];
        into.set(this.peak.subarray(k * VALUES, (k + 1) * VALUES), at);
      }
      values.set(this.checkpoint.subarray(to * VALUES, (to + 1) * VALUES));
      const last = this.findPeak(to * EVERY, end, used(values, 0));
      const behind = this.walk(values, to * EVERY, end, last.used > most ? last.moment : -1, into, at);
      into[at + RESERVED] = Math.max(reserved, behind);
    }

    // The columns between edges: edges[c]..edges[c + 1].
    columns(edges) {
      const count = edges.length - 1;
      const into = new Float64Array(count * VALUES);
      const values = this.at(edges[0]);
      for (let c = 0; c < count; c++) {
        this.column(values, edges[c], edges[c + 1], into, c * VALUES);
      }
      return into;
    }

    // The moment of from..to at which most is used.
    peakBetween(from, to) {
      let best = { used: -1, moment: from };
      let total = used(this.at(from), 0);
      for (let m = from; m <= to;) {
        const k = Math.floor(m / EVERY);
        const end = Math.min(to, (k + 1) * EVERY);
        const found = this.findPeak(m, end, total);
        if (found.used > best.used) best = found;
        total = found.end;
        m = end === m ? m + 1 : end;
        if (end === to) break;
      }
      return best;
    }
  }

  return { Memory, RESERVED, VALUES, used };
})();
