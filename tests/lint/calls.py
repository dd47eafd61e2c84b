# SPDX-License-Identifier: MIT
"""The call graph of the library, or of the tool: which function names which, and which modules call in a circle.

    calls.py ROOT       functions, calls, and the circles of modules in src/core and in src/tools

universal-ctags says where functions stand, inline functions of headers among them.  A function whose
name stands in the body of another one, as a call or as a pointer, is called there.  A name in an
initialiser outside of functions, such as a table of pointers, is a call of the module without a
caller.  A macro stands for the names in its body.  Comments, strings, members of structs and
their tags are no names.

In the library a name that begins with xseg_ may stand for a function of any file, every other name for one of its own
file only: docs/contributing.md has the rule for names.  In the tool a name may stand for any function that is not static.
A module is a .c and the .h of the same stem.
"""
import bisect
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys

CORE = "src/core/"
TOOLS = "src/tools/"
# Of what a folder with rooms calls: the folders, those that are none of it, and how a name begins that others call.
PROGRAMS = {
    CORE: (("src", "vmm"), ("src/adapters/", TOOLS, "src/package/", "vmm/sim/"), "xseg_"),
    TOOLS: (("src/tools",), (), ""),
}

# first, last: lines of the name and of the closing brace; is_own: static in a .c
Function = collections.namedtuple("Function", "path name first last is_own")
Declared = collections.namedtuple("Declared", "path name line")
# caller: a Function, or None outside of functions; target: the Function that is called
Call = collections.namedtuple("Call", "path line caller target")

NO_CODE = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)
WORD = re.compile(r"(?<![\w.])(?<!->)(?<!struct )(?<!union )(?<!enum )[A-Za-z_]\w*")
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?((?:\\\n|[^\n])*)", re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
INITIALISER = re.compile(r"=[^;]*;")
# What a macro's body begins with that is only an attribute.
ATTRIBUTE = re.compile(r"\s*(__attribute__|XSEG_TSA|$)")


def has_ctags():
    """Whether universal-ctags is here, with its JSON output."""
    if shutil.which("ctags") is None:
        return False
    asked = [subprocess.run(["ctags", option], capture_output=True, text=True, check=False).stdout
             for option in ("--version", "--list-features")]
    return "Universal Ctags" in asked[0] and "json" in asked[1]


def spaces(match):
    """As many blanks and lines as the match has."""
    return re.sub(r"[^\n]", " ", match[0])


def module(path):
    """The module of a file: its path without .c or .h."""
    return path[:-2]


def sources(root, folders, outside):
    """Path and text of each source in folders, without comments and strings."""
    paths = (path for folder in folders for path in sorted((root / folder).rglob("*.[ch]")))
    named = ((path.relative_to(root).as_posix(), path) for path in paths)
    return {name: NO_CODE.sub(spaces, path.read_text()) for name, path in named
            if not name.startswith(outside)}


def tags(root, texts):
    """The tags of functions and of their declarations."""
    ignored = {"_Atomic+"}
    for text in texts.values():
        for name, arguments, body in MACRO.findall(text):
            if ATTRIBUTE.match(body):
                ignored.add(name + ("+" if arguments else ""))
    done = subprocess.run(
        ["ctags", "--options=NONE", "--languages=C", "--langmap=C:.c.h", "--kinds-C=fp", "--fields=+neS",
         "--output-format=json", "-f", "-", "-I", ",".join(sorted(ignored)), "-L", "-"],
        cwd=root, input="\n".join(texts), capture_output=True, text=True, check=True)
    found = map(json.loads, done.stdout.splitlines())
    return [tag for tag in found if tag["_type"] == "tag"]


