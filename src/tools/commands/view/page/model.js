// SPDX-License-Identifier: MIT
// The data of one file as typed arrays, in the order of columns that src/tools/commands/view/view_model.h defines.
//
// A moment is the number of an event, from 1; 0 is before the first event, n + 1 after the last.  The state at moment m is the
// state after event m: a life exists if allocatedAt <= m < freedAt, and is pending if freeRequestedAt <= m.
const Model = (() => {
  const KINDS = { NOTHING: 0, ALLOC: 1, FREE: 2, DONE: 3, FREE_DONE: 4, MAPPING: 5, OOM: 6 };

  function decodeBase64(base64) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    return bytes;
  }

  // A reader of the numbers in order.
  class Reader {
    constructor(bytes) {
      this.bytes = bytes;
      this.at = 0;
    }

    next() {
      const bytes = this.bytes;
      let byte = bytes[this.at++];
      if (byte < 128) return byte;
      let number = byte & 127;
      let scale = 128;
      do {
        byte = bytes[this.at++];
        number += (byte & 127) * scale;
        scale *= 128;
      } while (byte >= 128);
      return number;
    }

    step() {
      const number = this.next();
      return number % 2 === 0 ? number / 2 : -(number + 1) / 2;
    }

    column(into) {
      for (let i = 0; i < into.length; i++) into[i] = this.next();
      return into;
    }

    // Read the prefix sums of signed numbers.
    steps(into) {
      let sum = 0;
      for (let i = 0; i < into.length; i++) into[i] = sum += this.step();
      return into;
    }
  }

  // The kinds of labels of an allocation, in the order of the columns.
  const LABELS = ["label", "region", "step", "stage"];

  // Read for each kind of label, by context, the index of its text; 0: none.
  function readContexts(reader, count) {
    const contexts = Object.fromEntries(LABELS.map((kind) => [kind, new Uint32Array(count)]));
    for (let i = 0; i < count; i++) for (const kind of LABELS) contexts[kind][i] = reader.next();
    return contexts;
  }

  // Read the times of moments.  Threads can record events out of order; then a time is that of the previous event.
  function readTimes(reader, n) {
    const time = new Float64Array(n + 2);
    let sum = 0;
    let last = 0;
    for (let i = 1; i <= n; i++) {
      sum += reader.step();
      last = time[i] = i === 1 || sum > last ? sum : last;
    }
    time[0] = n > 0 ? time[1] : 0;
    time[n + 1] = last;
    return time;
  }

  function readStacks(reader, count) {
    const first = new Uint32Array(count + 1);
    const frames = [];
    for (let i = 0; i < count; i++) {
      for (let remaining = reader.next(); remaining > 0; remaining--) frames.push(reader.next());
      first[i + 1] = frames.length;
    }
    return { first, frames: Uint32Array.from(frames), site: reader.column(new Uint32Array(count)) };
  }

  function readLives(reader, count, end) {
    const allocatedAt = new Uint32Array(count);
    const freeRequestedAt = new Uint32Array(count);
    const freedAt = new Uint32Array(count);
    for (let i = 0, sum = 0; i < count; i++) allocatedAt[i] = sum += reader.next();
    for (let i = 0; i < count; i++) {
      const step = reader.next();
      freeRequestedAt[i] = step === 0 ? end : allocatedAt[i] + step - 1;
    }
    for (let i = 0; i < count; i++) {
      const step = reader.next();
      freedAt[i] = step === 0 ? end : freeRequestedAt[i] + step - 1;
    }
    return {
      count, allocatedAt, freeRequestedAt, freedAt,
      address: reader.steps(new Float64Array(count)),
      bytes: reader.column(new Float64Array(count)),
      stream: reader.column(new Uint8Array(count)),
      stack: reader.column(new Uint32Array(count)),
      freeStack: reader.column(new Uint32Array(count)),
      pool: reader.column(new Uint32Array(count)),
      context: reader.column(new Uint32Array(count)),
    };
  }

  function readSpans(reader, count) {
    const mappedAt = reader.steps(new Uint32Array(count));
    const unmappedAt = reader.column(new Uint32Array(count));
    for (let i = 0; i < count; i++) unmappedAt[i] += mappedAt[i];
    const spans = {
      count, mappedAt, unmappedAt,
      address: reader.steps(new Float64Array(count)),
      bytes: reader.column(new Float64Array(count)),
      stream: reader.column(new Uint8Array(count)),
      pool: reader.column(new Uint32Array(count)),
      page: reader.column(new Float64Array(count)), // 0: classic
    };
    spans.isClassic = Uint8Array.from(spans.page, (page) => page === 0);
    return spans;
  }

  // Find the kind of each event, its life, and its change of mapped bytes.
  function readEvents(model) {
    const { n, lives, spans } = model;
    const kind = new Uint8Array(n + 2);
    const life = new Int32Array(n + 2).fill(-1);
    const mapped = new Float64Array(n + 2);
    for (let i = 0; i < lives.count; i++) {
      const allocatedAt = lives.allocatedAt[i];
      const freeRequestedAt = lives.freeRequestedAt[i];
      const freedAt = lives.freedAt[i];
      if (allocatedAt > 0) { kind[allocatedAt] = KINDS.ALLOC; life[allocatedAt] = i; }
      if (freeRequestedAt > 0 && freeRequestedAt <= n) { kind[freeRequestedAt] = freedAt === freeRequestedAt ? KINDS.FREE_DONE : KINDS.FREE; life[freeRequestedAt] = i; }
      if (freedAt <= n && freedAt !== freeRequestedAt) { kind[freedAt] = KINDS.DONE; life[freedAt] = i; }
    }
    for (let i = 0; i < spans.count; i++) {
      if (spans.mappedAt[i] > 0) { kind[spans.mappedAt[i]] = KINDS.MAPPING; mapped[spans.mappedAt[i]] += spans.bytes[i]; }
      if (spans.unmappedAt[i] <= n) { kind[spans.unmappedAt[i]] = KINDS.MAPPING; mapped[spans.unmappedAt[i]] -= spans.bytes[i]; }
    }
    for (const oom of model.ooms) kind[oom.moment] = KINDS.OOM;
    return { kind, life, mapped };
  }

  function read(summary, base64) {
    const reader = new Reader(decodeBase64(base64));
    const n = summary.events;
    const model = { summary, n, texts: summary.texts, time: readTimes(reader, n) };
    model.summed = summary.summed > 0 ? reader.steps(new Float64Array(n + 1)) : null;
    model.frames = {
      name: reader.column(new Uint32Array(summary.frames)),
      file: reader.column(new Uint32Array(summary.frames)),
      line: reader.column(new Float64Array(summary.frames)),
      isModule: reader.column(new Uint8Array(summary.frames)),
    };
    model.stacks = readStacks(reader, summary.stacks);
    model.pools = reader.column(new Float64Array(2 * summary.pools));
    model.contexts = readContexts(reader, summary.contexts);
    model.lives = readLives(reader, summary.lives, n + 1);
    model.spans = readSpans(reader, summary.spans);
    model.ooms = Array.from({ length: summary.ooms }, () => ({ moment: reader.next(), bytes: reader.next(), free: reader.next() }));
    model.pages = Array.from({ length: summary.pages }, () => ({ address: reader.next(), bytes: reader.next(), reason: model.texts[reader.next()], registered: reader.next() }));
    if (reader.at !== reader.bytes.length) throw new Error("the data of the page has an unexpected length");
    model.events = readEvents(model);
    model.hasTime = model.time[n + 1] > model.time[0];
    return model;
  }

  const poolName = (model, pool) => (pool === 0 ? "default" : `(${model.pools[2 * pool]}, ${model.pools[2 * pool + 1]})`);
  const labelOf = (model, life, kind) => model.texts[model.contexts[kind][model.lives.context[life]]];
  return { KINDS, LABELS, read, poolName, labelOf };
})();
