// SPDX-License-Identifier: MIT
// Colours that people tell apart whatever colours they see: those of Okabe and Ito, "Color Universal Design" (2008),
// without black.  The second seven sites have the same with stripes.
const Colors = (() => {
  const SITES = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"];
  const PAGES = { allocated: "#0072b2", pending: "#e69f00", fragmented: "#d55e00", pinned: "#cc79a7", cached: "#56b4e9", registered: "#009e73" };

  const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function stripes(context, color, ground) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const on = tile.getContext("2d");
    on.fillStyle = color;
    on.fillRect(0, 0, 6, 6);
    on.strokeStyle = ground;
    on.lineWidth = 1.5;
    on.beginPath();
    for (const x of [-6, 0, 6]) { on.moveTo(x - 1, 7); on.lineTo(x + 7, -1); }
    on.stroke();
    return context.createPattern(tile, "repeat");
  }

  // What each band is filled with.
  function bands(context) {
    const ground = theme("ground");
    return Array.from({ length: Sites.PENDING + 1 }, (_, band) => {
      if (band === Sites.PENDING) return stripes(context, theme("rest"), ground);
      if (band === Sites.REST) return theme("rest");
      return band < SITES.length ? SITES[band] : stripes(context, SITES[band - SITES.length], ground);
    });
  }

  // A colour as the number that an ImageData's Uint32Array has; share: how much of it is over the ground.
  function number(color, share = 1, ground = "#000000") {
    const [r, g, b] = [1, 3, 5].map((at) => {
      const [over, under] = [color, ground].map((one) => parseInt(one.slice(at, at + 2), 16));
      return Math.round(over * share + under * (1 - share));
    });
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }

  // The same colours as bands(), and the others of the timeline, as numbers; `other` is that of a stripe.
  function inks() {
    const ground = theme("ground");
    const ink = (color, isStriped, share) => {
      const full = number(color, share, ground);
      return { color: full, other: isStriped ? number(ground) : full };
    };
    const bands = Array.from({ length: Sites.PENDING + 1 }, (_, band) => {
      const color = band >= Sites.REST ? theme("rest") : SITES[band % SITES.length];
      const isStriped = band === Sites.PENDING || (band >= SITES.length && band < Sites.REST);
      return { full: ink(color, isStriped, 1), dim: ink(color, isStriped, 0.18) };
    });
    return { bands, line: number(theme("line")), reserved: number(theme("reserved")) };
  }

  // An image as something that can be drawn at any scale.
  function canvasOf(image) {
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  return { PAGES, theme, bands, number, inks, canvasOf };
})();
