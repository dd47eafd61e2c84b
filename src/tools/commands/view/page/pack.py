# SPDX-License-Identifier: MIT
"""Generate view_page.c from the parts of the page of `xseg view`: pack.py OUTPUT page.html page.css SCRIPT.js...

page.html has three placeholders: @STYLE@, @DATA@ for the data of the files, and @SCRIPT@.
"""
import pathlib
import sys


def main(output, page, style, *scripts):
    """Write view_page.c."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    script = "\n".join(pathlib.Path(name).read_text(encoding="utf-8") for name in scripts)
    if "</script" in script:
        sys.exit("a script contains </script")
    text = text.replace("@STYLE@", pathlib.Path(style).read_text(encoding="utf-8")).replace("@SCRIPT@", script)
    head, tail = (part.encode() for part in text.split("@DATA@"))
    lines = ['#include "src/tools/commands/view/view_page.h"']
    for name, data in (("head", head), ("tail", tail)):
        lines.append(f"const unsigned char view_page_{name}[] = {{")
        lines += [",".join(map(str, data[at:at + 32])) + "," for at in range(0, len(data), 32)]
        lines += ["};", f"const size_t view_page_{name}_bytes = sizeof(view_page_{name});"]
    pathlib.Path(output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
