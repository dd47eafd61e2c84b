# SPDX-License-Identifier: MIT
"""A set-user-ID program ignores its environment: secure.py PROGRAM SIMULATOR TOOL SANITIZER INJECTION.

PROGRAM is secure_program.c, and TOOL the tool with a static library; INJECTION is injection.c, or "" without NVTX.
Requires root, to change the owner of files.
"""
import os
import shutil
import subprocess
import sys
import unittest

from folder_case import FolderCase

OTHER = 65534  # nobody


def skip(why):
    print(f"secure.py: skipped: {why}")
    sys.exit(77)


def start(program, *arguments, **variables):
    done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env={**os.environ, "XSEG_ALLOC_CONF": "expandable_segments:False",
                               "XSEG_SIM_DEVICES": "none", "XSEG_SIM_COSTS": "/none", **variables})
    return done.stdout, done.stderr


class Secure(FolderCase):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.program, self.simulator = self.folder / "program", self.folder / "libxseg-sim.so.0"
        shutil.copy(PROGRAM, self.program)
        shutil.copy(SIMULATOR, self.simulator)
        self.injection = self.folder / "injection.so"
        if INJECTION:
            shutil.copy(INJECTION, self.injection)

    def test_a_user_sets_up_an_ordinary_program(self):
        said, complaint = start(self.program, self.simulator)
        self.assertIn("secure 0\n", said)
        self.assertIn("\nsource XSEG_ALLOC_CONF\n", said)
        self.assertNotIn("set-user-ID", said)
        self.assertIn("ignoring XSEG_SIM_DEVICES: invalid value, 'none'", complaint)
        self.assertIn("ignoring XSEG_SIM_COSTS: /none, cannot open the file", complaint)

    def test_a_user_does_not_set_up_a_set_user_id_program(self):
        os.chown(self.program, OTHER, OTHER)
        self.program.chmod(0o4755)
        said, complaint = start(self.program, self.simulator)
        if "secure 0\n" in said:
            self.skipTest("the file system of temporary files knows no set-user-ID programs")
        self.assertIn("secure 1\n", said, complaint)
        self.assertIn("\nsource default\n", said)
        warnings = [line for line in said.splitlines() if "set-user-ID" in line]
        self.assertEqual(len(warnings), 1, said)
        self.assertIn("XSEG_ALLOC_CONF", warnings[0])
        self.assertEqual(complaint, "")

    def injected(self, mode):
        os.chown(self.program, OTHER, OTHER)
        self.program.chmod(mode)
        said, complaint = start(self.program, self.simulator, NVTX_INJECTION64_PATH=str(self.injection), XSEG_TEST_INJECTED="1",
                                XSEG_SIM_DEVICES="1")
        if mode == 0o4755 and "secure 0\n" in said:
            self.skipTest("the file system of temporary files knows no set-user-ID programs")
        self.assertIn("\nsource ", said, complaint)
        return "injected\n" in said

    @unittest.skipUnless(sys.argv[5:] and sys.argv[5], "built without NVTX: nvtx3/nvToolsExt.h was not there")
    def test_nvtx_loads_no_tool_into_a_set_user_id_program(self):
        self.assertTrue(self.injected(0o755))
        self.assertFalse(self.injected(0o4755))

    def config(self, mode):
        """What `xseg config` prints, as a file of another user with this mode."""
        tool = self.folder / "xseg"
        shutil.copy(TOOL, tool)
        os.chown(tool, OTHER, OTHER)
        tool.chmod(mode)
        return start(tool, "config", PYTORCH_ALLOC_CONF="idle_ms:5")[0]

    def test_the_tool(self):
        self.assertEqual(self.config(0o755).splitlines()[:3], [
            "source    XSEG_ALLOC_CONF", "string    expandable_segments:False",
            "ignored   PYTORCH_ALLOC_CONF: only the first source that is set is read"])
        said = self.config(0o4755)
        if "source    XSEG_ALLOC_CONF" in said:
            self.skipTest("the file system of temporary files knows no set-user-ID programs")
        self.assertRegex(said, r"^source    default\nstacks    call stacks are captured by .*\n\nall ")


if __name__ == "__main__":
    PROGRAM, SIMULATOR, TOOL, SANITIZER, INJECTION = sys.argv[1:]
    if SANITIZER != "none":
        skip(f"built with {SANITIZER}, whose libraries want an environment")
    if os.geteuid() != 0:
        skip("only root can give a program to another user")
    unittest.main(argv=sys.argv[:1])
