# SPDX-License-Identifier: MIT
"""All error messages and log lines of the library and the simulator have the form `failure, value; what to do`.

messages.py ROOT   prints each message once with its position, then the violations; the exit status is 1 after a violation

The operation before an error message of the library is the public function (src/base/error.h).
"""
import pathlib
import re
import sys

FOLDERS = ("src/*.[ch]", "src/base/*.[ch]", "src/core/*/*.[ch]", "vmm/*.[ch]", "vmm/sim/*.[ch]", "src/adapters/preload/*.c")
# Functions whose string literals are messages or parts of messages.
CALL = re.compile(r"\b(xseg_fail|xseg_fail_append|xseg_log_line|xseg_strbuf_printf|XSEG_ENTRY_REQUIRE|fail_\w+|refuse\w*|"
                  r"sim_error|sim_warn|sim_report\w*|reject\w*|set_conflict|parse_error|xseg_fault_\w+|complain\w*)\s*\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|\b(PRI[a-zA-Z0-9]+)\b')
PRIVATE = re.compile(r"\b(nobody|somebody|gone|ledger|leftover|stuck|stranded|is told|leaves no room|has no room|goes back|"
                     r"gives? back|no host memory|lies|said|whoever|any more|let go|at once|beforehand)\b")


def arguments(text, start):
    """The arguments of a call up to its closing parenthesis."""
    depth, position, is_quoted = 1, start, False
    while depth and position < len(text):
        char = text[position]
        if is_quoted:
            position += char == "\\"
            is_quoted = char != '"'
        else:
            is_quoted = char == '"'
            depth += (char == "(") - (char == ")")
        position += 1
    return text[start:position - 1]


def join_literals(body):
    """The string literals of arguments; " / " separates literals that other code separates."""
    result, end = "", None
    for match in LITERAL.finditer(body):
        if end is not None and body[end:match.start()].strip():
            result += " / "
        result += match[1] if match[1] is not None else "u"
        end = match.end()
    return result


def messages(root):
    for pattern in FOLDERS:
        for path in sorted(root.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
            for match in CALL.finditer(text):
                body = arguments(text, match.end())
                literal = join_literals(body)
                if re.search("[a-z]{2}", literal):
                    yield f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}", literal


def violations(message):
    if message.rstrip("\\n").endswith((".", ":")):
        yield "message ends with a period or a colon"
    if re.match(r"(?!False\b|True)[A-Z][a-z]", message):
        yield "message begins with an upper-case letter"
    for word in PRIVATE.findall(message):
        yield f"\"{word}\" is not a term of the field"


def main(root):
    errors, printed = [], set()
    for location, message in messages(pathlib.Path(root)):
        if message not in printed:
            print(f"{location}: {message}")
        printed.add(message)
        errors += [f"{location}: {violation}: {message}" for violation in violations(message)]
    print("", *errors, sep="\n")
    if len(printed) < 300:
        print(f"only {len(printed)} messages match CALL of tests/lint/messages.py, instead of at least 300")
    return 1 if errors or len(printed) < 300 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
