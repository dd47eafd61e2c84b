# SPDX-License-Identifier: MIT
"""Tests that a set-user-ID program ignores its environment: secure_execution.py PROGRAM SIMULATOR TOOL SANITIZER INJECTION.

PROGRAM is secure_program.c, and TOOL the tool with a static library; INJECTION is injection.c, or "" without NVTX.
Requires root, to change the owner of files.
"""
import os
import shutil
import subprocess
import sys
import unittest

from folder_case import FolderCase

OTHER_USER = 65534  # nobody


def skip(reason):
    print(f"secure_execution.py: skipped: {reason}")
    sys.exit(77)


def run_program(program, *arguments, **variables):
    completed = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                               env={**os.environ, "XSEG_ALLOC_CONF": "expandable_segments:False",
                                    "XSEG_SIM_DEVICES": "none", "XSEG_SIM_COSTS": "/none", **variables})
    return completed.stdout, completed.stderr


class SecureExecution(FolderCase):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.program, self.simulator = self.folder / "program", self.folder / "libxseg-sim.so.0"
        shutil.copy(PROGRAM, self.program)
        shutil.copy(SIMULATOR, self.simulator)
        self.injection = self.folder / "injection.so"
        if INJECTION:
            shutil.copy(INJECTION, self.injection)

    def test_ordinary_program_reads_its_environment(self):
        output, error = run_program(self.program, self.simulator)
        self.assertIn("secure 0\n", output)
        self.assertIn("\nsource XSEG_ALLOC_CONF\n", output)
        self.assertNotIn("set-user-ID", output)
        self.assertIn("ignoring XSEG_SIM_DEVICES: invalid value, 'none'", error)
        self.assertIn("ignoring XSEG_SIM_COSTS: /none, cannot open the file", error)

    def test_set_user_id_program_ignores_its_environment(self):
        os.chown(self.program, OTHER_USER, OTHER_USER)
        self.program.chmod(0o4755)
        output, error = run_program(self.program, self.simulator)
        if "secure 0\n" in output:
            self.skipTest("the file system of temporary files does not support set-user-ID programs")
        self.assertIn("secure 1\n", output, error)
        self.assertIn("\nsource default\n", output)
        warnings = [line for line in output.splitlines() if "set-user-ID" in line]
        self.assertEqual(len(warnings), 1, output)
        self.assertIn("XSEG_ALLOC_CONF", warnings[0])
        self.assertEqual(error, "")

    def loads_injection(self, mode):
        os.chown(self.program, OTHER_USER, OTHER_USER)
        self.program.chmod(mode)
        output, error = run_program(self.program, self.simulator, NVTX_INJECTION64_PATH=str(self.injection),
                                    XSEG_TEST_INJECTED="1", XSEG_SIM_DEVICES="1")
        if mode == 0o4755 and "secure 0\n" in output:
            self.skipTest("the file system of temporary files does not support set-user-ID programs")
        self.assertIn("\nsource ", output, error)
        return "injected\n" in output

    @unittest.skipUnless(sys.argv[5:] and sys.argv[5], "built without NVTX: nvtx3/nvToolsExt.h is not installed")
    def test_nvtx_injection_is_not_loaded_into_a_set_user_id_program(self):
        self.assertTrue(self.loads_injection(0o755))
        self.assertFalse(self.loads_injection(0o4755))

    def run_config(self, mode):
        """Returns the output of `xseg config` with a tool that belongs to another user and has the mode."""
        tool = self.folder / "xseg"
        shutil.copy(TOOL, tool)
        os.chown(tool, OTHER_USER, OTHER_USER)
        tool.chmod(mode)
        return run_program(tool, "config", PYTORCH_ALLOC_CONF="idle_ms:5")[0]

    def test_set_user_id_tool_ignores_its_environment(self):
        self.assertEqual(self.run_config(0o755).splitlines()[:3], [
            "source    XSEG_ALLOC_CONF", "string    expandable_segments:False",
            "ignored   PYTORCH_ALLOC_CONF: only the first source that is set is read"])
        output = self.run_config(0o4755)
        if "source    XSEG_ALLOC_CONF" in output:
            self.skipTest("the file system of temporary files does not support set-user-ID programs")
        self.assertRegex(output, r"^source    default\nstacks    call stacks are captured by .*\n\nall ")


if __name__ == "__main__":
    PROGRAM, SIMULATOR, TOOL, SANITIZER, INJECTION = sys.argv[1:]
    if SANITIZER != "none":
        skip(f"built with {SANITIZER}, whose libraries require environment variables")
    if os.geteuid() != 0:
        skip("only root can change the owner of a file")
    unittest.main(argv=sys.argv[:1])
