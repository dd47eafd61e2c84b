# SPDX-License-Identifier: MIT
"""Every tape of PyTorch's own allocator against this one: tapes.py TOOL SOURCE_ROOT.

Where memory lasts every number after every step must be the same.  Where it runs short no request
may fail that PyTorch served.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest


class TapesTest(unittest.TestCase):
    def replay(self, tape, check, exact_steps=None):
        """Replay a tape, which must agree."""
        done = subprocess.run([TOOL, "replay", "--json", "--check=" + check, tape],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        one = json.loads(done.stdout)
        self.assertEqual(one["mismatches"], 0)
        self.assertGreater(one["checked"], 50)
        if exact_steps is not None:
            self.assertEqual(one["checked"], exact_steps)

    def tapes(self, kind):
        """Path and text of the tapes of a kind."""
        paths = sorted((ROOT / "tests/data/tapes").glob(kind + "-*.tape.zst"))
        self.assertGreater(len(paths), 0)
        for path in paths:
            text = subprocess.run(["zstd", "-dcq", path], capture_output=True, text=True,
                                  check=True).stdout
            yield path, text

    def test_numbers(self):
        for kind, least in (("classic", 19), ("expandable", 13)):
            count = 0
            for path, text in self.tapes(kind):
                with self.subTest(path.name):
                    self.replay(path, "exact", text.count("\n= "))
                count += 1
            self.assertGreaterEqual(count, least)

    def test_blocks_are_chosen_whatever_the_addresses_are(self):
        """Of equal free blocks that of the segment that was registered first serves a request.

        Every tape with `p` lines is replayed with addresses in each order.
        """
        count = 0
        for path, text in (*self.tapes("classic"), *self.tapes("expandable")):
            if "\np " not in text:
                continue
            count += 1
            device = re.search(r"^d \d+", text, re.MULTILINE)
            rest = text[device.end():].partition("\n")[2]
            for order in ("rising", "falling", "shuffled"):
                with self.subTest(path.name, order=order), tempfile.NamedTemporaryFile("w") as tape:
                    tape.write(f"{text[:device.end()]} {order}\n{rest}")
                    tape.flush()
                    self.replay(tape.name, "exact", text.count("\n= "))
        self.assertGreaterEqual(count, 8)

    def test_floor(self):
        for path, _ in self.tapes("tight"):
            with self.subTest(path.name):
                self.replay(path, "floor")


if __name__ == "__main__":
    TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    del sys.argv[1:]
    unittest.main()
