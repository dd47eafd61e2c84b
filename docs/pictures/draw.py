#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draw the pictures of the documentation as SVG files in this folder.

    docs/pictures/draw.py           writes every picture
    docs/pictures/draw.py --check   compares the files with what would be written; exit status 1 if one differs

A picture has its own background and follows the color scheme of the reader, light or dark.  The colors have one meaning in all
pictures: blue is allocated memory, gray is cached memory, orange is memory that waits for a stream, and a dashed outline is a
range of addresses without memory.
"""
import html
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
STYLE = """
svg { --page: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #8c959f; --allocated: #a8cdf0; --cached: #d8dee4; --pending: #f5c58b;
  --box: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  svg { --page: #0d1117; --ink: #e6edf3; --faint: #9da7b3; --line: #6e7681; --allocated: #1f4f80; --cached: #3d444d; --pending: #7d4e12;
    --box: #161b22; }
}
text { font: 14px system-ui, sans-serif; fill: var(--ink); }
.faint { fill: var(--faint); font-size: 12px; }
.title { font-weight: 600; }
.page { fill: var(--page); }
.box { fill: var(--box); stroke: var(--line); }
.outline { fill: var(--page); stroke: var(--line); }
.allocated { fill: var(--allocated); stroke: var(--line); }
.cached { fill: var(--cached); stroke: var(--line); }
.pending { fill: var(--pending); stroke: var(--line); }
.unmapped { fill: none; stroke: var(--line); stroke-dasharray: 4 3; }
.arrow { fill: none; stroke: var(--faint); stroke-width: 1.5; marker-end: url(#head); }
.guide { fill: none; stroke: var(--line); stroke-dasharray: 2 3; }
#head path { fill: var(--faint); }
"""


class Picture:
    """An SVG document; coordinates are pixels, and (x, y) is a top left corner."""

    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
            f"<title>{html.escape(title)}</title>", f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z"/></marker></defs>', f'<rect class="page" width="{width}" height="{height}" rx="6"/>']

    def text(self, x, y, line, kind="", anchor="start"):
        """One line of text whose baseline starts, ends or is centered at (x, y)."""
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{html.escape(line)}</text>')

    def box(self, x, y, width, height, kind, lines=(), faint=()):
        """A rectangle with centered lines of text, the faint ones last."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>')
        all_lines = [(line, "") for line in lines] + [(line, "faint") for line in faint]
        top = y + height / 2 + 5 - 9 * (len(all_lines) - 1)
        for row, (line, style) in enumerate(all_lines):
            self.text(x + width / 2, top + 18 * row, line, style, "middle")

    def row(self, x, y, height, cells):
        """Adjacent rectangles: (width, kind, text)."""
        for width, kind, text in cells:
            self.box(x, y, width, height, kind, [text] if text else [])
            x += width

    def path(self, kind, *points):
        """A polyline through points."""
        self.parts.append(f'<path class="{kind}" d="M' + "L".join(f"{x} {y}" for x, y in points) + '"/>')

    def arrow(self, *points, label="", label_at=None, anchor="middle"):
        """An arrow through points, with a label at a point."""
        self.path("arrow", *points)
        for row, line in enumerate(label.split("\n") if label else []):
            self.text(label_at[0], label_at[1] + 15 * row, line, "faint", anchor)

    def legend(self, x, y, *entries):
        """Colors and their meanings, in one line."""
        for kind, text in entries:
            self.box(x, y - 11, 18, 13, kind)
            self.text(x + 25, y, text, "faint")
            x += 45 + 7 * len(text)

    def finish(self):
        """The document."""
        return "\n".join(self.parts) + "\n</svg>\n"


LEGEND = (("allocated", "allocated"), ("cached", "cached"), ("pending", "pending free"), ("unmapped", "unmapped addresses"))


def layers():
    """Device, pool, arena, segment, page, block."""
    picture = Picture(860, 438, "A device has pools, a pool has arenas, an arena has segments; pages and blocks divide a segment")
    picture.box(20, 20, 820, 398, "box")
    picture.text(34, 42, "device", "title")
    picture.text(94, 42, "limits, statistics, page cache", "faint")
    picture.box(40, 56, 780, 346, "outline")
    picture.text(54, 78, "pool", "title")
    picture.text(94, 78, "the default pool, or a private pool such as one of a CUDA graph; pools share no segments", "faint")
    picture.box(60, 92, 740, 294, "box")
    picture.text(74, 114, "arena", "title")
    picture.text(124, 114, "one stream and one size class: requests of at most 1 MiB, or larger ones; a free index and a lock", "faint")
    picture.text(74, 152, "segment", "title")
    picture.text(148, 152, "one reserved virtual address range (cuMemAddressReserve)", "faint")
    segment = [(160, "outline", "20 MiB page"), (160, "outline", "20 MiB page"), (160, "unmapped", ""), (160, "outline", "20 MiB page"),
               (70, "unmapped", "")]
    picture.row(74, 164, 46, segment)
    blocks = [(110, "allocated", "block"), (50, "cached", ""), (120, "allocated", "block"), (40, "pending", ""),
              (160, "unmapped", ""), (100, "allocated", "block"), (60, "cached", ""), (70, "unmapped", "")]
    for x in (74, 394, 554, 714, 784):
        picture.path("guide", (x, 210), (x, 244))
    picture.row(74, 244, 40, blocks)
    picture.text(74, 312, "pages: one handle each (cuMemCreate), mapped at multiples of the page size on demand (cuMemMap)", "faint")
    picture.text(74, 332, "blocks: they divide the segment without gaps, and may begin and end inside a page; a request gets one block",
                 "faint")
    picture.legend(74, 364, *LEGEND)
    return picture.finish()


def growth():
    """Growth and release, with classic and with expandable segments."""
    picture = Picture(910, 460, "The same requests with classic segments and with an expandable segment")
    picture.text(230, 30, "classic segments", "title")
    picture.text(560, 30, "expandable segment", "title")
    left, right, height = 230, 560, 34
    steps = [
        ("allocate A and B", "40 MiB each",
         [[(120, "allocated", "A 40")], [(120, "allocated", "B 40")]],
         [[(120, "allocated", "A 40"), (120, "allocated", "B 40"), (60, "unmapped", "")]], ("reserved 80 MiB", "reserved 80 MiB")),
        ("free A and B", "cached for the next request",
         [[(120, "cached", "40")], [(120, "cached", "40")]],
         [[(240, "cached", "80"), (60, "unmapped", "")]], ("reserved 80 MiB", "reserved 80 MiB")),
        ("allocate C 100 MiB", "no cached block is that large",
         [[(120, "cached", "40")], [(120, "cached", "40")], [(300, "allocated", "C 100")]],
         [[(300, "allocated", "C 100")]], ("reserved 180 MiB", "reserved 100 MiB: the segment grew by one page")),
        ("free C, allocate D 20 MiB", "then empty_cache()",
         [[(60, "allocated", "D 20"), (60, "cached", "20")]],
         [[(60, "allocated", "D 20"), (240, "unmapped", "")]],
         ("reserved 40 MiB: only whole segments are released", "reserved 20 MiB: idle pages are released")),
    ]
    y = 56
    for title, detail, classic, expandable, captions in steps:
        picture.text(20, y + 16, title)
        picture.text(20, y + 34, detail, "faint")
        for column, (x, rows) in enumerate(((left, classic), (right, expandable))):
            row_y = y
            for cells in rows:
                picture.row(x, row_y, height - 8, cells)
                row_y += height - 4
            picture.text(x, row_y + 12, captions[column], "faint")
        y += max(len(classic), len(expandable)) * (height - 4) + 34
    picture.legend(20, y + 8, LEGEND[0], LEGEND[1], LEGEND[3])
    picture.text(560, y + 8, "The numbers in the blocks are sizes in MiB.", "faint")
    return picture.finish()


def states():
    """The states of a block and of a page."""
    picture = Picture(860, 400, "The states of a block, and the states of a page")
    picture.text(20, 30, "block", "title")
    boxes = {"unmapped": (40, 60, "unmapped"), "cached": (360, 60, "cached"), "allocated": (680, 60, "allocated"),
             "pending": (680, 170, "pending free"), "claimed": (200, 170, "claimed")}
    kinds = {"unmapped": "unmapped", "cached": "cached", "allocated": "allocated", "pending": "pending", "claimed": "box"}
    for name, (x, y, text) in boxes.items():
        picture.box(x, y, 140, 44, kinds[name], [text])
    picture.arrow((500, 72), (678, 72), label="allocate", label_at=(589, 66))
    picture.arrow((680, 92), (502, 92), label="free: no other stream uses it", label_at=(590, 110))
    picture.arrow((750, 104), (750, 168), label="free: other streams\nuse it", label_at=(744, 134), anchor="end")
    picture.arrow((680, 192), (440, 192), (440, 106), label="its events have completed", label_at=(560, 210))
    picture.arrow((90, 104), (90, 192), (198, 192), label="growth", label_at=(140, 186))
    picture.arrow((340, 182), (410, 182), (410, 106), label="mapped", label_at=(375, 176))
    picture.arrow((375, 104), (375, 160), (290, 160), (290, 168), label="reclaim, growth", label_at=(322, 154))
    picture.arrow((200, 202), (60, 202), (60, 106), label="unmapped", label_at=(130, 218))
    picture.text(40, 244, "A thread claims blocks, then unlocks the arena and calls the driver; other threads do not use claimed blocks.", "faint")
    picture.text(20, 290, "page", "title")
    picture.box(40, 310, 140, 44, "unmapped", ["does not exist"])
    picture.box(360, 310, 140, 44, "box", ["mapped"])
    picture.box(680, 310, 140, 44, "box", ["in the page cache"])
    picture.arrow((180, 322), (358, 322), label="create, map, set access", label_at=(269, 316))
    picture.arrow((360, 342), (182, 342), label="unmap, release", label_at=(271, 360))
    picture.arrow((500, 342), (678, 342), label="unmap: kept for reuse", label_at=(589, 360))
    picture.arrow((680, 322), (502, 322), label="map, set access", label_at=(591, 316))
    picture.arrow((750, 354), (750, 380), (110, 380), (110, 356), label="release, when the page cache is trimmed",
                  label_at=(430, 394))
    return picture.finish()


def request():
    """The lifetime of a request, from allocation to release."""
    picture = Picture(860, 470, "What happens to a request from its allocation to the release of its memory")
    rows = [
        (50, "xseg_alloc()", "round the size; find the arena of the stream"),
        (130, "best fit", "the smallest cached block that is large enough; split it"),
        (210, "growth", "map pages into the segment, within the limits"),
        (290, "fallback chain", "remap idle pages, wait for streams, release idle memory"),
        (370, "out of memory", "a status, and a message with an account of memory"),
    ]
    for y, title, detail in rows:
        picture.box(20, y, 380, 50, "box", [title], [detail])
    for (y, *_), label in zip(rows, ("", "miss", "a limit or the driver denies it", "every step fails")):
        picture.arrow((120, y + 50), (120, y + 78), label=label, label_at=(128, y + 68), anchor="start")
    picture.box(520, 130, 300, 50, "allocated", ["allocated block"], ["returned to the caller"])
    for y, label in ((155, "hit"), (235, ""), (315, "")):
        if y == 155:
            picture.arrow((400, y), (518, y), label=label, label_at=(458, y - 7))
        else:
            picture.arrow((400, y), (460, y), (460, 165), (518, 165), label="", label_at=None)
    picture.box(520, 210, 300, 50, "pending", ["pending free"], ["only if other streams used the block"])
    picture.box(520, 290, 300, 50, "cached", ["cached"], ["coalesced with cached neighbors, reusable"])
    picture.box(520, 370, 300, 50, "unmapped", ["unmapped"], ["the memory is released, the addresses remain"])
    picture.arrow((620, 180), (620, 208), label="xseg_free()", label_at=(628, 198), anchor="start")
    picture.arrow((620, 260), (620, 288), label="its events have completed", label_at=(628, 278), anchor="start")
    picture.arrow((620, 340), (620, 368), label="trim, decay or a limit", label_at=(628, 358), anchor="start")
    picture.arrow((820, 155), (840, 155), (840, 315), (822, 315))
    picture.text(20, 30, "A hit makes no driver call. A miss calls the driver only for the pages that it needs.", "faint")
    picture.text(20, 450, "If no other stream used the block, xseg_free() makes it cached immediately (right arrow).", "faint")
    return picture.finish()


def cache():
    """A paged KV cache on an elastic range."""
    picture = Picture(860, 380, "A paged KV cache on an elastic range: tensors have the length of the worst case, pages exist where blocks are in use")
    picture.text(20, 30, "range: addresses for the worst case of all layers, reserved once; tensors and captured graphs remain valid", "faint")
    for layer, y in enumerate((50, 120, 190)):
        picture.text(20, y + 26, f"layer {layer}", "title")
        cells = [(90, "allocated", "page 0"), (90, "allocated", "page 1"), (90, "unmapped", ""), (90, "allocated", "page 3"),
                 (90, "pending", "page 4"), (300, "unmapped", "")]
        picture.row(90, y, 44, cells)
    picture.text(90, 258, "commit page 2", "")
    picture.text(90, 276, "maps 2 MiB in each layer", "faint")
    picture.arrow((230, 252), (315, 252), (315, 238))
    picture.text(360, 258, "decommit page 4", "")
    picture.text(360, 276, "unmaps it in each layer, after the work queued on the given stream", "faint")
    picture.arrow((505, 252), (525, 252), (525, 238))
    picture.text(20, 314, "A page is one granule in each layer: 2 MiB, 32 blocks of 64 KiB.", "faint")
    picture.text(20, 332, "Other requests can use the memory of pages that are not committed.", "faint")
    picture.legend(20, 360, ("allocated", "committed"), ("pending", "pending unmap"), ("unmapped", "unmapped addresses"))
    return picture.finish()


PICTURES = {"layers.svg": layers, "growth.svg": growth, "states.svg": states, "request.svg": request, "kv-cache.svg": cache}


def main():
    differing = []
    for name, draw in PICTURES.items():
        path, document = FOLDER / name, draw()
        if sys.argv[1:] != ["--check"]:
            path.write_text(document, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != document:
            differing.append(name)
    if differing:
        sys.exit(f"docs/pictures: files differ from draw.py, {', '.join(differing)}; run docs/pictures/draw.py")


if __name__ == "__main__":
    main()