class Graph:
    """Functions, their declarations in headers, and the calls among them."""

    def __init__(self, root, program=CORE):
        folders, outside, self.prefix = PROGRAMS[program]
        self.texts = sources(pathlib.Path(root), folders, outside)
        self.functions, self.declared = [], []
        for tag in tags(root, self.texts) if self.texts else []:
            path, name, line = tag["path"], tag["name"], tag["line"]
            if tag["kind"] == "prototype":
                if path.endswith(".h"):
                    self.declared.append(Declared(path, name, line))
            else:
                last = tag.get("end") or self.closing_brace(path, line)
                is_own = path.endswith(".c") and ("file" in tag or not name.startswith(self.prefix))
                self.functions.append(Function(path, name, line, last, is_own))
        self.defined = collections.defaultdict(list)
        for function in self.functions:
            self.defined[function.name].append(function)
        self.macros = {name: set(WORD.findall(body)) - {name} for text in self.texts.values()
                       for name, _, body in MACRO.findall(text)}
        self.calls = [call for path in self.texts for call in self.calls_of(path)]

    def closing_brace(self, path, line):
        """The first line from `line` on that is a brace alone."""
        lines = self.texts[path].split("\n")
        return next((at for at in range(line, len(lines)) if lines[at - 1] == "}"), line)

    def found(self, word, path):
        """The functions that a word in a file stands for, at most one a file."""
        candidates = self.defined.get(word, [])
        own = [function for function in candidates if function.path == path]
        if own:
            return own[:1]
        if not word.startswith(self.prefix):
            return []
        return list({function.path: function for function in candidates if not function.is_own}.values())

    def targets(self, word, path, seen=()):
        """The functions that a word in a file stands for, as itself or by what a macro of that name says."""
        found = self.found(word, path)
        if not found and word in self.macros and word not in seen:
            for part in self.macros[word]:
                found = found + self.targets(part, path, (*seen, word))
        return found

    def uses(self, path, text, first, caller):
        """The calls in a piece of a file that begins on line `first`, each target once."""
        starts = [0] + [match.end() for match in re.finditer("\n", text)]
        seen = {caller}
        for match in WORD.finditer(text):
            for target in self.targets(match[0], path):
                if target not in seen:
                    seen.add(target)
                    line = first + bisect.bisect_right(starts, match.start()) - 1
                    yield Call(path, line, caller, target)

    def calls_of(self, path):
        """The calls of a file: those of each function, then those of its initialisers."""
        lines = self.texts[path].split("\n")
        rest = list(lines)
        for function in self.functions:
            if function.path == path:
                body = "\n".join(lines[function.first - 1:function.last])
                at = max(body.find("{"), 0)
                yield from self.uses(path, body[at:], function.first + body.count("\n", 0, at), function)
                rest[function.first - 1:function.last] = [""] * (function.last - function.first + 1)
        text = DIRECTIVE.sub(spaces, "\n".join(rest))
        for match in INITIALISER.finditer(text):
            yield from self.uses(path, match[0], 1 + text.count("\n", 0, match.start()), None)

    def modules(self, is_in):
        """Of each module that `is_in` accepts, the others of them that it calls."""
        edges = {module(path): set() for path in self.texts if is_in(path)}
        for call in self.calls:
            caller, target = module(call.path), module(call.target.path)
            if caller != target and caller in edges and target in edges:
                edges[caller].add(target)
        return edges


def circles(edges):
    """The groups of nodes that reach each other, each sorted."""
    reached = {}
    for start in edges:
        reached[start], todo = set(), list(edges[start])
        while todo:
            node = todo.pop()
            if node not in reached[start]:
                reached[start].add(node)
                todo.extend(edges[node])
    groups = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in edges}
    return sorted(group for group in groups if len(group) > 1)


def main():
    """Print the size of both graphs and their circles."""
    for program in PROGRAMS:
        graph = Graph(sys.argv[1], program)
        edges = graph.modules(lambda path, program=program: path.startswith(program))
        print(f"{len(graph.functions)} functions, {len(graph.calls)} calls, {len(edges)} modules in {program}")
        for circle in circles(edges):
            print(len(circle), *(name.removeprefix(program) for name in circle))


if __name__ == "__main__":
    main()
