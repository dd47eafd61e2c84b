# SPDX-License-Identifier: MIT
"""The generated files _structs.py, _functions.py and _statistics.py of the Python package and src/xseg.map match the headers.

declarations.py ROOT [--write]; --write updates the files, which is required after each change of a public header.
"""
import re
import textwrap

import tree

FOLDER = "src/adapters/python/xseg/"
# Each header is after the headers that it uses.
HEADERS = ("status", "allocator", "reclaim", "stats", "pool", "range", "observer", "register", "share", "history", "budget",
           "version")
BASIC_TYPES = {"void": "None", "bool": "c_bool", "char": "c_char", "int": "c_int", "unsigned": "c_uint", "size_t": "c_size_t",
         "uint8_t": "c_uint8", "uint32_t": "c_uint32", "int32_t": "c_int32", "uint64_t": "c_uint64", "int64_t": "c_int64",
         "double": "c_double", "xseg_status": "c_int", "xseg_stream": "c_void_p", "xseg_event": "c_void_p"}
# Parameters with another name in the Python package.
PYTHON_NAMES = {"anywhere": "address", "bytes": "size", "from_offset": "source_offset", "ptr": "pointer"}
HEAD = '''# SPDX-License-Identifier: MIT
"""{}

Printed from include/xseg by tests/lint/declarations.py --write: do not edit it here.
"""
'''


class Reader:
    """The declarations of the headers, with the types of ctypes."""

    def __init__(self):
        self.version, self.constants, self.structs, self.functions = "", {}, {}, {}

    def read(self, text):
        self.version = "".join(re.findall(r'#define XSEG_VERSION_TEXT +"(.*)"', text)) or self.version
        initializers = dict(re.findall(r"#define (XSEG_\w+?)_(?:INIT|ALL)\b(.*(?:\\\n.*)*)", text))
        for name, number in re.findall(r"#define (XSEG_(?!VERSION_)[A-Z_]+) +(\d+)u?$", text, re.MULTILINE):
            self.constants[name] = int(number)
        for name, number in re.findall(r"X\((\w+), (-?\d+), ", text):
            self.constants[f"XSEG_{name}"] = int(number)
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        text = re.sub(r"^ *#(?:.*\\\n)*.*$", "", text, flags=re.MULTILINE)
        text = re.sub(r'extern "C" \{', "", text)
        for match in re.finditer(r"(?:^|typedef )enum (?:\w+ )?\{(.*?)\}", text, re.DOTALL | re.MULTILINE):
            self.read_enum(match[1])
        for match in re.finditer(r"^struct (\w+) \{(.*?)^\};", text, re.DOTALL | re.MULTILINE):
            self.read_struct(match[1], match[2], initializers)
        for match in re.finditer(r"^XSEG_API (?:XSEG_NODISCARD )?([^;]*?)(\w+)\(([^;]*)\);", re.sub(r"\s+(?=\w*\()", " ", text),
                                 re.MULTILINE):
            arguments = [self.declaration(argument) for argument in split(match[3], ",")]
            self.functions[match[2]] = (self.ctype(match[1]), [(name, ctype) for name, ctype in arguments if ctype != "None"])

    def read_enum(self, body):
        number = -1
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            if re.fullmatch(r"XSEG_[A-Z0-9_]+", name):
                number = int(value, 0) if value else number + 1
                self.constants[name] = number

    def read_struct(self, name, body, initializers):
        """Read the members, and the initial values that are not zero."""
        members = []
        for line in split(body, ";"):
            first, *declarators = split(line, ",") if "(" not in line else [line]
            members.append(self.declaration(first))
            members += [self.declaration(re.match(r"[\w ]*?(?=\s*\*?\w+\s*(\[|$))", first)[0] + " " + declarator)
                        for declarator in declarators]
        values = initializers.get("XSEG_" + name.removeprefix("xseg_").upper(), "")
        values = split(re.sub(r"\\\n", " ", values).strip()[1:-1], ",") if values else []
        nonzero = {member: value for (member, _), value in zip(members, values)
                   if not re.fullmatch(r"0|NULL|false|sizeof.*|[{}0NUL, ]*|XSEG_BLOCK_UNMAPPED", value)}
        self.structs[name] = members, {member: value.replace("UINT64_MAX", "2**64 - 1") for member, value in nonzero.items()}

    def ctype(self, text):
        """The type of ctypes for a C type."""
        is_const = text.lstrip().startswith("const ")
        text = re.sub(r"\bconst\b|\s+", " ", text)
        pointers, base = text.count("*"), " ".join(text.replace("*", " ").split())
        if base == "char" and pointers:  # ctypes converts c_char_p to bytes, which are immutable
            ctype, pointers = "c_char_p" if is_const else "c_void_p", pointers - 1
        elif base == "void" and pointers:
            ctype, pointers = "c_void_p", pointers - 1
        elif base.startswith("struct ") and base.split()[1] not in self.structs:
            ctype, pointers = "c_void_p", pointers - 1
        elif base.startswith("struct "):
            ctype = base.split()[1]
        else:
            ctype = "c_int" if base.startswith("enum ") else BASIC_TYPES[base]
        for _ in range(pointers):
            ctype = f"POINTER({ctype})"
        return ctype

    def declaration(self, text):
        """The name and the type of a member or an argument."""
        text = " ".join(text.split())
        function = re.fullmatch(r"(.*?)\(\*(\w+)\)\((.*)\)", text)
        if function:
            types = [self.ctype(function[1])] + [self.declaration(argument)[1] for argument in split(function[3], ",")]
            return function[2], f"CFUNCTYPE({', '.join(types)})"
        if text == "void":
            return "", "None"
        match = re.fullmatch(r"(.*?)(\w+)((?:\[\w+\])*)", text)
        ctype = self.ctype(match[1])
        for length in re.findall(r"\[(\w+)\]", match[3]):
            ctype += f" * {self.constants.get(length, length)}"
        return match[2], ctype


