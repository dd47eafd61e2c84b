# SPDX-License-Identifier: MIT
"""The nine recorded programs, in both modes, against PyTorch's own figures: traces.py TOOL SOURCE_ROOT.

Each must run to its end, also on the smallest device on which it does with PyTorch; the programs
of one stream may not reserve more than there, and none may call the driver more often.
"""
import functools
import json
import pathlib
import subprocess
import sys
import unittest

ONE_STREAM = ("gpt2_train", "llama_finetune", "llama_serve", "moe_train", "resnet_multiscale",
              "rl_ppo", "sd_unet")
# PyTorch's calls that make, map, unmap and free device memory, and the driver's names for them.
CALLS = {"cudaMalloc": "cuMemAlloc", "cudaFree": "cuMemFree", "reserve": "cuMemAddressReserve",
         "create": "cuMemCreate", "map": "cuMemMap", "access": "cuMemSetAccess",
         "unmap": "cuMemUnmap", "release": "cuMemRelease"}
MODES = {"classic": "expandable_segments:False", "expandable": "expandable_segments:True"}


class TracesTest(unittest.TestCase):
    @functools.lru_cache(maxsize=None)
    def replay(self, name, mode, *options):
        """Replay one program, and give its figures."""
        done = subprocess.run(
            [TOOL, "replay", "--json", "--config", MODES[mode], *options,
             FOLDER / (name + ".xtrace.zst")],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def each(self):
        """Every program in every mode, with PyTorch's figures."""
        reference = json.loads((FOLDER / "reference.json").read_text())
        self.assertEqual(len(reference), 9)
        for name, modes in sorted(reference.items()):
            for mode in MODES:
                with self.subTest(name + " " + mode):
                    yield name, mode, modes[mode]

    def test_peaks(self):
        for name, mode, expected in self.each():
            got = self.replay(name, mode)
            self.assertEqual(got["oom_at"], -1)
            self.assertEqual(got["events"], expected["events"])
            self.assertEqual(got["peak_requested"], expected["peak_requested"])
            self.assertEqual(got["peak_allocated"], expected["peak_allocated"])
            if name in ONE_STREAM:
                self.assertLessEqual(got["peak_reserved"], expected["peak_reserved"])

    def test_driver_calls(self):
        for name, mode, expected in self.each():
            got = self.replay(name, mode)["driver_calls"]
            for theirs, ours in CALLS.items():
                self.assertLessEqual(got.get(ours, 0), expected["driver_calls"][theirs], ours)

    def test_automatic_pages_reserve_no_more_and_cost_less(self):
        for name in ("gpt2_train", "sd_unet"):
            with self.subTest(name):
                fixed = self.replay(name, "expandable")
                got = self.replay(name, "expandable", "--config", "page_size:auto")
                self.assertEqual(got["peak_reserved"], fixed["peak_reserved"])
                self.assertLess(got["driver_us"], 0.85 * fixed["driver_us"])

    def test_smallest_device(self):
        for name, mode, expected in self.each():
            if name in ONE_STREAM:
                got = self.replay(name, mode, "--device-memory",
                                  str(expected["min_device_mib"]) + "MiB")
                self.assertEqual(got["oom_at"], -1)


if __name__ == "__main__":
    TOOL, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2]) / "benchmarks/traces"
    del sys.argv[1:]
    unittest.main()
