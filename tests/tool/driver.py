# SPDX-License-Identifier: MIT
"""Tests of `xseg replay` with a driver that is loaded as libcuda.so.1, and on a terminal.

driver.py TOOL SOURCE_ROOT; the driver is the simulator, whose path is in XSEG_DRIVER."""
import os
import pathlib
import sys
import unittest

from folder_case import ROOT, ToolCase


class DriverTest(ToolCase):
    def setUp(self):
        super().setUp()
        (self.folder / "libcuda.so.1").symlink_to(os.environ["XSEG_DRIVER"])

    def file(self, text):  # pylint: disable=arguments-differ
        return super().file("xtrace 1\nc expandable_segments:True\n" + text)

    def replay(self, text, *options, status=0, **environment):
        path = text if isinstance(text, pathlib.Path) else self.file(text)
        paths = f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        completed = self.tool("replay", *options, path, status=status, environment={"LD_LIBRARY_PATH": paths, **environment})
        return completed.stdout + completed.stderr


class Driver(DriverTest):
    WAITS = "a 0 1000 0\na 1 30000000 1\nw 2 1\ny 1\ny *\nf 0\nf 1\ne\n"

    def test_driver_is_loaded_by_its_library_name(self):
        output = self.replay(self.WAITS, "--driver", "cuda")
        self.assertRegex(output, r"peak reserved +42.00 MiB\n")
        self.assertRegex(output, r"driver time, modeled +-\n")

    def test_driver_can_be_selected_by_path(self):
        (self.folder / "my-driver.so").symlink_to(os.environ["XSEG_DRIVER"])
        (self.folder / "libcuda.so.1").unlink()
        output = self.replay(self.WAITS, "--driver", str(self.folder / "my-driver.so"))
        self.assertRegex(output, r"peak reserved +42.00 MiB\n")
        # Only a simulator that the tool selects itself has a modeled time.
        self.assertRegex(output, r"driver time, modeled +-\n")
        self.assertIn("none.so: cannot open", self.replay(self.WAITS, "--driver", str(self.folder / "none.so"), status=2))
        output = self.replay(self.WAITS, "--driver", "hip", status=2)
        self.assertIn("--driver takes sim or cuda, or a FILE, whose path has a / or a .", output)

    def test_wait_during_a_capture_does_not_invalidate_it(self):
        for wait in ("y 0", "y 1", "y 2", "y *"):
            with self.subTest(wait):
                output = self.replay(f"a 0 1000 1\nu 0 2\nu 0 0\ncb 1 1\na 1 1000 1\nk 1\n{wait}\nce 1\nf 1\nf 0\n"
                                     f"pr 1\n{wait}\n", "--driver", "cuda")
                self.assertRegex(output, r"peak reserved +4.00 MiB\n")
                self.assertNotRegex(output, "cannot wait")

    def test_driver_limits_the_device_memory(self):
        self.assertIn("out of memory", self.replay("a 0 300000000 0\n", "--driver", "cuda", status=3, XSEG_SIM_MEMORY_MB="256"))

    def test_failed_driver_call_is_named(self):
        for call, message, status in (
                ("cuInit", "cuInit returned 999", 2), ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain returned 999", 2),
                ("cuCtxPushCurrent", "cuCtxPushCurrent returned 999", 2), ("cuStreamCreate", "only 0 of 2 streams", 2),
                ("cuStreamSynchronize", ":6: the driver cannot wait", 1), ("cuCtxSynchronize", ":7: the driver cannot wait", 1)):
            with self.subTest(call):
                self.assertIn(message, self.replay(self.WAITS, "--driver", "cuda", status=status, XSEG_SIM_FAIL=f"{call}:1:999"))

    def test_device_without_physical_pages_replays_with_classic_segments(self):
        tape = ROOT / "tests/data/tapes/expandable-mixed.tape.zst"
        for nth in (1, 3, 9):
            for error in (2, 801):
                with self.subTest(nth=nth, error=error):
                    output = self.replay(tape, "--driver", "cuda", XSEG_SIM_FAIL=f"cuMemCreate:{nth}+1:{error}")
                    self.assertIn("cuMemCreate failed, CUDA_ERROR_", output)
                    self.assertIn("classic", output)
                    self.assertRegex(output, r"out of memory at event +none\n")

    def test_file_that_is_no_driver_is_rejected(self):
        driver = self.folder / "libcuda.so.1"
        driver.unlink()
        driver.write_text("no library")
        self.assertIn("libcuda.so.1", self.replay(self.WAITS, "--driver", "cuda", status=2))
        driver.unlink()
        driver.symlink_to(pathlib.Path(os.environ["XSEG_DRIVER"]).with_name("libxseg.so"))
        self.assertIn("no entry point", self.replay(self.WAITS, "--driver", "cuda", status=2))


class Terminal(DriverTest):
    def test_progress_is_drawn_and_removed(self):
        output = self.on_terminal("replay", self.file("".join(f"a {i} 512 0\nf {i}\n" for i in range(200000))))
        self.assertIn(b"\r[#", output)
        self.assertTrue(output.endswith(b"\r\x1b[K"), output[-80:])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
