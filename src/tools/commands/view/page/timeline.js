// SPDX-License-Identifier: MIT
// The first picture: allocated memory by call site over time, stacked, and reserved memory as a line.  Margins, axes and marks
// of all pictures.
const Timeline = (() => {
  const LEFT = 84; // of the vertical axis
  const FOOT = 34; // of the horizontal axis
  const FONT = "11px system-ui, sans-serif";
  const { RESERVED, VALUES } = Series;

  function maxOf(columns) {
    let max = 1;
    for (let at = 0; at < columns.length; at += VALUES) max = Math.max(max, columns[at + RESERVED], Series.active(columns, at));
    return max * 1.04;
  }

  // Paint the columns as pixels, which is several times as fast as paths without a GPU: lines of the grid, bands from bottom to
  // top, and the line of reserved memory.
  function paintColumns(columns, width, height, y, ticks, style, isDim) {
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (const { at } of ticks) {
      const row = Math.min(height - 1, Math.round(y(at)));
      pixels.fill(style.grid, row * width, (row + 1) * width);
    }
    const colors = style.bands.map((band, number) => (isDim(number) ? band.dim : band.full));
    for (let c = 0; c < width; c++) {
      let value = 0;
      let bottom = height;
      for (let band = 0; band < RESERVED; band++) {
        const bytes = columns[c * VALUES + band];
        if (bytes <= 0) continue;
        value += bytes;
        const top = Math.max(0, Math.round(y(value)));
        const { color, stripe } = colors[band];
        for (let row = bottom - 1; row >= top; row--) pixels[row * width + c] = Colors.isStripe(row, c) ? stripe : color;
        bottom = Math.min(bottom, top);
      }
    }
    paintReserved(pixels, columns, width, height, y, style.reserved);
    return image;
  }

  function paintReserved(pixels, columns, width, height, y, color) {
    let previous = -1;
    for (let c = 0; c < width; c++) {
      const row = Math.min(height - 2, Math.max(0, Math.round(y(columns[c * VALUES + RESERVED]))));
      const from = previous < 0 ? row : Math.min(row, previous);
      const to = previous < 0 ? row : Math.max(row, previous);
      for (let at = from; at <= to + 1; at++) pixels[at * width + c] = color;
      previous = row;
    }
  }

  // Draw the vertical axis, left of x = 0.  ticks: [{ at, text }]
  function drawScale(context, title, ticks, y, height) {
    context.font = FONT;
    context.fillStyle = Colors.theme("faint");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const { at, text } of ticks) {
      context.fillText(text, -8, Math.min(height - 5, Math.max(6, y(at))));
      context.fillRect(-5, Math.min(height - 1, Math.round(y(at))), 5, 1);
    }
    context.save();
    context.translate(-LEFT + 8, height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(title, 0, 0);
    context.restore();
  }

  // Draw the horizontal axis, below y.
  function drawFoot(context, view, width, y) {
    context.font = FONT;
    context.fillStyle = Colors.theme("faint");
    context.textBaseline = "top";
    let end = -Infinity;
    for (const { share, text } of view.ticks(Math.max(2, Math.floor(width / 160)))) {
      const x = ((share - view.from) / (view.to - view.from)) * width;
      const half = context.measureText(text).width / 2;
      const center = Math.min(width - half, Math.max(half, x));
      context.fillRect(Math.min(width - 1, Math.round(x)), y, 1, 4);
      if (center - half < end + 8) continue;
      context.textAlign = "center";
      context.fillText(text, center, y + 6);
      end = center + half;
    }
    context.textAlign = "center";
    context.fillText(view.title, width / 2, y + 20);
  }

  function drawCursor(context, view, cursor, width, height) {
    const x = view.toX(cursor, width);
    if (x < 0 || x > width) return;
    context.fillStyle = Colors.theme("text");
    context.fillRect(Math.min(width - 2, x - 1), 0, 2, height);
  }

  function drawOoms(context, view, width, height) {
    context.fillStyle = Colors.theme("text");
    context.textBaseline = "top";
    let last = -9;
    for (const oom of view.model.ooms) {
      const x = view.toX(oom.moment, width);
      if (x < 0 || x > width || x - last < 4) continue;
      last = x;
      context.fillRect(x - 0.5, 0, 1, height);
      context.textAlign = x > width - 40 ? "right" : x < 40 ? "left" : "center";
      context.fillText("\u25bc OOM", x, 0);
    }
  }

  // Draw the picture.  Returns the geometry for hit().
  function draw(context, width, height, pane) {
    const inner = Math.max(1, Math.floor(width - LEFT));
    const edges = pane.view.edges(inner);
    const columns = pane.memory.columns(edges);
    const max = maxOf(columns);
    const foot = Math.floor(height - FOOT);
    const y = (value) => foot - (value / max) * foot;
    const ticks = Axis.byteTicks(max, 6);
    context.clearRect(0, 0, width, height);
    context.save();
    context.translate(LEFT, 0);
    context.drawImage(Colors.canvasOf(paintColumns(columns, inner, foot, y, ticks, pane.pixels, pane.isDim)), 0, 0);
    drawScale(context, "memory", ticks, y, foot);
    drawFoot(context, pane.view, inner, foot);
    drawOoms(context, pane.view, inner, foot);
    drawCursor(context, pane.view, pane.cursor, inner, foot);
    context.restore();
    return { edges, columns, max, inner, foot };
  }

  // Find the column and the band at a point.
  function hit(picture, x, y) {
    const c = Math.min(picture.inner - 1, Math.max(0, Math.floor(x - LEFT)));
    let value = ((picture.foot - y) / picture.foot) * picture.max;
    let band = -1;
    for (let i = 0; i < RESERVED && band < 0 && value >= 0; i++) {
      value -= picture.columns[c * VALUES + i];
      if (value < 0) band = i;
    }
    return { column: c, band, from: picture.edges[c], to: picture.edges[c + 1], at: c * VALUES };
  }

  return { LEFT, FOOT, draw, drawScale, drawFoot, drawCursor, hit };
})();
