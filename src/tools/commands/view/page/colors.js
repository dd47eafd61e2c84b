// SPDX-License-Identifier: MIT
// The colors of the page.  A color or pattern has one meaning on the whole page:
//
//   hue         a call site.  The hues are those of Okabe and Ito ("Color Universal Design", 2008), which people with any
//               color vision can distinguish, without black and vermilion; the second six sites have stripes
//   gray        allocated memory without a color of a site
//   stripes     pending memory, in the same gray
//   light gray  idle memory
//   vermilion   fragmented memory only, which is the subject of the page
//   text color  lines: reserved memory, the cursor, ends of segments, pinned and registered pages
const Colors = (() => {
  const SITES = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#cc79a7"];
  const STATES = ["unmapped", "allocated", "pending", "fragmented", "idle"];
  const DIM = 0.18;

  const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Get the color of a band, and whether it is striped.
  function bandStyle(band) {
    if (band >= Sites.OTHERS) return { color: theme("allocated"), isStriped: band === Sites.PENDING };
    return { color: SITES[band % SITES.length], isStriped: band >= SITES.length };
  }

  function stateStyle(state) {
    return state === "pending" ? { color: theme("allocated"), isStriped: true } : { color: theme(state), isStriped: false };
  }

  // Make a fill style for a canvas.
  function fill(context, { color, isStriped }) {
    if (!isStriped) return color;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const tileContext = tile.getContext("2d");
    tileContext.fillStyle = color;
    tileContext.fillRect(0, 0, 6, 6);
    tileContext.strokeStyle = theme("ground");
    tileContext.lineWidth = 1.5;
    tileContext.beginPath();
    for (const x of [-6, 0, 6]) { tileContext.moveTo(x - 1, 7); tileContext.lineTo(x + 7, -1); }
    tileContext.stroke();
    return context.createPattern(tile, "repeat");
  }

  const bandFills = (context) => Array.from({ length: Sites.PENDING + 1 }, (_, band) => fill(context, bandStyle(band)));
  const stateFill = (context, state) => fill(context, stateStyle(state));

  // Convert a color to an element of an ImageData's Uint32Array; share: the opacity of the color over the ground.
  function number(color, share = 1, ground = "#000000") {
    const [r, g, b] = [1, 3, 5].map((at) => {
      const [over, under] = [color, ground].map((text) => parseInt(text.slice(at, at + 2), 16));
      return Math.round(over * share + under * (1 - share));
    });
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }

  // Convert a style to two pixel values; `stripe` is the value of a stripe.
  function pixels({ color, isStriped }, share = 1) {
    const full = number(color, share, theme("ground"));
    return { color: full, stripe: isStriped ? number(theme("ground")) : full };
  }

  const isStripe = (row, column) => (row + column) % 6 < 2;

  // Get the pixel values of the timeline.
  function timelinePixels() {
    const bands = Array.from({ length: Sites.PENDING + 1 }, (_, band) =>
      ({ full: pixels(bandStyle(band)), dim: pixels(bandStyle(band), DIM) }));
    return { bands, grid: number(theme("grid")), reserved: number(theme("reserved")) };
  }

  const statePixels = () => STATES.map((state) => pixels(stateStyle(state)));

  function canvasOf(image) {
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  return { DIM, STATES, theme, bandFills, stateFill, isStripe, timelinePixels, statePixels, canvasOf };
})();
