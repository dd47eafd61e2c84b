// SPDX-License-Identifier: MIT
// Which part of a history a picture shows: shares from..to of all events, or of all time.
const Axis = (() => {
  class View {
    constructor(model) {
      this.model = model;
      this.byTime = false;
      this.from = 0;
      this.to = 1;
    }

    // The position of a share, as events or microseconds from the first.
    get extent() {
      const { time, n } = this.model;
      return this.byTime ? time[n + 1] - time[0] : n;
    }

    // The last event at or before a share of the whole.
    moment(share) {
      const { time, n } = this.model;
      if (!this.byTime) return Math.min(n, Math.max(0, Math.floor(share * n)));
      const at = time[0] + share * (time[n + 1] - time[0]);
      let low = 0;
      let high = n;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (time[middle] <= at) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    share(moment) {
      const { time, n } = this.model;
      if (n === 0) return 0;
      return this.byTime ? (time[Math.min(moment, n)] - time[0]) / (time[n + 1] - time[0]) : Math.min(moment, n) / n;
    }

    // Moments of the edges of a picture's columns.
    edges(width) {
      const edges = new Uint32Array(width + 1);
      for (let c = 0; c <= width; c++) edges[c] = this.moment(this.from + ((this.to - this.from) * c) / width);
      return edges;
    }

    toX(moment, width) {
      return ((this.share(moment) - this.from) / (this.to - this.from)) * width;
    }

    fromX(x, width) {
      return this.moment(this.from + ((this.to - this.from) * x) / width);
    }

    // The least share: a column an event.
    get least() {
      return Math.min(1, 20 / Math.max(20, this.model.n));
    }

    set(from, to) {
      const width = Math.min(1, Math.max(this.byTime ? 1e-9 : this.least, to - from));
      this.from = Math.min(1 - width, Math.max(0, from));
      this.to = this.from + width;
    }

    pan(share) {
      const step = (this.to - this.from) * share;
      this.set(this.from + step, this.to + step);
    }

    zoom(factor, around) {
      const at = this.from + (this.to - this.from) * around;
      const width = Math.min(1, Math.max(this.byTime ? 1e-9 : this.least, (this.to - this.from) * factor));
      this.set(at - width * around, at - width * around + width);
    }
  }

  return { View };
})();
