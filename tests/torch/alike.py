# SPDX-License-Identifier: MIT
"""Programs have the same output on PyTorch's allocator and on xseg, in both modes.

alike.py DRIVER ["NAME..."...]
"""
import sys
import unittest

import backends

CASES = backends.HERE / "alike_cases.py"
# Those of a line run in one process, one after another.
NAMES = ("annotations addresses syncs observers", "backend", "capture_shortage", "children", "streams",
    "metadata max_entries segment_frames pool_ids pool_statistics", "uninitialised",)
# What the string begins with, of a line by its first name.
BEGINNINGS = {"backend": "backend:native,"}


class Alike(unittest.TestCase):
    def compare(self, names, is_expandable):
        settings = BEGINNINGS.get(names.split()[0], "") + f"expandable_segments:{is_expandable}"
        native, ours = backends.on_each(sys.argv[1], CASES, *names.split(), PYTORCH_CUDA_ALLOC_CONF=settings,
                                        XSEG_SIM_DEVICES="2",
                                        PYTHONWARNINGS="ignore", TORCH_SHOW_CPP_STACKTRACES="0").values()
        self.assertEqual(printed(native), printed(ours), f"PyTorch's lines, then xseg's; all of xseg's:\n{ours}")
        self.assertGreater(len(printed(ours)), 1)


def printed(text):
    return [line for line in text.splitlines() if line.startswith("= ")]


def add(names, is_expandable):
    setattr(Alike, f"test_{names.split()[0]}_{'expandable' if is_expandable else 'classic'}",
            lambda self: self.compare(names, is_expandable))


if __name__ == "__main__":
    backends.require(sys.argv[1], needs_adapter=True)
    for found in sys.argv[2:] or NAMES:
        add(found, True)
        add(found, False)
    unittest.main(argv=sys.argv[:1])
