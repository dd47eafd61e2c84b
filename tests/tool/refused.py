# SPDX-License-Identifier: MIT
"""`xseg advise` on what the library writes when memory runs out: refused.py TOOL SOURCE_ROOT LIBRARY."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from folder_case import FolderCase

MIB = 1 << 20
DEVICE_MIB = 450


class Refused(FolderCase):
    def refuse(self, request, config):
        """Ten classic segments, of which a part is cached in pieces, and a request that fails: the snapshot."""
        with xseg.Allocator(f"{config},oom_snapshot:{self.folder}") as allocator:
            for block in [allocator.allocate(40 * MIB) for _ in range(10)]:
                block.free()
            live = [allocator.allocate(24 * MIB) for _ in range(10)]
            with self.assertRaises(xseg.NoMemoryError):
                allocator.allocate(request)
            for block in live:
                block.free()
        path, = self.folder.iterdir()
        return path

    def advise(self, path, status=0):
        done = subprocess.run([sys.argv[1], "advise", "--json", path], capture_output=True, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout) if status == 0 else done.stderr.decode()

    def test_completing_configuration_is_advised(self):
        found = self.advise(self.refuse(100 * MIB, "expandable_segments:False,history:all"))
        short = found["out_of_memory"]
        self.assertEqual((short["device_bytes"], short["failed"], short["completes"]), (DEVICE_MIB * MIB, 1, True))
        self.assertEqual(short["least_change"], found["advised"]["config"])
        self.assertTrue(short["least_change"].startswith("expandable_segments:True"), short)
        self.assertFalse(found["current"]["completes"])

    def test_impossible_request_is_reported(self):
        found = self.advise(self.refuse(300 * MIB, "expandable_segments:False,history:all"))
        short = found["out_of_memory"]
        self.assertEqual((short["completes"], short["least_change"]), (False, None))
        self.assertGreaterEqual(found["advised"]["device_needed"], 540 * MIB)

    def test_a_snapshot_without_a_history(self):
        said = self.advise(self.refuse(100 * MIB, "expandable_segments:False"), status=2)
        self.assertIn("or with the key history:all of xseg", said)


if __name__ == "__main__":
    if re.search(rb"__[at]san_init", pathlib.Path(sys.argv[3]).read_bytes()):
        print("Python cannot load a library that is built with a sanitizer")
        sys.exit(77)
    os.environ["XSEG_LIBRARY"] = sys.argv[3]
    os.environ["XSEG_SIM_MEMORY_MB"] = str(DEVICE_MIB)
    sys.path.insert(0, os.path.join(sys.argv[2], "src/adapters/python"))
    import xseg
    unittest.main(argv=sys.argv[:1])
