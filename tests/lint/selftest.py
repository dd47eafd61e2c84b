# SPDX-License-Identifier: MIT
"""The lint tests themselves: each finds what it is there to find, in a small tree made for it."""
import pathlib
import sys
import tempfile

import calls
import declarations
import differences
import environment
import facts
import floors
import links
import listed
import map as task_map
import methods
import names
import outlets
import pairs
import sizes
import symbols
import version
import words

CTAGS = calls.has_ctags()


def rooms(**known):
    """The check of the rooms, where these circles of rooms of src/core are known."""
    return lambda root: floors.check(root, {"src/core/" + room: circles for room, circles in known.items()})


def calling(name, other=None):
    """Header and source of a module of the core with one function, which calls that of another one."""
    call = f"xseg_{other}();" if other else ""
    stem = name.rsplit("/", 1)[1]
    return {f"src/core/{name}.h": f"void xseg_{stem}(void);\n",
            f"src/core/{name}.c": f"void xseg_{stem}(void)\n{{\n{call}\n}}\n"}


def ring(room, *names):
    """Modules of a room that call each other in a circle."""
    files = {}
    for name, other in zip(names, names[1:] + names[:1]):
        files.update(calling(f"{room}/{name}", other))
    return files


VERSION = '#define XSEG_VERSION_{} {}\n'
# Name of the case, check, files of the tree, and a part of each complaint.  The first few need universal-ctags.
CALLS = [
    ("call of a room above", rooms(), {**calling("stats/a", "b"), **calling("grow/b")},
     ["src/core/stats/a.c:3: room stats may not call xseg_b() of room grow, above it"]),
    ("call of a room below", rooms(), {**calling("grow/a", "b"), **calling("stats/b")}, []),
    ("call of an entry point", rooms(),
     {**calling("stats/a", "trim"), "src/trim.c": "int xseg_trim(int a)\n{\n    return a;\n}\n"},
     ["src/core/stats/a.c:3: room stats may not call xseg_trim() of the entry points, above it"]),
    ("call of large arenas by small ones", rooms(), {**calling("small/a", "b"), **calling("large/b")},
     ["src/core/small/a.c:3: room small may not call xseg_b() of room large, above it"]),
    ("call of a room above by an inline function", rooms(),
     {"src/core/stats/a.h": "static inline int xseg_a(void)\n{\n    return xseg_b(1);\n}\n",
      "src/core/grow/b.h": "static inline int xseg_b(int c)\n{\n    return c;\n}\n"},
     ["src/core/stats/a.h:3: room stats may not call xseg_b() of room grow, above it"]),
    ("pointer in a table to a function of a room above", rooms(),
     {**calling("grow/b"), "src/core/stats/a.h": "",
      "src/core/stats/a.c": "static void (*const steps[])(void) = {\n    xseg_b,\n};\n"},
     ["src/core/stats/a.c:2: room stats may not call xseg_b()"]),
    ("call of a room above by way of a macro", rooms(),
     {**calling("grow/b"), "src/core/stats/a.h": "#define A() \\\n    xseg_b()\nvoid xseg_a(void);\n",
      "src/core/stats/a.c": "void xseg_a(void)\n{\n    A();\n}\n"},
     ["src/core/stats/a.c:3: room stats may not call xseg_b()"]),
    ("what looks like a call of a room above", rooms(),
     {**calling("grow/b"), "src/core/stats/a.h": "void xseg_a(struct xseg_b *c);\n",
      "src/core/stats/a.c": "void xseg_a(struct xseg_b *c)\n{\n    const struct xseg_b b = *c;\n\n"
                            "    c->xseg_b(); /* xseg_b() */\n    say('\"', \"xseg_b()\", '\"', b);\n}\n",
      "src/core/grow/c.h": "static inline int b(void)\n{\n    return 1;\n}\n"}, []),
    ("header of two sources", rooms(),
     {**calling("grow/a"), "src/core/grow/a.h": "void xseg_a(void);\nvoid xseg_b(void);\n",
      "src/core/grow/b.h": "", "src/core/grow/b.c": "void xseg_b(void)\n{\n}\n"},
     ["src/core/grow/a.h:2: declares xseg_b(), which src/core/grow/b.c defines"]),
    ("source without a header", rooms(), {"src/core/grow/a.c": "int a;\n"},
     ["src/core/grow/a.c: has no header src/core/grow/a.h"]),
    ("header without a source", rooms(),
     {**calling("grow/a"), "src/core/grow/a.h": "", "src/core/grow/b.h": "void xseg_a(void);\n",
      "src/core/grow/c.h": "static inline void xseg_c(void)\n{\n}\n"},
     ["src/core/grow/b.h:1: declares xseg_a(), which src/core/grow/a.c defines"]),
    ("circle in no table", rooms(), ring("grow", "a", "b"),
     ["src/core/grow: a circle that CIRCLES does not name: a b"]),
    ("circle in the table", rooms(grow=["a small/b"]),
     {**calling("grow/a", "b"), **calling("grow/small/b", "a")}, []),
    ("circle of six", rooms(grow=["a b c d e f"]), ring("grow", *"abcdef"),
     ["src/core/grow: a circle of 6 modules, more than 5: a b c d e f"]),
    ("circle of five", rooms(grow=["a b c d e"]), ring("grow", *"abcde"), []),
    ("call of a room of the tool above", rooms(),
     {"src/tools/text/a.h": "static inline void a_do(void)\n{\n    b_do();\n}\n",
      "src/tools/files/b.h": "static inline void b_do(void)\n{\n}\n"},
     ["src/tools/text/a.h:3: room text may not call b_do() of room files, above it"]),
    ("call of another command's room, and of one below", rooms(),
     {"src/tools/blame/a.h": "static inline void a_do(void)\n{\n    b_do();\n    c_do();\n}\n",
      "src/tools/view/b.h": "static inline void b_do(void)\n{\n}\n",
      "src/tools/files/c.h": "static inline void c_do(void)\n{\n}\n"},
     ["src/tools/blame/a.h:3: room blame may not call b_do() of room view, beside it"]),
    ("circle that is gone", rooms(grow=["a b"]), {**calling("grow/a", "b"), **calling("grow/b")},
     ["src/core/grow: CIRCLES names a circle that is not there: a b"]),
]
CASES = [
    ("upward include", rooms(), {"src/base/a.c": '#include "vmm/segment.h"\n'},
     ["src/base/a.c:1: src/base may not include vmm/segment.h"]),
    ("downward include", rooms(), {"vmm/a.c": '#include "src/base/a.h"\n'}, []),
    ("sideways include", rooms(), {"src/tools/text/a.h": '#include "src/core/a.h"\n'},
     ["src/tools may not include"]),
    ("a door opens the core", rooms(), {"src/a.c": '#include "src/core/a.h"\n'}, []),
    ("include from the folder", rooms(), {"src/core/grow/a.h": '#include "a.h"\n'},
     ["not written from the root"]),
    ("stray cuda.h", rooms(), {"src/core/grow/a.h": "#  include <cuda.h>\n"},
     ["may not see cuda.h"]),
    ("cuda.h in the driver", rooms(), {"vmm/driver.c": "#include <cuda.h>\n"}, []),
    ("public header beyond libc", rooms(), {"include/xseg/a.h": "#include <pthread.h>\n"},
     ["may not include <pthread.h>"]),
    ("file in no room", rooms(),
     {"src/core/a.h": "\n", "src/core/attic/b.h": "\n", "src/core/meson.build": "\n", "src/core/grow/c.h": "\n"},
     ["src/core/a.h: stands in no room", "src/core/attic/b.h: stands in no room"]),
    ("include of a room above", rooms(),
     {"src/core/stats/a.h": '\n#include "src/core/grow/b.h"\n', "src/core/grow/b.h": "\n"},
     ["src/core/stats/a.h:2: room stats may not include src/core/grow/b.h of room grow, above it"]),
    ("include of a room below, and of the room", rooms(),
     {"src/core/cache/a.h": '#include "src/core/stats/b.h"\n#include "src/core/cache/c.h"\n'}, []),
    ("include of another command's room, and of one below", rooms(),
     {"src/tools/blame/a.h": '#include "src/tools/view/b.h"\n#include "src/tools/text/c.h"\n', "src/tools/view/b.h": "\n",
      "src/tools/text/c.h": "\n", "src/tools/d.h": "\n"},
     ["src/tools/blame/a.h:1: room blame may not include src/tools/view/b.h of room view, beside it",
      "src/tools/d.h: stands in no room"]),
    ("include of an adapter", rooms(),
     {"src/adapters/torch/a.cpp": '#include "src/base/a.h"\n#include "xseg/xseg.h"\n#include "b.h"\n#include <c10/d.h>\n',
      "src/adapters/torch/b.h": '#include "src/adapters/preload/c.h"\n#include <cuda.h>\n'},
     ["src/adapters/torch/a.cpp:1: src/adapters/torch may not include src/base/a.h",
      "src/adapters/torch/b.h:1: src/adapters/torch may not include src/adapters/preload/c.h",
      "src/adapters/torch/b.h:2: may not see cuda.h"]),
    ("include of an adapter from below", rooms(), {"src/tools/text/a.h": '#include "src/adapters/preload/c.h"\n'},
     ["src/tools/text/a.h:1: src/tools may not include src/adapters/preload/c.h"]),
    ("import of an adapter", rooms(),
     {"src/adapters/python/xseg/a.py": "import os, numpy.random\nfrom xseg import b\nfrom . import c\nimport torch\n",
      "src/adapters/python/xseg/torch/d.py": "import torch.cuda\nimport cupy\n"},
     ["src/adapters/python/xseg/a.py:1: may not import numpy", "src/adapters/python/xseg/a.py:4: may not import torch",
      "src/adapters/python/xseg/torch/d.py:2: may not import cupy"]),
    ("headers that Python does not know", declarations.check,
     {"include/xseg/other.h": "\n", "include/xseg/status.h": "/* a */\n#define XSEG_A 1\n",
      "src/adapters/python/xseg/_structs.py": "XSEG_A = 2\n"},
     ["include/xseg/other.h: HEADERS of", "xseg/_structs.py is not what the headers say",
      "xseg/_functions.py is not what the headers say",
      "src/xseg.map is not what the headers say"]),
    ("link to nothing", links.check, {"docs/a.md": "[a](b.md) [w](https://x.y) [s](#s)\n"},
     ["docs/a.md:1: b.md leads nowhere"]),
    ("link to something", links.check, {"docs/a.md": "[a](../b.md#part)\n", "b.md": "\n"}, []),
    ("name of nothing", names.check,
     {"docs/a.md": "`xseg_a`, xseg_b(), `is_c()`, `d_e`, `XSEG_F`, `XSEG_*`, `pidfd_getfd`\n",
      "src/a.c": "int xseg_a(int d_e);\n"},
     ["docs/a.md:1: nothing is called XSEG_F", "called is_c", "called xseg_b"]),
    ("map that is out of date", task_map.check,
     {task_map.DOCUMENT: "[b](src/core/stats/README.md)\n## Map\n\n| task | files | to know |\n|---|---|---|\n"
                         "| a | `a.c`, `b.c` | `c()` |\n| d | e | `f.c` |\n| g | `src` | |\n\n## H\n| i | `j` |\n",
      "a.c": "\n", "src/core/stats/README.md": "\n", "src/core/grow/README.md": "\n"},
     ["floors.md:6: b.c does not exist", "floors.md:7: names no file for: d", "floors.md:8: src does not exist",
      "the table of rooms of src/core/ is not: stats grow"]),
    ("map that is not there", task_map.check, {task_map.DOCUMENT: "## Maps\n"}, ["has no map"]),
    ("room with a page that is out of date", task_map.check,
     {task_map.DOCUMENT: "src/core/stats/README.md src/core/grow/README.md\n## Map\n|||\n|||\n| a | `b.c` |\n",
      "b.c": "\n", "src/core/stats/README.md": "`c.h`\n| `a.h`, `b.c` | `d.h` |\n", "src/core/stats/a.h": "\n",
      "src/core/stats/small/c.h": "\n", "src/core/grow/d.c": "\n"},
     ["src/core/stats/README.md: does not list c.h", "src/core/stats/README.md: lists b.c, which is not there",
      "src/core/grow/README.md: does not exist"]),
    ("test in no table", listed.check,
     {"tests/meson.build": "# 'a'\n'b' 'b/d.c'\n", "tests/fuzz/meson.build": "\n",
      "tests/unit/a.c": "\n", "tests/unit/b.c": "\n", "tests/unit/b/b.c": "\n", "tests/unit/b/d.c": "\n"},
     ["tests/unit/a.c: no table", "tests/unit/b/b.c: no table"]),
    ("sentences beside complain.c", outlets.check,
     {"src/tools/a.c": 'fprintf(\n    stderr, "a");\nfputs("b",\n stderr);\nputc(c, stderr);\nperror(d);\n'
                       "replays->out = stderr;\nhelp_print(stderr, e);\ndprintf(STDERR_FILENO, f);\n",
      "src/tools/text/complain.c": 'fputs("a", stderr);\n', "src/b.c": "perror(a);\n"},
     ["src/tools/a.c:1: ", "src/tools/a.c:3: ", "src/tools/a.c:5: ", "src/tools/a.c:6: ",
      "src/tools/a.c:9: "]),
    ("facts in one place only", facts.check,
     {facts.TESTS + "/a.c": 'FACT("FACT-A-1", a), FACT("FACT-A-2", b)', facts.TESTS + "/b.c": 'FACT("FACT-A-2", c)',
      facts.TABLE: "| FACT-A-2 | b |\n| FACT-B-1 | d |\n"},
     ["FACT-A-1 is not in docs", "FACT-B-1 is not in tests", "FACT-A-2 is given twice"]),
    ("variable in no table", environment.check,
     {environment.TABLE: '#define E(X) X("A", "library", "b") \\\n    X("C", "tests", \\\n      "d")\n',
      environment.DOCUMENT: environment.BEGIN + environment.table_of([("A", "library", "b")])
                            + environment.END,
      "src/a.c": 'secure_getenv("XSEG_A");\nsecure_getenv("XSEG_B"); f("XSEG_F");\ngetenv("C");\n',
      "src/core/front/opened.c": 'getenv("XSEG_A");\n', "tests/b.c": 'getenv("XSEG_A");\n',
      "tests/a.py": 'x = os.environ["XSEG_G"]\n', "tests/run": 'x=${XSEG_H:-}\n',
      "docs/a.md": "XSEG_I=1 program\n"},
     ["docs/a.md:1: XSEG_I is not", "src/a.c:3: getenv(), where", "src/a.c:2: XSEG_B is not",
      "tests/a.py:1: XSEG_G is not",
      "tests/run:1: XSEG_H is not", "nothing reads XSEG_C", "does not have the table"]),
    ("pairs that the document and the test see differently", pairs.check,
     {pairs.TABLE: "| a | `x` |\n| b | `y` |\n| c | `z` |\n| a | b | yes | e |\n| a | c | no | f |\n"
                   "| a | d | no | g |\n",
      pairs.TEST: "    PAIR(a, b, no),\n    PAIR(a, d, no),\n    PAIR(b, b, yes),\n"
                  "    PAIR(b, b, yes),\n"},
     ["nothing about b and c", "a and d: no pair", "no case for a and c", "b and b are not in",
      "a and b: no, but yes in", "tests/api/pool_pairs.c: a pair is given twice"]),
    ("difference without a test", differences.check,
     {differences.TABLE: "| a | b |\n|---|---|\n| c | `api/a` x_y (z), `tool/b` |\n"
                         "| d | `api/a` x |\n| e | `api/c` x, `tool/b` g |\n| f | none |\n",
      "tests/api/a.c": "cmocka_unit_test_setup(x_y, f),\n", "tests/tool/b.py": "def f():\n"},
     ["a has no case x", "no test api/c", "b has no case g", ":6: names no test"]),
    ("methods without a test", methods.check,
     {methods.TABLE: methods.HEAD + "\n|---|---|---|---|\n| `f`, `g` | 2.6 | | `torch/a`, `torch/b` one two |\n"
                                    "| `h` | 2.6 | | none yet |\n| `i` | | | `torch/c` x, `torch/b` four |\n",
      methods.BUILD: 'COVERED = frozenset("""\n    f g h\n    k\n""".split())\n',
      "tests/torch/a.py": "", "tests/torch/b.py": 'CASES = "d.py"\ndef test_one(self):\n',
      "tests/torch/d.py": "def case_two():\ndef four():\n"},
     [":4: the last cell is not a list of tests", "no test torch/c", "method k has no row", "has no method i"]),
    ("long function", sizes.check, {"src/a.c": "int f(void)\n{\n" + "    ;\n" * 61 + "}\n"},
     ["src/a.c:2: a function of 61 lines"]),
    ("function of 60 lines", sizes.check, {"src/a.c": "int f(void)\n{\n" + "    ;\n" * 60 + "}\n"},
     []),
    ("long file", sizes.check, {"vmm/a.h": "\n" * 601, "src/adapters/a.py": "\n" * 601, "src/b.cpp": "\n" * 600},
     ["src/adapters/a.py: 601 lines", "vmm/a.h: 601 lines"]),
    ("wrong version", version.check,
     {"meson.build": "project('x', 'c',\n  version: '1.2.3',\n)\n",
      "include/xseg/version.h": "".join(map(VERSION.format, ("MAJOR", "MINOR", "PATCH", "TEXT"),
                                            (1, 2, 4, '"1.2.3"'))),
      "src/adapters/python/xseg/_structs.py": 'VERSION = "1.2.2"\n', "docs/changelog.md": "## [Unreleased]\n\n## [1.2.3] - soon\n"},
     ["the number is 1.2.4", "_structs.py: VERSION is 1.2.2"]),
    ("a release", version.check_release,
     {"meson.build": "abi = '2'\nproject('x', 'c',\n  version: '1.2.3',\n)\n",
      "docs/changelog.md": "## [Unreleased]\n\n- new\n\n## [1.2.3] - soon\n",
      "tests/abi/libxseg.abi": "<abi-corpus soname=\"libxseg.so.1\">\n", "tests/abi/release-1.2.2.abi": ""},
     ["1.2.3 has no date", "something under Unreleased", "is not libxseg.abi", "is not that of libxseg.so.2",
      "libxseg.so.2 in version 1.2.3"]),
    ("absolute path", words.check, {"a.md": "see /" + "root/x\n"}, ["a.md:1: absolute path"]),
    ("relative path", words.check, {"a.sh": '"$here/' + 'root/x" and/or src/' + "work.c\n"}, []),
    ("tab", words.check, {"a.c": "\tint a;\n"}, ["a.c:1: a tab"]),
    ("blank at the end", words.check, {"a.md": "a \n"}, ["a.md:1: a blank"]),
    ("declarations are found", lambda root: sorted(symbols.declared(root, False)),
     {"include/xseg/a.h": "XSEG_API const char *xseg_a(int);\nXSEG_API XSEG_NODISCARD xseg_status\n"
                          "xseg_b(\n    void);\nint xseg_c(void);\n",
      "include/xseg/sim.h": "XSEG_API void xseg_sim_d(void);\n"},
     ["xseg_a", "xseg_b"]),
    ("symbols are compared", lambda root: symbols.differences("l", {"a", "b"}, {"b", "c"}), {},
     ["l: c is missing", "l: a is too much"]),
]


def run(check, files):
    """The complaints of a check about a tree with these files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check(root)


def main():
    """Print TAP; returns the exit status."""
    failed = 0
    print(f"1..{len(CALLS + CASES)}")
    for number, (name, check, files, want) in enumerate(CALLS + CASES, 1):
        if number <= len(CALLS) and not CTAGS:
            print(f"ok {number} - {name} # SKIP {floors.NO_CTAGS}")
            continue
        found = run(check, files)
        is_good = len(found) == len(want) and all(part in text for part, text in zip(want, found))
        failed += not is_good
        print(f"{'ok' if is_good else 'not ok'} {number} - {name}")
        if not is_good:
            print(f"# wanted {want}, found {found}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
