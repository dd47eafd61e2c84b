# SPDX-License-Identifier: MIT
"""Metrics, read by the parser of the Python package prometheus-client.

Skipped without the package (Debian: python3-prometheus-client).
"""
import math
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import cases
import machine
import xseg
from cases import MIB

SYSTEM = "/usr/bin/python3"  # Debian's packages are this one's
try:
    from prometheus_client import parser
except ImportError:
    if os.path.exists(SYSTEM) and os.path.realpath(SYSTEM) != os.path.realpath(sys.executable):
        os.execv(SYSTEM, [SYSTEM, *sys.argv])
    cases.skip_all("the Python package prometheus-client is not installed; run .ci/setup python3-prometheus-client")

PAGE = (cases.ROOT / "docs/metrics.md").read_text(encoding="utf-8")
# The documented metrics: name, type and labels.
LISTED = [(name, kind, labels.split(", "))
          for labels, group in re.findall(r"^### Labels: (.*)\n((?:(?!##).*\n)*)", PAGE, re.MULTILINE)
          for name, kind in re.findall(r"^- \*\*`(xseg_\w+)`\*\* \((gauge|counter)\)", group, re.MULTILINE)]
ALL = {name.removesuffix("_total"): kind for name, kind, _ in LISTED}  # a family has no _total
BUDGET = {name: kind for name, kind in ALL.items() if name.startswith("xseg_budget_")}  # only with budget_file
TYPES = {name: kind for name, kind in ALL.items() if name not in BUDGET}
NAMES = ("kv cache", 'a "b" \\c\\', "one\nline", "} 7\n# EOF\n", "x" * 63, "caf\u00e9", "a,b={}", "")


def families(text):
    found = {}
    for family in parser.text_string_to_metric_families(text):
        if family.name in found:
            raise AssertionError(f"{family.name} comes twice")
        found[family.name] = family
    return found


def values(family):
    return {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}


def unescaped(name):
    """A name as it comes out: control characters but the newline are question marks."""
    return "".join("?" if ord(one) < 32 and one != "\n" else one for one in name)


class Pages(unittest.TestCase):
    def setUp(self):
        machine.reset()
        self.allocator = xseg.open("expandable_segments:True,page_cache_mb:64,idle_ms:1000", log=lambda level, line: None)
        self.addCleanup(self.allocator.close)
        self.pools = [self.allocator.pool(name=name, limit_bytes=(at + 1) << 30) for at, name in enumerate(NAMES)]
        self.blocks = [pool.allocate((at + 1) * MIB) for at, pool in enumerate(self.pools)]
        self.blocks += [self.allocator.allocate(3 * MIB), self.allocator.allocate(1000)]
        self.allocator.set_limits(hard_bytes=1 << 30)
        self.assertRaises(xseg.LimitError, self.allocator.allocate, 1 << 30)
        self.allocator.explain()

    def tearDown(self):
        for block in self.blocks:
            block.free()
        self.blocks, self.pools = [], []

    def test_the_parser_reads_every_type(self):
        found = families(self.allocator.metrics())
        self.assertEqual({name: family.type for name, family in found.items()}, TYPES)
        for name, family in found.items():
            self.assertGreater(len(family.documentation), 10, name)
            self.assertGreater(len(family.samples), 0, name)
            for sample in family.samples:
                self.assertEqual(sample.name, name + "_total" * (TYPES[name] == "counter"))
                self.assertTrue(math.isfinite(sample.value) and sample.value >= 0, sample)

    def test_names_come_out_as_they_were(self):
        live = values(families(self.allocator.metrics())["xseg_allocated_bytes"])
        for at, name in enumerate(NAMES):
            labels = (("device", "0"), ("name", unescaped(name)), ("pool", str(at + 1)))
            self.assertEqual(live.get(labels), (at + 1) * MIB, f"{name!r} of {sorted(live)}")

    def test_values_equal_those_of_the_other_reports(self):
        found = families(self.allocator.metrics())
        stats = self.allocator.statistics()
        self.assertEqual(sum(values(found["xseg_allocated_bytes"]).values()), stats.allocated_bytes.all.current)
        self.assertEqual(sum(values(found["xseg_reserved_bytes"]).values()), stats.reserved_bytes.all.current)
        self.assertEqual(sum(values(found["xseg_out_of_memory"]).values()), stats.num_ooms)
        self.assertEqual(stats.num_ooms, 1)
        stranded, = values(found["xseg_fragmented_bytes"]).values()
        in_use = [one for one in self.allocator.explain().reasons if one.kind.name == "ALLOCATED" and not one.pool]
        self.assertEqual(stranded, sum(one.cached_bytes for one in in_use))
        self.assertGreater(stranded, 0)

    def test_the_document_lists_each_metric_with_its_type_and_labels(self):
        listed = {name: (kind, labels) for name, kind, labels in LISTED if name.removesuffix("_total") in TYPES}
        told = {sample.name: (family.type, list(sample.labels)) for family in families(self.allocator.metrics()).values()
                for sample in family.samples}
        self.assertEqual(listed, told)

    def test_the_documented_server_answers(self):
        program = re.search(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]
        with socket.create_server(("", 0)) as other:
            port = other.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", program.replace("9400", str(port))], stderr=subprocess.DEVNULL) as server:
            self.addCleanup(server.kill)
            end = time.monotonic() + 60
            while True:
                try:
                    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
                        self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                        self.assertIn("xseg_driver_calls", families(answer.read().decode()))
                        break
                except OSError:
                    self.assertLess(time.monotonic(), end, "the server does not answer")
                    time.sleep(0.05)
            server.kill()

    def test_a_budget_adds_its_own(self):
        with tempfile.TemporaryDirectory() as folder, xseg.open(f"budget_file:{folder}/ledger") as allocator:
            allocator.allocate(3 * MIB).free()
            end = time.monotonic() + 20
            while "xseg_budget_other_members" not in allocator.metrics() and time.monotonic() < end:
                time.sleep(0.01)
            found = families(allocator.metrics())
            self.assertEqual({name: family.type for name, family in found.items() if name not in TYPES}, BUDGET)
            for name in BUDGET:
                self.assertEqual([list(sample.labels) for sample in found[name].samples], [["device"]], name)
            self.assertEqual(list(values(found["xseg_budget_other_members"]).values()), [0])

    def test_a_page_may_be_larger_than_the_first_guess(self):
        pools = [self.allocator.pool(name="y" * 63) for _ in range(200)]
        blocks = [pool.allocate(512) for pool in pools]
        found = families(self.allocator.metrics())
        self.assertEqual(sum(values(found["xseg_allocated_bytes"]).values()),
                         self.allocator.statistics().allocated_bytes.all.current)
        self.assertLess(len(found["xseg_allocated_bytes"].samples), 135)
        for block in blocks:
            block.free()

    def test_the_file_is_text_0_0_4(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "xseg.prom"
            self.allocator.write_metrics(path)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [path])
            self.assertEqual(set(families(path.read_text(encoding="utf-8"))), set(TYPES))
            with self.assertRaises(xseg.FileError) as refused:
                self.allocator.write_metrics(pathlib.Path(folder) / "none" / "xseg.prom")
            self.assertIn("No such file", str(refused.exception))


if __name__ == "__main__":
    cases.main()
