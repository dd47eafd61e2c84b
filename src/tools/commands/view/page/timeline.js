// SPDX-License-Identifier: MIT
// The picture of allocated memory by site over the events, stacked, with reserved memory as a line above.
const Timeline = (() => {
  const LEFT = 76; // of the scale
  const FOOT = 18;
  const { RESERVED, VALUES } = Series;

  // A round number of bytes not far above a fifth of the highest.
  function stepOf(most) {
    let step = 1;
    while (step * 5 < most) step *= 2;
    return step;
  }

  function scale(columns) {
    let most = 1;
    for (let at = 0; at < columns.length; at += VALUES) most = Math.max(most, columns[at + RESERVED], Series.used(columns, at));
    return most * 1.04;
  }

  // The columns as pixels, which is several times as fast as paths where no GPU helps: bands from below, reserved
  // memory as a line above them, and the lines of the scale behind.
  function paint(columns, width, height, y, most, inks, isDim) {
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let at = 0, step = stepOf(most); at < most; at += step) {
      const row = Math.min(height - 1, Math.round(y(at)));
      pixels.fill(inks.line, row * width, (row + 1) * width);
    }
    const colors = inks.bands.map((ink, band) => (isDim(band) ? ink.dim : ink.full));
    for (let c = 0; c < width; c++) {
      let value = 0;
      let bottom = height;
      for (let band = 0; band < RESERVED; band++) {
        const bytes = columns[c * VALUES + band];
        if (bytes <= 0) continue;
        value += bytes;
        const top = Math.max(0, Math.round(y(value)));
        const { color, other } = colors[band];
        for (let row = bottom - 1; row >= top; row--) pixels[row * width + c] = (row + c) % 6 < 2 ? other : color;
        bottom = Math.min(bottom, top);
      }
    }
    paintReserved(pixels, columns, width, height, y, inks.reserved);
    return image;
  }

  function paintReserved(pixels, columns, width, height, y, color) {
    let before = -1;
    for (let c = 0; c < width; c++) {
      const row = Math.min(height - 2, Math.max(0, Math.round(y(columns[c * VALUES + RESERVED]))));
      const from = before < 0 ? row : Math.min(row, before);
      const to = before < 0 ? row : Math.max(row, before);
      for (let at = from; at <= to + 1; at++) pixels[at * width + c] = color;
      before = row;
    }
  }

  function drawScale(context, most, y) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = Colors.theme("faint");
    for (let at = 0, step = stepOf(most); at < most; at += step) context.fillText(Text.bytes(at), -6, y(at));
  }

  function drawFoot(context, view, width, y) {
    const { model } = view;
    context.fillStyle = Colors.theme("faint");
    context.textBaseline = "top";
    for (let part = 0; part <= 4; part++) {
      const moment = view.fromX((width * part) / 4, width);
      const text = view.byTime ? Text.duration(model.time[moment] - model.time[0]) : Text.count(moment);
      context.textAlign = part === 0 ? "left" : part === 4 ? "right" : "center";
      context.fillText(text, (width * part) / 4, y + 4);
    }
  }

  function drawMarks(context, view, cursor, width, height) {
    context.fillStyle = Colors.theme("text");
    context.textAlign = "center";
    context.textBaseline = "top";
    let last = -9;
    for (const oom of view.model.ooms) {
      const x = view.toX(oom.moment, width);
      if (x < 0 || x > width || x - last < 4) continue;
      last = x;
      context.fillRect(x - 0.5, 0, 1, height);
      context.fillText("\u25bc OOM", x, 0);
    }
    const x = view.toX(cursor, width);
    if (x < 0 || x > width) return;
    context.fillStyle = Colors.theme("text");
    context.fillRect(x - 1, 0, 2, height);
  }

  // Draws, and returns what hit() needs.
  function draw(context, width, height, pane) {
    const inner = Math.max(1, Math.floor(width - LEFT));
    const edges = pane.view.edges(inner);
    const columns = pane.memory.columns(edges);
    const most = scale(columns);
    const foot = Math.floor(height - FOOT);
    const y = (value) => foot - (value / most) * foot;
    context.clearRect(0, 0, width, height);
    context.save();
    context.translate(LEFT, 0);
    drawScale(context, most, y);
    context.drawImage(Colors.canvasOf(paint(columns, inner, foot, y, most, pane.inks, pane.isDim)), 0, 0);
    drawFoot(context, pane.view, inner, foot);
    drawMarks(context, pane.view, pane.cursor, inner, foot);
    context.restore();
    return { edges, columns, most, inner, foot };
  }

  // The column and the band under a point.
  function hit(picture, x, y) {
    const c = Math.min(picture.inner - 1, Math.max(0, Math.floor(x - LEFT)));
    let value = ((picture.foot - y) / picture.foot) * picture.most;
    let band = -1;
    for (let i = 0; i < RESERVED && band < 0 && value >= 0; i++) {
      value -= picture.columns[c * VALUES + i];
      if (value < 0) band = i;
    }
    return { column: c, band, from: picture.edges[c], to: picture.edges[c + 1], at: c * VALUES };
  }

  return { LEFT, draw, hit };
})();
