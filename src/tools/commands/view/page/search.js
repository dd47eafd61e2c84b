// SPDX-License-Identifier: MIT
// Search for blocks by a frame of their call stack, their labels (user's, compiled region, step, stage), or the beginning of
// their address.
const Search = (() => {
  function find(pane, query) {
    const { model, sites } = pane;
    const { lives, frames, stacks } = model;
    const text = query.trim().toLowerCase();
    if (text === "") return null;
    const inText = Uint8Array.from(model.texts, (candidate) => (candidate.toLowerCase().includes(text) ? 1 : 0));
    const inFrame = new Uint8Array(frames.name.length);
    for (let i = 0; i < inFrame.length; i++)
      inFrame[i] = inText[frames.name[i]] || inText[frames.file[i]] || Sites.frameText(model, i).toLowerCase().includes(text) ? 1 : 0;
    const inStack = new Uint8Array(stacks.first.length);
    for (let i = 0; i + 1 < stacks.first.length; i++)
      for (let k = stacks.first[i]; k < stacks.first[i + 1] && !inStack[i]; k++) inStack[i] = inFrame[stacks.frames[k]];
    const hasText = (context) => Model.LABELS.some((kind) => model.contexts[kind][context] && inText[model.contexts[kind][context]]);
    const inContext = Uint8Array.from(model.contexts.label, (_, context) => (hasText(context) ? 1 : 0));
    const isAddress = text.startsWith("0x");
    const found = new Uint8Array(lives.count);
    const bands = new Uint8Array(Sites.PENDING + 1);
    let count = 0;
    let bytes = 0;
    for (let i = 0; i < lives.count; i++) {
      if (!inStack[lives.stack[i]] && !inContext[lives.context[i]] && !(isAddress && Text.hex(lives.address[i]).startsWith(text))) continue;
      found[i] = 1;
      bands[sites.band[sites.ofLife[i]]] = 1;
      count++;
      bytes += lives.bytes[i];
    }
    return { text, found, bands, count, bytes };
  }

  // Find the next match that is allocated after a moment, or the last match before it; -1: none.
  function next(pane, search, moment, step) {
    const { lives } = pane.model;
    let best = -1;
    for (let i = 0; i < lives.count; i++) {
      if (!search.found[i]) continue;
      if (step > 0 && lives.allocatedAt[i] > moment) return i;
      if (step < 0 && lives.allocatedAt[i] < moment) best = i;
    }
    return best;
  }

  return { find, next };
})();
