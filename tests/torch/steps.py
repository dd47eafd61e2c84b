# SPDX-License-Identifier: MIT
"""memory_stats() on xseg equals that on PyTorch's allocator, field by field, after each of many random steps.

Snapshots and histories are also compared (see pictures.py).

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
    def compare_pictures(self, step, theirs, mine):
        """Two pictures that were taken after the same step."""
        self.assertEqual(len(theirs), len(PARTS))
        for part, one, other in zip(PARTS, theirs, mine):
            self.assertEqual(one, other, f"{part} after step {step} of seed {SEED}: PyTorch's, xseg's")

    def compare(self, kinds, is_expandable):
        outputs = backends.on_each(DRIVER, backends.HERE / "random_steps.py", SEED, STEPS, kinds, EVERY,
                                   PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{is_expandable}")
        native, ours = map(lines, outputs.values())
        self.assertEqual(len(native), int(STEPS))
        for step, (theirs, mine) in enumerate(itertools.zip_longest(native, ours)):
            differing = {key: (theirs[1].get(key), mine[1].get(key)) for key in {**theirs[1], **mine[1]}
                         if theirs[1].get(key) != mine[1].get(key)}
            self.assertEqual({}, differing, f"after step {step}, {theirs[0]}, of seed {SEED}: PyTorch's value, xseg's")
            self.assertEqual(theirs[2] is None, (step + 1) % int(EVERY) != 0)
            if theirs[2] is not None:
                self.compare_pictures(step, theirs[2], mine[2])

    def test_classic(self):
        self.compare("srgpen", False)

    def test_expandable(self):
        self.compare("srgpen", True)


if __name__ == "__main__":
    backends.require(DRIVER)
    unittest.main(argv=sys.argv[:1])
