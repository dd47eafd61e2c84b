# SPDX-License-Identifier: MIT
"""The map of tasks names files that exist, and the pages of rooms name the files of their rooms."""
import re

import floors
import tree

DOCUMENT = "docs/internals/floors.md"
HEADING = "\n## Map\n"
CODE = re.compile(r"`([^`]+)`")
SOURCE = re.compile(r"`(\w+\.[ch])`")
PAGE = re.compile(r"(\w+/\w+/)(\w+)/README\.md")


def rows(text):
    """Line number and cells of each row of the map, its head aside."""
    before, _, section = text.partition(HEADING)
    first = before.count("\n") + HEADING.count("\n") + 1
    lines = section.split("\n## ")[0].splitlines()
    table = [(first + i, line.split("|")[1:-1]) for i, line in enumerate(lines) if line.startswith("|")]
    return table[2:]


def check_map(root, text):
    """What is wrong with the tasks."""
    found = rows(text)
    if not found:
        yield f"{DOCUMENT}: has no map"
    for number, cells in found:
        files = CODE.findall(cells[1]) if len(cells) > 1 else []
        if not files:
            yield f"{DOCUMENT}:{number}: names no file for: {cells[0].strip()}"
        for name in files:
            if not (root / name).is_file():
                yield f"{DOCUMENT}:{number}: {name} does not exist"


def check_page(root, folder):
    """What is wrong with the page of a room."""
    page = folder / "README.md"
    name = page.relative_to(root).as_posix()
    if not page.exists():
        yield f"{name}: does not exist"
        return
    listed = {file for line in page.read_text().splitlines() if line.startswith("|")
              for file in SOURCE.findall(line.split("|")[1])}
    there = {path.name for path in folder.rglob("*.[ch]")}
    yield from (f"{name}: does not list {file}" for file in sorted(there - listed))
    yield from (f"{name}: lists {file}, which is not there" for file in sorted(listed - there))


def check(root):
    """All complaints about a tree."""
    text = (root / DOCUMENT).read_text()
    found = list(check_map(root, text))
    for program in floors.ROOMS:
        rooms = [room for room in floors.rooms(program) if (root / program / room).is_dir()]
        if [room for folder, room in PAGE.findall(text) if folder == program] != rooms:
            found.append(f"{DOCUMENT}: the table of rooms of {program} is not: {' '.join(rooms)}")
        found += [complaint for room in rooms for complaint in check_page(root, root / program / room)]
    return found


if __name__ == "__main__":
    tree.finish(check)
