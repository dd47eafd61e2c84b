# SPDX-License-Identifier: MIT
"""Programs that print what they see print the same on PyTorch's own allocator and on xseg, in both modes.

alike.py DRIVER ["NAME..."...]
"""
import pathlib
import sys
import unittest

import backends

CASES = backends.HERE / "alike_cases.py"
# Those of a line run in one process, one after another.
NAMES = (
    "annotations addresses syncs observers",
    "backend",
    "capture_shortage",
    "children",
    "streams",
    "metadata max_entries segment_frames pool_ids pool_statistics",
    "uninitialised",
)
# What the string begins with, of a line by its first name.
BEGINNINGS = {"backend": "backend:native,"}


class Alike(unittest.TestCase):
    """A test for each line and mode."""

    def compare(self, names, is_expandable):
        """Both processes run at once."""
        settings = BEGINNINGS.get(names.split()[0], "") + f"expandable_segments:{is_expandable}"
        running = [(backend, backends.start(pathlib.Path(sys.argv[1]), backend, CASES, *names.split(),
                                            PYTORCH_CUDA_ALLOC_CONF=settings, BACKEND=backend, XSEG_SIM_DEVICES="2",
                                            PYTHONWARNINGS="ignore", TORCH_SHOW_CPP_STACKTRACES="0"))
                   for backend in ("native", "xseg")]
        native, ours = (backends.finish(process, backend) for backend, process in running)
        self.assertEqual(printed(native), printed(ours), f"PyTorch's lines, then xseg's; all of xseg's:\n{ours}")
        self.assertGreater(len(printed(ours)), 1)


def printed(text):
    """The program's own lines: each begins with "= "."""
    return [line for line in text.splitlines() if line.startswith("= ")]


def add(names, is_expandable):
    """A test for programs in a mode."""
    setattr(Alike, f"test_{names.split()[0]}_{'expandable' if is_expandable else 'classic'}",
            lambda self: self.compare(names, is_expandable))


if __name__ == "__main__":
    backends.require(sys.argv[1])
    if "xseg" not in backends.BACKENDS:
        print("the adapter is not in this tree")
        sys.exit(backends.SKIPPED)
    for found in sys.argv[2:] or NAMES:
        add(found, True)
        add(found, False)
    unittest.main(argv=sys.argv[:1])
