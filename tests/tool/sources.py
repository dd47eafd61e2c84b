# SPDX-License-Identifier: MIT
"""Tests that commands resolve frames of a snapshot with module and offset by the module: sources.py TOOL SOURCE_ROOT."""
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


def read_output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class Sources(FolderCase):
    @classmethod
    def setUpClass(cls):
        cls.address = int(re.search(r"^([0-9a-f]+) T main$", read_output("nm", TOOL), re.MULTILINE)[1], 16)
        cls.build_id = re.search(r"Build ID: ([0-9a-f]+)", read_output("readelf", "-n", TOOL))[1]
        cls.has_lines = ".debug_line" in read_output("readelf", "-SW", TOOL)

    def snapshot(self, *stacks):
        """Writes a snapshot with a block per stack; a frame is (module, offset, build ID), the innermost frame first."""
        entries = [{"action": "segment_map", "addr": BASE, "size": 2 * MIB, "stream": 0, "time_us": 1, "frames": []}]
        for index, frames in enumerate(stacks):
            entries.append({"action": "alloc", "addr": BASE + index * 4096, "size": 4096, "stream": 0, "time_us": 2, "frames": [
                {"name": "??", "filename": str(module), "line": offset, "build_id": build_id}
                for module, offset, build_id in frames]})
        blocks = [{"address": entry["addr"], "size": 4096, "requested_size": 4096, "state": "active_allocated",
                   "frames": entry["frames"]} for entry in entries[1:]]
        used = len(blocks) * 4096
        blocks.append({"address": BASE + used, "size": 2 * MIB - used, "requested_size": 0, "state": "inactive",
                       "frames": []})
        segment = {"device": 0, "address": BASE, "total_size": 2 * MIB, "stream": 0, "segment_type": "small",
                   "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": blocks}
        path = self.folder / "job.pickle"
        path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [entries]}, 4))
        return path

    def sites(self, *stacks):
        completed = subprocess.run([TOOL, "blame", "--json", self.snapshot(*stacks)], stdout=subprocess.PIPE, check=True)
        return [site["site"] for site in json.loads(completed.stdout)["sites"]]

    def test_module_is_resolved_by_its_symbols_and_lines(self):
        """Two offsets of one line are one site; without line numbers they are two sites of one function."""
        sites_of_main = self.sites([(TOOL, self.address + 1, self.build_id)])
        if self.has_lines:
            self.assertRegex(sites_of_main[0], r"src/tools/main/main\.c:\d+ main$")
            self.assertEqual(self.sites(*([(TOOL, self.address + offset, self.build_id)] for offset in (1, 2))), sites_of_main)
        else:
            self.assertEqual(sites_of_main, [f"main ({TOOL}+{self.address + 1:#x})"])

    def test_module_with_another_build_id_is_not_used(self):
        other_build_id = "00" * (len(self.build_id) // 2)
        self.assertEqual(self.sites([(TOOL, self.address + 1, other_build_id)]), [f"?? ({TOOL}+{self.address + 1:#x})"])

    def test_path_of_a_pipe_or_folder_is_not_opened(self):
        """Opening a pipe would block."""
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for path in (pipe, self.folder, self.folder / "absent"):
            self.assertEqual(self.sites([(path, 7, self.build_id)]), [f"?? ({path}+0x7)"])

    def test_innermost_frame_with_a_source_is_the_site(self):
        stack = [("/lib/libother.so", 5, "abcd"), (TOOL, self.address + 1, self.build_id)]
        if self.has_lines:
            self.assertRegex(self.sites(stack)[0], r"src/tools/main/main\.c:\d+ main$")
        else:
            self.assertEqual(self.sites(stack), ["?? (/lib/libother.so+0x5)"])

    def test_compare_matches_sites_by_source(self):
        files = [self.snapshot([(TOOL, self.address + offset, self.build_id)]).rename(self.folder / f"{offset}.pickle")
                 for offset in (1, 2)]
        completed = subprocess.run([TOOL, "compare", "--json", *files], stdout=subprocess.PIPE, check=False)
        self.assertEqual((completed.returncode, json.loads(completed.stdout)["differs"]),
                         (0, False) if self.has_lines else (1, True))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
