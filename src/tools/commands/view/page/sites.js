// SPDX-License-Identifier: MIT
// Call sites: the tool chooses and names them as for `xseg blame` (src/tools/replay_model/sites.h).  The site of a block without
// a call stack is its label.
const Sites = (() => {
  const BANDS = 12; // sites with a color; the others share one band
  const OTHERS = BANDS;
  const PENDING = BANDS + 1;

  // The same as sites_frame_name() in src/tools/replay_model/sites.c.
  function frameText(model, frame) {
    const name = model.texts[model.frames.name[frame]];
    const where = model.texts[model.frames.file[frame]];
    const line = model.frames.line[frame];
    if (model.frames.isModule[frame]) return `${name} (${where}+${Text.hex(line)})`;
    if (where === "") return name || "??";
    return name ? `${where}:${line} ${name}` : `${where}:${line}`;
  }

  function* framesOf(model, stack) {
    for (let i = model.stacks.first[stack]; i < model.stacks.first[stack + 1]; i++) yield model.stacks.frames[i];
  }

  const stackText = (model, stack) => Array.from(framesOf(model, stack), (frame) => frameText(model, frame));

  // The site of each life, and the sites sorted by bytes x events, the largest first.
  function find(model) {
    const names = [];
    const numbers = new Map();
    const number = (name) => {
      if (!numbers.has(name)) numbers.set(name, names.push(name) - 1);
      return numbers.get(name);
    };
    const ofStack = new Int32Array(model.facts.stacks).fill(-1);
    for (let stack = 1; stack < ofStack.length; stack++) {
      const site = model.stacks.site[stack];
      if (site > 0) ofStack[stack] = number(model.facts.sites[site]);
    }
    const unknown = number("(no stack)");
    const lives = model.lives;
    const ofLife = new Uint32Array(lives.count);
    const ofLabel = new Map();
    for (let i = 0; i < lives.count; i++) {
      let site = ofStack[lives.stack[i]];
      if (site < 0 && lives.label[i] !== 0) {
        if (!ofLabel.has(lives.label[i])) ofLabel.set(lives.label[i], number(`label ${model.texts[lives.label[i]]}`));
        site = ofLabel.get(lives.label[i]);
      }
      ofLife[i] = site < 0 ? unknown : site;
    }
    return { names, ofLife, ...rank(lives, ofLife, names.length) };
  }

  function rank(lives, ofLife, count) {
    const weight = new Float64Array(count);
    for (let i = 0; i < lives.count; i++) weight[ofLife[i]] += lives.bytes[i] * (lives.freed[i] - lives.born[i] + 1);
    const order = Array.from(weight.keys()).filter((site) => weight[site] > 0).sort((a, b) => weight[b] - weight[a]);
    const band = new Uint8Array(count).fill(OTHERS);
    order.slice(0, BANDS).forEach((site, at) => { band[site] = at; });
    return { order, band };
  }

  return { BANDS, OTHERS, PENDING, find, frameText, stackText };
})();
