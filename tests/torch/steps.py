# SPDX-License-Identifier: MIT
"""memory_stats() on xseg equals that on PyTorch's allocator, field by field, after each of many random steps.

Snapshots and histories are also compared (see normalized_snapshots.py).

steps.py DRIVER; XSEG_TEST_STEPS in the environment is the number of steps, XSEG_TEST_SEED the seed, and XSEG_TEST_EVERY the
number of steps between two snapshots.
"""
import itertools
import json
import os
import sys
import unittest

import backends

DRIVER = sys.argv[1]
STEPS = os.environ.get("XSEG_TEST_STEPS", "1000")
SEED = os.environ.get("XSEG_TEST_SEED", "1")
EVERY = os.environ.get("XSEG_TEST_EVERY", "20")
PARTS = ("segments", "events", "annotations", "settings")


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("[")]


@unittest.skipUnless("xseg" in backends.BACKENDS, "the adapter is not in this tree")
class Steps(unittest.TestCase):
    def compare_snapshots(self, step, native, xseg):
        self.assertEqual(len(native), len(PARTS))
        for part, *values in zip(PARTS, native, xseg):
            self.assertEqual(*values, f"{part} on PyTorch's allocator and on xseg, after step {step} of seed {SEED}")

    def compare(self, kinds, is_expandable):
        outputs = backends.on_each(DRIVER, backends.HERE / "random_steps.py", SEED, STEPS, kinds, EVERY,
                                   PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{is_expandable}")
        all_native, all_xseg = map(lines, outputs.values())
        self.assertEqual(len(all_native), int(STEPS))
        for step, (native, xseg) in enumerate(itertools.zip_longest(all_native, all_xseg)):
            differing = {key: (native[1].get(key), xseg[1].get(key)) for key in {**native[1], **xseg[1]}
                         if native[1].get(key) != xseg[1].get(key)}
            self.assertEqual({}, differing, f"after step {step}, {native[0]}, of seed {SEED}: value of PyTorch, value of xseg")
            self.assertEqual(native[2] is None, (step + 1) % int(EVERY) != 0)
            if native[2] is not None:
                self.compare_snapshots(step, native[2], xseg[2])

    def test_classic(self):
        self.compare("srgpen", False)

    def test_expandable(self):
        self.compare("srgpen", True)


if __name__ == "__main__":
    backends.require(DRIVER)
    unittest.main(argv=sys.argv[:1])
