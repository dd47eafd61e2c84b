# SPDX-License-Identifier: MIT
"""Tests of recorded programs and tapes against PyTorch's allocator: traces.py TOOL SOURCE_ROOT.

Each of the nine programs completes in both modes, also on the smallest device on which it completes with PyTorch.  Programs
with one stream reserve at most as much memory as with PyTorch, and no program makes more driver calls.  A tape of a program
that completes has equal statistics after every step; under memory pressure, no request fails that succeeds with PyTorch.
"""
import functools
import json
import re
import subprocess
import sys
import unittest

from folder_case import ROOT, ToolCase

FOLDER = ROOT / "benchmarks/traces"
ONE_STREAM = ("gpt2_train", "llama_finetune", "llama_serve", "moe_train", "resnet_multiscale", "rl_ppo", "sd_unet")
# Calls of PyTorch that allocate, map, unmap and free device memory, and the names of the driver functions.
CALLS = {"cudaMalloc": "cuMemAlloc", "cudaFree": "cuMemFree", "reserve": "cuMemAddressReserve", "create": "cuMemCreate",
         "map": "cuMemMap", "access": "cuMemSetAccess", "unmap": "cuMemUnmap", "release": "cuMemRelease"}
MODES = {"classic": "expandable_segments:False", "expandable": "expandable_segments:True"}


class TracesTest(ToolCase):
    @functools.lru_cache(maxsize=None)
    def replay(self, name, mode, *options):
        return json.loads(self.tool("replay", "--json", "--config", MODES[mode], *options,
                                    FOLDER / (name + ".xtrace.zst")).stdout)

    def each_program(self):
        reference = json.loads((FOLDER / "reference.json").read_text())
        self.assertEqual(len(reference), 9)
        for name, modes in sorted(reference.items()):
            for mode in MODES:
                with self.subTest(name + " " + mode):
                    yield name, mode, modes[mode]

    def test_peaks_are_at_most_those_of_pytorch(self):
        for name, mode, expected in self.each_program():
            result = self.replay(name, mode)
            self.assertEqual((result["oom_at"], result["events"]), (-1, expected["events"]))
            self.assertEqual(result["peak_requested"], expected["peak_requested"])
            self.assertEqual(result["peak_allocated"], expected["peak_allocated"])
            if name in ONE_STREAM:
                self.assertLessEqual(result["peak_reserved"], expected["peak_reserved"])

    def test_driver_calls_are_at_most_those_of_pytorch(self):
        for name, mode, expected in self.each_program():
            result = self.replay(name, mode)["driver_calls"]
            for reference_name, driver_name in CALLS.items():
                self.assertLessEqual(result.get(driver_name, 0), expected["driver_calls"][reference_name], driver_name)

    def test_automatic_page_size_reserves_as_much_and_costs_less(self):
        for name in ("gpt2_train", "sd_unet"):
            with self.subTest(name):
                fixed = self.replay(name, "expandable")
                result = self.replay(name, "expandable", "--config", "page_size:auto")
                self.assertEqual(result["peak_reserved"], fixed["peak_reserved"])
                self.assertLess(result["driver_us"], 0.85 * fixed["driver_us"])

    def test_programs_complete_on_the_smallest_device_of_pytorch(self):
        for name, mode, expected in self.each_program():
            if name in ONE_STREAM:
                result = self.replay(name, mode, "--device-memory", str(expected["min_device_mib"]) + "MiB")
                self.assertEqual(result["oom_at"], -1)


class TapesTest(ToolCase):
    def replay(self, tape, check, exact_steps=None):
        result = json.loads(self.tool("replay", "--json", "--check=" + check, tape).stdout)
        self.assertEqual(result["mismatches"], 0)
        self.assertGreater(result["checked"], 50)
        if exact_steps is not None:
            self.assertEqual(result["checked"], exact_steps)

    def tapes(self, kind):
        paths = sorted((ROOT / "tests/data/tapes").glob(kind + "-*.tape.zst"))
        self.assertGreater(len(paths), 0)
        for path in paths:
            yield path, subprocess.run(["zstd", "-dcq", path], capture_output=True, text=True, check=True).stdout

    def test_statistics_equal_those_of_pytorch(self):
        for kind, min_count in (("classic", 19), ("expandable", 13)):
            count = 0
            for path, text in self.tapes(kind):
                with self.subTest(path.name):
                    self.replay(path, "exact", text.count("\n= "))
                count += 1
            self.assertGreaterEqual(count, min_count)

    def test_choice_of_blocks_is_independent_of_addresses(self):
        """Of equal cached blocks, the block of the segment that was registered first serves a request.  Each tape with `p` lines
        is replayed with addresses in each order."""
        count = 0
        for path, text in (*self.tapes("classic"), *self.tapes("expandable")):
            if "\np " not in text:
                continue
            count += 1
            device = re.search(r"^d \d+", text, re.MULTILINE)
            operations = text[device.end():].partition("\n")[2]
            for order in ("rising", "falling", "shuffled"):
                with self.subTest(path.name, order=order):
                    self.replay(self.file(f"{text[:device.end()]} {order}\n{operations}"), "exact", text.count("\n= "))
        self.assertGreaterEqual(count, 8)

    def test_no_request_fails_that_succeeds_with_pytorch(self):
        for path, _ in self.tapes("tight"):
            with self.subTest(path.name):
                self.replay(path, "success")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
