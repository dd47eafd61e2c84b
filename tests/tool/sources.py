# SPDX-License-Identifier: MIT
"""Frames that a snapshot contains as module and offset, which commands resolve with the module: sources.py TOOL SOURCE_ROOT."""
import json
import os
import pickle
import re
import subprocess
import sys
import unittest

from folder_case import FolderCase

TOOL = sys.argv[1]
BASE, MIB = 0x7f0000000000, 1 << 20


def printed(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class Sources(FolderCase):
    @classmethod
    def setUpClass(cls):
        cls.address = int(re.search(r"^([0-9a-f]+) T main$", printed("nm", TOOL), re.MULTILINE)[1], 16)
        cls.build_id = re.search(r"Build ID: ([0-9a-f]+)", printed("readelf", "-n", TOOL))[1]
        cls.has_lines = ".debug_line" in printed("readelf", "-SW", TOOL)

    def snapshot(self, *stacks):
        """A file of a block for each stack; a stack is frames of module, offset and build id, the innermost first."""
        entries = [{"action": "segment_map", "addr": BASE, "size": 2 * MIB, "stream": 0, "time_us": 1, "frames": []}]
        for place, frames in enumerate(stacks):
            entries.append({"action": "alloc", "addr": BASE + place * 4096, "size": 4096, "stream": 0, "time_us": 2, "frames": [
                {"name": "??", "filename": str(module), "line": offset, "build_id": build_id}
                for module, offset, build_id in frames]})
        blocks = [{"address": entry["addr"], "size": 4096, "requested_size": 4096, "state": "active_allocated",
                   "frames": entry["frames"]} for entry in entries[1:]]
        rest = len(blocks) * 4096
        blocks.append({"address": BASE + rest, "size": 2 * MIB - rest, "requested_size": 0, "state": "inactive", "frames": []})
        segment = {"device": 0, "address": BASE, "total_size": 2 * MIB, "stream": 0, "segment_type": "small",
                   "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": blocks}
        path = self.folder / "job.pickle"
        path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [entries]}, 4))
        return path

    def sites(self, *stacks):
        ran = subprocess.run([TOOL, "blame", "--json", self.snapshot(*stacks)], stdout=subprocess.PIPE, check=True)
        return [site["site"] for site in json.loads(ran.stdout)["sites"]]

    def test_module_is_resolved_by_its_symbols_and_lines(self):
        """Two places of one line are one site; without lines they are two of one function."""
        named = self.sites([(TOOL, self.address + 1, self.build_id)])
        if self.has_lines:
            self.assertRegex(named[0], r"src/tools/main/main\.c:\d+ main$")
            self.assertEqual(self.sites(*([(TOOL, self.address + more, self.build_id)] for more in (1, 2))), named)
        else:
            self.assertEqual(named, [f"main ({TOOL}+{self.address + 1:#x})"])

    def test_another_module_of_that_name(self):
        wrong = "00" * (len(self.build_id) // 2)
        self.assertEqual(self.sites([(TOOL, self.address + 1, wrong)]), [f"?? ({TOOL}+{self.address + 1:#x})"])

    def test_a_path_that_is_no_file(self):
        """A pipe is not waited for."""
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for path in (pipe, self.folder, self.folder / "absent"):
            self.assertEqual(self.sites([(path, 7, self.build_id)]), [f"?? ({path}+0x7)"])

    def test_the_innermost_with_a_source_is_the_site(self):
        stack = [("/lib/libother.so", 5, "abcd"), (TOOL, self.address + 1, self.build_id)]
        if self.has_lines:
            self.assertRegex(self.sites(stack)[0], r"src/tools/main/main\.c:\d+ main$")
        else:
            self.assertEqual(self.sites(stack), ["?? (/lib/libother.so+0x5)"])

    def test_two_runs_are_compared_by_source(self):
        files = [self.snapshot([(TOOL, self.address + more, self.build_id)]).rename(self.folder / f"{more}.pickle") for more in (1, 2)]
        ran = subprocess.run([TOOL, "compare", "--json", *files], stdout=subprocess.PIPE, check=False)
        self.assertEqual((ran.returncode, json.loads(ran.stdout)["differs"]), (0, False) if self.has_lines else (1, True))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