def split(text, separator):
    """The parts between separators that are not in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "({[") - (letter in ")}]")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def ctypes_imports(text):
    return import_lines("ctypes", sorted(set(re.findall(r"\b(?:c_\w+|POINTER|CFUNCTYPE|Structure)\b", text))))


def import_lines(module, names):
    lines = textwrap.wrap(", ".join(names), 110, initial_indent="    ", subsequent_indent="    ")
    return f"from {module} import (\n" + "\n".join(lines) + ",\n)\n"


def structs_text(reader):
    lines = [f"VERSION = {reader.version!r}", ""] + [f"{name} = {number}" for name, number in reader.constants.items()]
    for name, (members, initial_values) in reader.structs.items():
        lines += ["", "", f"class {name}(Structure):"]
        if initial_values:
            lines += [f"    START = {{{', '.join(f'{member!r}: {value}' for member, value in initial_values.items())}}}"]
        lines += ["    _fields_ = ["] + [f"        ({member!r}, {ctype})," for member, ctype in members] + ["    ]"]
    body = "\n".join(lines).replace("'", '"') + "\n"
    return HEAD.format("Numbers and structures of libxseg.so.") + ctypes_imports(body) + "\n" + body


def functions_text(reader):
    lines = ["", "# Name: result type, parameter types, parameter names.", "FUNCTIONS = {"]
    for name, (result, arguments) in sorted(reader.functions.items()):
        names = [PYTHON_NAMES.get(argument, argument) for argument, _ in arguments]
        types = ", ".join(ctype for _, ctype in arguments)
        lines.append(f'    "{name}": ({result}, [{types}], {" ".join(names)!r}),'.replace("'", '"'))
    body = "\n".join(lines + ["}", ""])
    used = sorted(name for name in reader.structs if re.search(rf"\b{name}\b(?!\")", body))
    return HEAD.format("Functions of libxseg.so.") + ctypes_imports(body) + import_lines("xseg._structs", used) + body


def statistics_text(reader, text):
    """The file of the named tuples of statistics: None represents UINT64_MAX in the members whose comment has this value."""
    unlimited = set(re.findall(r"uint64_t (\w+); +/\*[^*]*UINT64_MAX", text))
    types = {"xseg_stat": "Stat", "xseg_stat * 3": "Groups"}
    groups = [name.removeprefix("XSEG_STAT_").lower() for name in reader.constants
              if name.startswith("XSEG_STAT_") and name != "XSEG_STAT_GROUPS"]
    records = (
        ("Stat", "A statistic: current value, peak, and the sums of all increases and decreases.",
         [(member, "int") for member, _ in reader.structs["xseg_stat"][0]]),
        ("Groups", "A statistic of all blocks, of blocks in small segments, and of blocks in large segments.",
         [(group, "Stat") for group in groups]),
        ("Statistics", "Statistics of one device or private pool, see xseg/stats.h.",
         [(member, types.get(ctype, "Optional[int]" if member in unlimited else "int"))
          for member, ctype in reader.structs["xseg_statistics"][0] if member != "struct_size"]))
    lines = ["from typing import NamedTuple, Optional"]
    for name, description, members in records:
        lines += ["", "", f"class {name}(NamedTuple):", f'    """{description}"""', ""]
        lines += [f"    {member}: {annotation}" for member, annotation in members]
    return HEAD.format("Statistics, as named tuples.") + "\n".join(lines) + "\n"


def exports_text(reader):
    return "XSEG_0 {\nglobal:\n" + "".join(f"  {name};\n" for name in sorted(reader.functions)) + "local:\n  *;\n};\n"


def generate(root):
    reader = Reader()
    for name in HEADERS:
        header = root / "include/xseg" / f"{name}.h"
        if header.exists():
            reader.read(header.read_text(encoding="utf-8"))
    files = {FOLDER + "_structs.py": structs_text(reader), FOLDER + "_functions.py": functions_text(reader),
             "src/xseg.map": exports_text(reader)}
    stats = root / "include/xseg/stats.h"
    if stats.exists():
        files[FOLDER + "_statistics.py"] = statistics_text(reader, stats.read_text(encoding="utf-8"))
    return files


def check(root, write=None):
    errors = [f"include/xseg/{path.name}: header is not in HEADERS of tests/lint/declarations.py"
              for path in sorted((root / "include/xseg").glob("*.h")) if path.stem not in (*HEADERS, "ipc", "sim", "xseg")]
    for name, text in generate(root).items():
        path = root / name
        if str(write) == "--write":
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            errors.append(f"{name}: does not match the headers; run python3 tests/lint/declarations.py . --write")
    return errors


if __name__ == "__main__":
    tree.finish(check)
