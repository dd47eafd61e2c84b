# SPDX-License-Identifier: MIT
"""Programs have the same output on PyTorch's allocator and on xseg, in both modes.

alike.py DRIVER ["NAME..."...]
"""
import sys
import unittest

import backends

CASES = backends.HERE / "alike_cases.py"
# The programs of one entry run sequentially in one process.
NAMES = ("annotations addresses syncs observers", "backend", "capture_out_of_memory", "children", "streams",
         "metadata max_entries segment_frames pool_ids pool_statistics", "uninitialized")
# Prefixes of the settings string, by the first name of an entry.
PREFIXES = {"backend": "backend:native,"}


class Alike(unittest.TestCase):
    def compare(self, names, is_expandable):
        settings = PREFIXES.get(names.split()[0], "") + f"expandable_segments:{is_expandable}"
        native, xseg = backends.on_each(sys.argv[1], CASES, *names.split(), PYTORCH_CUDA_ALLOC_CONF=settings,
                                        XSEG_SIM_DEVICES="2", PYTHONWARNINGS="ignore", TORCH_SHOW_CPP_STACKTRACES="0").values()
        self.assertEqual(report_lines(native), report_lines(xseg), f"lines of PyTorch, lines of xseg; output on xseg:\n{xseg}")
        self.assertGreater(len(report_lines(xseg)), 1)


def report_lines(text):
    return [line for line in text.splitlines() if line.startswith("= ")]


def add(names, is_expandable):
    setattr(Alike, f"test_{names.split()[0]}_{'expandable' if is_expandable else 'classic'}",
            lambda self: self.compare(names, is_expandable))


if __name__ == "__main__":
    backends.require(sys.argv[1], needs_adapter=True)
    for names in sys.argv[2:] or NAMES:
        add(names, True)
        add(names, False)
    unittest.main(argv=sys.argv[:1])
