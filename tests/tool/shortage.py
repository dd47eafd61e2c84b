# SPDX-License-Identifier: MIT
"""Tests that docs/measurements.md contains the output of benchmarks/shortage.py: shortage.py TOOL SOURCE_ROOT.

All values are counted or modeled, so they are independent of the build.
"""
import importlib
import json
import subprocess
import sys
import unittest

from folder_case import MIB, ROOT, TOOL, ToolCase

# A block of 4 MiB occupies the first of two pages of 20 MiB, and the last request is allocated after this block.
SHORT_TRACE = ["a 0 16777216 0", "a 1 25165824 0", "f 0", "f 1", "a 2 4194304 0", "a 3 62914560 0"]


def run_shortage(*arguments):
    completed = subprocess.run([sys.executable, ROOT / "benchmarks/shortage.py", TOOL, *arguments],
                               capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise AssertionError(f"shortage.py ended with {completed.returncode}: {completed.stderr}")
    return [line.split() for line in completed.stdout.splitlines()]


def documented_row(name):
    """Returns the row of a trace in the table of smallest devices: trace, target, xseg, PyTorch, page_size:small, ..."""
    text = (ROOT / "docs/measurements.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` | 1."))
    return [word.strip("* ") for word in row.split("|")[1:-1]]


class ShortageTest(ToolCase):
    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(ROOT / "benchmarks"))
        cls.shortage = importlib.import_module("shortage")
        cls.stranded = importlib.import_module("stranded")

    def test_row_of_the_documentation_is_current(self):
        row = documented_row("decode_graphs")
        smallest, driver = (fields for fields in run_shortage("decode_graphs") if fields[:1] == ["decode_graphs"])
        printed = [word.strip("*") for word in smallest]
        self.assertEqual(printed[1:4], [row[2], row[3], row[4]])  # the target, which is PyTorch's value, is not printed
        self.assertEqual(printed[7], row[6])
        self.assertAlmostEqual(float(driver[4].strip("*")), float(row[7]), delta=0.0006)

    def test_model_reserves_as_much_as_pytorch(self):
        reference = json.loads((ROOT / "benchmarks/traces/reference.json").read_text())
        for name in ("decode_graphs", "gpt2_train", "moe_train"):
            with self.subTest(name):
                expected, model = reference[name]["expandable"], self.stranded.Model(80 << 30)
                self.assertEqual(model.play(self.shortage.lines_of(name)), [])
                self.assertEqual(model.events, expected["events"])
                self.assertEqual(model.physical(), expected["peak_reserved"])
                self.assertEqual(sum(model.created.values()), expected["driver_calls"]["create"])
                self.assertEqual(sum(model.released.values()), expected["driver_calls"]["release"])

    def test_model_and_tool_require_equal_device_memory(self):
        model = self.stranded.Model(60 * MIB)
        unserved = model.play(SHORT_TRACE)
        self.assertEqual(unserved, SHORT_TRACE[-1:])
        self.assertEqual(model.stranded(model.large_blocks().values()), {0: list(range(2, 10))})
        self.assertTrue(model.pages.first_use_was_hit[0])
        self.assertEqual([model.reusable_bytes(mib * MIB) // MIB for mib in (10, 4, 2)], [10, 16, 16])
        self.assertEqual(model.min_driver_time(self.shortage.COSTS), 2 * 74 + 2)
        required_bytes = 60 * MIB + model.missing_bytes()
        self.assertEqual((required_bytes, model.min_remaining_peak(unserved)), (64 * MIB, 64 * MIB))
        self.assertEqual([self.runs_out_of_memory(required_bytes - 2 * MIB), self.runs_out_of_memory(required_bytes)],
                         [True, False])

    def runs_out_of_memory(self, device):
        completed = self.tool("replay", "--json", "--config", "expandable_segments:True", "--device-memory", device,
                              self.file("\n".join(["xtrace 1", *SHORT_TRACE, ""])), status=None)
        return json.loads(completed.stdout)["oom_at"] >= 0

    def test_larger_requests_cannot_use_gaps_between_blocks(self):
        model = self.stranded.Model(40 * MIB)
        self.assertEqual(model.play(["a 0 15728640 0", "a 1 10485760 0", "a 2 15728640 0", "f 1"]), [])
        self.assertEqual(model.min_remaining_peak(["a 3 9437184 0", "f 3"]) // MIB, 39)
        self.assertEqual(model.min_remaining_peak(["a 3 11534336 0", "f 0"]) // MIB, 51)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
