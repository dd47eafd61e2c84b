// SPDX-License-Identifier: MIT
// The horizontal axis of the pictures, in events or in time, and round ticks of all axes.
//
// A position on the axis is a share, from 0 to 1, of all events or of all time; a view is an interval of shares.
const Axis = (() => {
  const SECOND = 1e6; // in microseconds
  const LONG_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400].map((s) => s * SECOND);

  // Get the smallest 1, 2 or 5 times a power of ten that is not below a number.
  function roundUp(number) {
    const power = 10 ** Math.floor(Math.log10(number));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= number * (1 - 1e-9));
  }

  // Round up a number of bytes, in a unit that is a power of 1024, as roundUp() does; 256 and 512 instead of 200 and 500, so
  // that a unit is a multiple.
  function roundUpBytes(number) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, number)) / 10));
    return [1, 2, 5, 10, 20, 50, 100, 256, 512, 1024].map((factor) => factor * unit).find((step) => step >= number * (1 - 1e-9));
  }

  // Get the smallest power of two, or 1.5 times a power of two, that is not below a number of bytes.
  function roundUpBinary(number) {
    const power = 2 ** Math.floor(Math.log2(Math.max(1, number)));
    return [1, 1.5, 2].map((factor) => factor * power).find((step) => step >= number && step % 1 === 0);
  }

  const roundUpTime = (us) => (us <= SECOND ? Math.max(1, roundUp(us)) : LONG_STEPS.find((step) => step >= us) || roundUp(us));

  // List the multiples of a step in from..to.
  function multiples(step, from, to) {
    const list = [];
    for (let at = Math.ceil(from / step - 1e-9); at * step <= to * (1 + 1e-9); at++) list.push(at * step);
    return list;
  }

  const byteTicks = (max, count) => {
    const step = roundUpBytes(max / count);
    return multiples(step, 0, max).map((at) => ({ at, text: Text.byteTick(at) }));
  };

  // Format a duration that is a multiple of a step, in the unit of the step.
  function timeTick(us, step) {
    if (us === 0) return "0";
    if (step >= 60 * SECOND) return `${us / (60 * SECOND)} min`;
    if (step >= SECOND) return `${us / SECOND} s`;
    return step >= 1000 ? `${us / 1000} ms` : `${us} us`;
  }

  class View {
    constructor(model) {
      this.model = model;
      this.byTime = false;
      this.from = 0;
      this.to = 1;
    }

    // Get the length of the axis, in events or microseconds.
    get extent() {
      const { time, n } = this.model;
      return this.byTime ? time[n + 1] - time[0] : n;
    }

    // Find the last event at or before a position.
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

    // Get the moments at the edges of the pixel columns.
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

    // Get the width of the narrowest view: 20 events.
    get min() {
      return Math.min(1, 20 / Math.max(20, this.model.n));
    }

    set(from, to) {
      const width = Math.min(1, Math.max(this.byTime ? 1e-9 : this.min, to - from));
      this.from = Math.min(1 - width, Math.max(0, from));
      this.to = this.from + width;
    }

    get title() {
      return this.byTime ? "time since the first event" : "event";
    }

    // Get round positions in the view, as moments or microseconds with their shares.
    ticks(count) {
      const { extent } = this;
      if (extent <= 0) return [];
      const width = ((this.to - this.from) * extent) / count;
      const step = this.byTime ? roundUpTime(width) : Math.max(1, roundUp(Math.max(1, width)));
      return multiples(step, this.from * extent, this.to * extent)
        .map((at) => ({ share: at / extent, text: this.byTime ? timeTick(at, step) : Text.count(at) }));
    }

    pan(share) {
      const step = (this.to - this.from) * share;
      this.set(this.from + step, this.to + step);
    }

    zoom(factor, around) {
      const at = this.from + (this.to - this.from) * around;
      const width = Math.min(1, Math.max(this.byTime ? 1e-9 : this.min, (this.to - this.from) * factor));
      this.set(at - width * around, at - width * around + width);
    }
  }

  return { View, roundUpBytes, roundUpBinary, byteTicks };
})();
