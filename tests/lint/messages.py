# SPDX-License-Identifier: MIT
"""All error messages and log lines of the library and the simulator, in one form: what failed, value; what to do.

messages.py ROOT   prints each message once with its position, then violations; the exit status is 1 if there are any

The operation before an error message of the library is the public function (src/base/error.h).
"""
import pathlib
import re
import sys

FOLDERS = ("src/*.c", "src/*.h", "src/base/*.[ch]", "src/core/*/*.[ch]", "vmm/*.[ch]", "vmm/sim/*.[ch]", "src/adapters/preload/*.c")
# Functions whose literals are messages, and parts of messages that are composed.
CALL = re.compile(r"\b(xseg_fail|xseg_fail_append|xseg_log_line|xseg_strbuf_printf|XSEG_ENTRY_REQUIRE|fail_\w+|refuse\w*|sim_error|sim_warn|sim_report\w*|reject\w*|set_conflict|parse_error|"
                  r"xseg_fault_\w+|complain\w*)\s*\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|\b(PRI[a-zA-Z0-9]+)\b')
PRIVATE = re.compile(r"\b(nobody|somebody|gone|ledger|leftover|stuck|stranded|is told|leaves no room|has no room|goes back|gives? back|"
                     r"no host memory|lies|said|whoever|any more|let go|at once|beforehand)\b")


def arguments(text, start):
    """The arguments of a call up to its closing parenthesis."""
    depth, at, quoted = 1, start, False
    while depth and at < len(text):
        char = text[at]
        if quoted:
            at += char == "\\"
            quoted = char != '"'
        else:
            quoted = char == '"'
            depth += (char == "(") - (char == ")")
        at += 1
    return text[start:at - 1]


def joined(body):
    """The literals of arguments; " / " separates those that are not one string."""
    whole, end = "", None
    for match in LITERAL.finditer(body):
        if end is not None and body[end:match.start()].strip():
            whole += " / "
        whole += match[1] if match[1] is not None else "u"
        end = match.end()
    return whole


def messages(root):
    for pattern in FOLDERS:
        for path in sorted(root.glob(pattern)):
            text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"), flags=re.DOTALL)
            for match in CALL.finditer(text):
                body = arguments(text, match.end())
                literal = joined(body)
                if re.search("[a-z]{2}", literal):
                    yield f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}", literal


def complaints(message):
    if message.rstrip("\\n").endswith((".", ":")):
        yield "it ends with a period or a colon"
    if re.match(r"(?!False\b|True)[A-Z][a-z]", message):
        yield "it begins with an upper-case letter"
    for word in PRIVATE.findall(message):
        yield f"\"{word}\" is not a term of the field"


def main(root):
    found, seen = [], set()
    for place, message in messages(pathlib.Path(root)):
        if message not in seen:
            print(f"{place}: {message}")
        seen.add(message)
        found += [f"{place}: {what}: {message}" for what in complaints(message)]
    print("", *found, sep="\n")
    if len(seen) < 300:
        print(f"only {len(seen)} messages were found: CALL in tests/lint/messages.py misses some")
    return 1 if found or len(seen) < 300 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
