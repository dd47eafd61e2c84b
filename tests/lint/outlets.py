# SPDX-License-Identifier: MIT
"""Only src/tools/text/complain.c writes to standard error, where it shows bytes that cannot be printed."""
import re

import tree

FOLDER = "src/tools"
OUTLET = "src/tools/text/complain.c"
# A call of the C library that writes there, by itself or to a stream that it is given.
CALL = re.compile(r"\b(?:v?fprintf\s*\(\s*stderr|(?:fputs|fputc|putc|fwrite)\s*\([^;]*?\bstderr\s*\)|"
                  r"(?:v?dprintf|write)\s*\(\s*(?:STDERR_FILENO|2)\b|(?:perror|warnx?|errx?|psignal|error)\s*\()")


def check(root):
    """All complaints about a tree."""
    found = []
    for path in sorted((root / FOLDER).rglob("*.[ch]")):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if name == OUTLET:
            continue
        for match in CALL.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{name}:{line}: writes to standard error, which only {OUTLET} does")
    return found


if __name__ == "__main__":
    tree.finish(check)
