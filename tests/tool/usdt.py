# SPDX-License-Identifier: MIT
"""Tests that the USDT probes of the library are those that docs/metrics.md documents.

usdt.py LIBRARY SOURCE_ROOT BUILT_WITH.  A probe is an entry of the section .note.stapsdt, as readelf prints it.  The test
is skipped if the library was built without sys/sdt.h (Debian: systemtap-sdt-dev).
"""
import pathlib
import re
import subprocess
import sys
import unittest

SPANS = ("growth", "fallback", "trim", "decay", "pause", "resume")


def notes(library):
    output = subprocess.run(["readelf", "--wide", "--notes", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: \S+ Base: \S+ Semaphore: \S+\s+Arguments: (.*)", output)


class Probes(unittest.TestCase):
    def test_each_span_has_a_probe_at_its_begin_and_its_end(self):
        probes = notes(LIBRARY)
        self.assertEqual({provider for provider, _, _ in probes}, {"xseg"})
        self.assertEqual({name for _, name, _ in probes}, {f"{span}_{end}" for span in SPANS for end in ("begin", "end")})

    def test_arguments_have_the_sizes_that_are_documented(self):
        for _, name, arguments in notes(LIBRARY):
            with self.subTest(name=name):
                sizes = [argument.split("@")[0] for argument in arguments.split()]
                self.assertEqual(sizes, ["-4", "8"] if name.endswith("_begin") else ["-4", "-4"])

    def test_documentation_lists_all_spans(self):
        page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"^\| `(\w+)` \|.*\|$", page.split("## Probes")[1], re.M)), set(SPANS))


if __name__ == "__main__":
    LIBRARY, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    if sys.argv[3] != "with":
        print("built without sys/sdt.h; run .ci/setup systemtap-sdt-dev")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
