// SPDX-License-Identifier: MIT
// Descriptions of a block, a moment and a file.
const Details = (() => {
  const MAX_FRAMES = 200;

  function describeMoment(model, moment) {
    if (moment === 0) return "before the first event";
    if (moment > model.n) return "not before the end of the recording";
    const time = model.hasTime ? `, ${Text.duration(model.time[moment] - model.time[0])} after the first event` : "";
    return `event ${Text.count(moment)}${time}`;
  }

  function stackLines(model, stack) {
    const lines = Sites.stackText(model, stack);
    const more = lines.length - MAX_FRAMES;
    return more > 0 ? [...lines.slice(0, MAX_FRAMES), `and ${more} more`] : lines;
  }

  function block(pane, life) {
    const { model, sites } = pane;
    const { lives } = model;
    const lines = [
      `block ${Text.hex(lives.address[life])}  ${Text.bytes(lives.bytes[life])} (${Text.count(lives.bytes[life])} bytes)`,
      `site       ${sites.names[sites.ofLife[life]]}`,
      `allocated  ${describeMoment(model, lives.allocatedAt[life])}`,
      `freed      ${describeMoment(model, lives.freeRequestedAt[life])}${lives.freedAt[life] !== lives.freeRequestedAt[life] ? `, completed ${describeMoment(model, lives.freedAt[life])}` : ""}`,
      `stream     ${model.summary.streams[lives.stream[life]]}   pool ${Model.poolName(model, lives.pool[life])}`,
    ];
    for (const kind of Model.LABELS) {
      const label = Model.labelOf(model, life, kind);
      if (label !== "") lines.push(`${kind.padEnd(11)}${label}`);
    }
    lines.push(...(lives.stack[life] ? ["", ...stackLines(model, lives.stack[life])] : ["", "no call stack"]));
    if (lives.freeStack[life]) lines.push("", "freed by", ...stackLines(model, lives.freeStack[life]));
    return lines.join("\n");
  }

  // Describe the page at an address: the reason why it is not released, which xseg writes for the state at the end.
  function reason(pane, address) {
    if (pane.cursor !== pane.model.n) return "";
    const page = pane.model.pages.find((page) => page.address <= address && address < page.address + page.bytes);
    return page ? `\npage ${Text.hex(page.address)}: ${page.reason}${page.registered > 0 ? `, registered ${Text.bytes(page.registered)}` : ""}` : "";
  }

  function moment(pane) {
    const { state, model } = pane;
    const oom = model.ooms.find((oom) => oom.moment === state.moment);
    return `${state.moment === 0 ? "before the first event" : `after ${describeMoment(model, state.moment)}`}: reserved ${Text.bytes(state.reserved)}, ` +
      `allocated ${Text.bytes(state.allocated)} in ${Text.count(state.allocatedBlocks)} blocks, pending ${Text.bytes(state.pending)}, ` +
      `cached ${Text.bytes(state.cached)} (fragmented ${Text.bytes(state.fragmented)}, idle ${Text.bytes(state.cached - state.fragmented)})` +
      (model.summed ? `; of the cached bytes, up to ${Text.bytes(model.summed[Math.min(state.moment, model.n)])} are blocks that are omitted from this page` : "") +
      Array.from(state.reasons, ([reason, bytes]) => `; not released: ${Text.bytes(bytes)} (${reason})`).join("") +
      (state.registeredBytes > 0 ? `; registered ${Text.bytes(state.registeredBytes)}` : "") +
      (oom ? `; out of memory: ${Text.bytes(oom.bytes)} requested, ${Text.bytes(oom.free)} free on the device` : "");
  }

  function file(pane) {
    const { summary, n } = pane.model;
    const lines = [`device ${summary.device}, ${Text.count(n)} events, ${Text.count(summary.lives)} blocks`];
    if (summary.config) lines.push(summary.config);
    if (summary.summed > 0)
      lines.push(`aggregated: of ${Text.count(summary.recorded)} entries, the page has those of the ${Text.count(summary.lives)} blocks with the largest ` +
        `product of size and lifetime; memory over time shows the sum of the ${Text.count(summary.summed)} others`);
    if (n === 0) lines.push("no history was recorded: the page shows the state at the end");
    if (summary.host !== null) lines.push(summary.host);
    if (summary.lost + summary.omitted > 0) lines.push(`${Text.count(summary.lost + summary.omitted)} older entries were overwritten or omitted`);
    if (summary.synthetic > 0) lines.push(`${Text.count(summary.synthetic)} synthetic entries of the allocator are not counted`);
    if (summary.unmatched > 0) lines.push(`${Text.count(summary.unmatched)} inconsistent entries are omitted`);
    return lines.join("; ");
  }

  return { block, moment, file, reason };
})();
