# SPDX-License-Identifier: MIT
"""The shell blocks of README.md and docs, and outputs as these pages show them."""
import re
import textwrap

COLUMNS = 100
COMMAND = re.compile(r"(\$ )?(\w+=\S* +)*(cc |xseg \w|pip |apt-get |mkdir |install |meson |bpftrace |(venv/bin/)?python|\./|"
                     r"(\.ci|tests|benchmarks|src|build-tests)/)|folder=|(\w+=\S* +)+#")


def pages(root):
    return [root / "README.md", *sorted(root.glob("docs/*.md"))]


def shell_blocks(page):
    """The commands of each shell block, without their outputs; a command can have several lines."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        if COMMAND.match(block) and not language:
            commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
            found.append(commands or re.findall(r"(?:'[^']*'|\\\n|[^\n'#]|#.*)+", block))
    return found


def wrapped(text):
    """An output as a page shows it: long lines continue below their last column."""
    lines = []
    for line in text.splitlines():
        indent = len(re.match(r".*\S {2,}(?=\S)| *", line)[0]) if len(line) > COLUMNS else 0
        lines.append(textwrap.fill(line, COLUMNS, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
                     if len(line) > COLUMNS else line)
    return "".join(line + "\n" for line in lines)
