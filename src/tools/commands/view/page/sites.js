// SPDX-License-Identifier: MIT
// Call sites: the tool selects and names call sites as for `xseg blame` (src/tools/replay_model/sites.h).  The site of a block without
// a call stack is its label.  Blocks can also be grouped by a kind of label; the label is the site then.
const Sites = (() => {
  const BANDS = 12; // sites with a color; all other sites have one band
  const OTHERS = BANDS;
  const PENDING = BANDS + 1;

  // Name a frame as sites_frame_name() in src/tools/replay_model/sites.c does.
  function frameText(model, frame) {
    const name = model.texts[model.frames.name[frame]];
    const file = model.texts[model.frames.file[frame]];
    const line = model.frames.line[frame];
    if (model.frames.isModule[frame]) return `${name} (${file}+${Text.hex(line)})`;
    if (file === "") return name || "??";
    return name ? `${file}:${line} ${name}` : `${file}:${line}`;
  }

  function* framesOf(model, stack) {
    for (let i = model.stacks.first[stack]; i < model.stacks.first[stack + 1]; i++) yield model.stacks.frames[i];
  }

  const stackText = (model, stack) => Array.from(framesOf(model, stack), (frame) => frameText(model, frame));

  // The names of the groups of blocks: by call site, or by a kind of label.
  const KINDS = { site: "call site", label: "label", region: "compiled region", step: "step", stage: "stage" };

  // Numbers for names, in the order of their first use.
  class Names {
    constructor() {
      this.names = [];
      this.numbers = new Map();
    }

    number(name) {
      if (!this.numbers.has(name)) this.numbers.set(name, this.names.push(name) - 1);
      return this.numbers.get(name);
    }
  }

  // List the kinds that the file has.
  function kindsOf(model) {
    const has = (kind) => model.lives.context.some((context) => model.contexts[kind][context] !== 0);
    return ["site", ...Model.LABELS.filter(has)];
  }

  // Find the site of each life, and the sites sorted by bytes times events, the largest first.
  function find(model, kind) {
    const names = new Names();
    const ofLife = kind === "site" ? findCallSites(model, names) : findLabels(model, kind, names);
    return { names: names.names, ofLife, ...rank(model.lives, ofLife, names.names.length) };
  }

  function findLabels(model, kind, names) {
    const ofContext = Uint32Array.from(model.contexts[kind], (text) => names.number(text === 0 ? `(no ${KINDS[kind]})` : model.texts[text]));
    return Uint32Array.from(model.lives.context, (context) => ofContext[context]);
  }

  function findCallSites(model, names) {
    const number = (name) => names.number(name);
    const ofStack = new Int32Array(model.summary.stacks).fill(-1);
    for (let stack = 1; stack < ofStack.length; stack++) {
      const site = model.stacks.site[stack];
      if (site > 0) ofStack[stack] = number(model.summary.sites[site]);
    }
    const unknown = number("(no stack)");
    const lives = model.lives;
    const ofLife = new Uint32Array(lives.count);
    const ofLabel = new Map();
    for (let i = 0; i < lives.count; i++) {
      const label = model.contexts.label[lives.context[i]];
      let site = ofStack[lives.stack[i]];
      if (site < 0 && label !== 0) {
        if (!ofLabel.has(label)) ofLabel.set(label, number(`label ${model.texts[label]}`));
        site = ofLabel.get(label);
      }
      ofLife[i] = site < 0 ? unknown : site;
    }
    return ofLife;
  }

  function rank(lives, ofLife, count) {
    const weight = new Float64Array(count);
    for (let i = 0; i < lives.count; i++) weight[ofLife[i]] += lives.bytes[i] * (lives.freeRequestedAt[i] - lives.allocatedAt[i] + 1);
    const order = Array.from(weight.keys()).filter((site) => weight[site] > 0).sort((a, b) => weight[b] - weight[a]);
    const band = new Uint8Array(count).fill(OTHERS);
    order.slice(0, BANDS).forEach((site, at) => { band[site] = at; });
    return { order, band };
  }

  return { BANDS, OTHERS, PENDING, KINDS, kindsOf, find, frameText, stackText };
})();
