# SPDX-License-Identifier: MIT
"""Tests of metrics with the parser of the Python package prometheus-client.

The test is skipped without the package (Debian: python3-prometheus-client).
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
import simulation
import xseg
from cases import MIB

SYSTEM_PYTHON = "/usr/bin/python3"  # has Debian's packages
try:
    from prometheus_client import parser
except ImportError:
    if os.path.exists(SYSTEM_PYTHON) and os.path.realpath(SYSTEM_PYTHON) != os.path.realpath(sys.executable):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    cases.skip_all("the Python package prometheus-client is not installed; run .ci/setup python3-prometheus-client")

PAGE = (cases.ROOT / "docs/metrics.md").read_text(encoding="utf-8")
# The documented metrics: name, type and labels.
DOCUMENTED = [(name, kind, labels.split(", "))
              for labels, group in re.findall(r"^### Labels: (.*)\n((?:(?!##).*\n)*)", PAGE, re.MULTILINE)
              for name, kind in re.findall(r"^- \*\*`(xseg_\w+)`\*\* \((gauge|counter)\)", group, re.MULTILINE)]
ALL_TYPES = {name.removesuffix("_total"): kind for name, kind, _ in DOCUMENTED}  # names of families lack the suffix _total
BUDGET_TYPES = {name: kind for name, kind in ALL_TYPES.items() if name.startswith("xseg_budget_")}  # only with budget_file
TYPES = {name: kind for name, kind in ALL_TYPES.items() if name not in BUDGET_TYPES}
NAMES = ("kv cache", 'a "b" \\c\\', "one\nline", "} 7\n# EOF\n", "x" * 63, "caf\u00e9", "a,b={}", "")


def parse_families(text):
    families = {}
    for family in parser.text_string_to_metric_families(text):
        if family.name in families:
            raise AssertionError(f"{family.name} occurs twice")
        families[family.name] = family
    return families


def values(family):
    return {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}


def exported_name(name):
    """Returns the exported form of a name: control characters except newlines are replaced with question marks."""
    return "".join("?" if ord(character) < 32 and character != "\n" else character for character in name)


class MetricsTest(unittest.TestCase):
    def setUp(self):
        simulation.reset()
        self.allocator = xseg.open("expandable_segments:True,page_cache_mb:64,idle_ms:1000", log=lambda level, line: None)
        self.addCleanup(self.allocator.close)
        self.pools = [self.allocator.pool(name=name, limit_bytes=(index + 1) << 30) for index, name in enumerate(NAMES)]
        self.blocks = [pool.allocate((index + 1) * MIB) for index, pool in enumerate(self.pools)]
        self.blocks += [self.allocator.allocate(3 * MIB), self.allocator.allocate(1000)]
        self.allocator.set_limits(hard_bytes=1 << 30)
        self.assertRaises(xseg.LimitError, self.allocator.allocate, 1 << 30)
        self.allocator.explain()

    def tearDown(self):
        for block in self.blocks:
            block.free()
        self.blocks, self.pools = [], []

    def test_parser_reads_every_metric(self):
        metrics = parse_families(self.allocator.metrics())
        self.assertEqual({name: family.type for name, family in metrics.items()}, TYPES)
        for name, family in metrics.items():
            self.assertGreater(len(family.documentation), 10, name)
            self.assertGreater(len(family.samples), 0, name)
            for sample in family.samples:
                self.assertEqual(sample.name, name + "_total" * (TYPES[name] == "counter"))
                self.assertTrue(math.isfinite(sample.value) and sample.value >= 0, sample)

    def test_names_of_pools_are_exported(self):
        samples = values(parse_families(self.allocator.metrics())["xseg_allocated_bytes"])
        for index, name in enumerate(NAMES):
            labels = (("device", "0"), ("name", exported_name(name)), ("pool", str(index + 1)))
            self.assertEqual(samples.get(labels), (index + 1) * MIB, f"{name!r} of {sorted(samples)}")

    def test_values_equal_those_of_other_reports(self):
        metrics, stats = parse_families(self.allocator.metrics()), self.allocator.statistics()
        self.assertEqual(sum(values(metrics["xseg_allocated_bytes"]).values()), stats.allocated_bytes.all.current)
        self.assertEqual(sum(values(metrics["xseg_reserved_bytes"]).values()), stats.reserved_bytes.all.current)
        self.assertEqual(sum(values(metrics["xseg_out_of_memory"]).values()), stats.num_ooms)
        self.assertEqual(stats.num_ooms, 1)
        fragmented, = values(metrics["xseg_fragmented_bytes"]).values()
        in_use = [reason for reason in self.allocator.explain().reasons if reason.kind.name == "ALLOCATED" and not reason.pool]
        self.assertEqual(fragmented, sum(reason.cached_bytes for reason in in_use))
        self.assertGreater(fragmented, 0)

    def test_documentation_lists_each_metric_with_its_type_and_labels(self):
        documented = {name: (kind, labels) for name, kind, labels in DOCUMENTED if name.removesuffix("_total") in TYPES}
        exported = {sample.name: (family.type, list(sample.labels))
                    for family in parse_families(self.allocator.metrics()).values()
                    for sample in family.samples}
        self.assertEqual(documented, exported)

    def test_server_of_the_documentation_responds(self):
        program = re.search(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]
        with socket.create_server(("", 0)) as probe_socket:
            port = probe_socket.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", program.replace("9400", str(port))], stderr=subprocess.DEVNULL) as server:
            self.addCleanup(server.kill)
            deadline = time.monotonic() + 60
            while True:
                try:
                    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as response:
                        self.assertEqual(response.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                        self.assertIn("xseg_driver_calls", parse_families(response.read().decode()))
                        break
                except OSError:
                    self.assertLess(time.monotonic(), deadline, "the server does not respond")
                    time.sleep(0.05)
            server.kill()

    def test_budget_file_adds_metrics(self):
        with tempfile.TemporaryDirectory() as folder, xseg.open(f"budget_file:{folder}/budget") as allocator:
            allocator.allocate(3 * MIB).free()
            deadline = time.monotonic() + 20
            while "xseg_budget_other_members" not in allocator.metrics() and time.monotonic() < deadline:
                time.sleep(0.01)
            metrics = parse_families(allocator.metrics())
            self.assertEqual({name: family.type for name, family in metrics.items() if name not in TYPES}, BUDGET_TYPES)
            for name in BUDGET_TYPES:
                self.assertEqual([list(sample.labels) for sample in metrics[name].samples], [["device"]], name)
            self.assertEqual(list(values(metrics["xseg_budget_other_members"]).values()), [0])

    def test_text_may_exceed_the_initial_buffer(self):
        pools = [self.allocator.pool(name="y" * 63) for _ in range(200)]
        blocks = [pool.allocate(512) for pool in pools]
        metrics = parse_families(self.allocator.metrics())
        self.assertEqual(sum(values(metrics["xseg_allocated_bytes"]).values()),
                         self.allocator.statistics().allocated_bytes.all.current)
        self.assertLess(len(metrics["xseg_allocated_bytes"].samples), 135)
        for block in blocks:
            block.free()

    def test_metrics_are_written_to_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "xseg.prom"
            self.allocator.write_metrics(path)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [path])
            self.assertEqual(set(parse_families(path.read_text(encoding="utf-8"))), set(TYPES))
            with self.assertRaises(xseg.FileError) as raised:
                self.allocator.write_metrics(pathlib.Path(folder) / "none" / "xseg.prom")
            self.assertIn("No such file", str(raised.exception))


if __name__ == "__main__":
    cases.main()
