# SPDX-License-Identifier: MIT
"""Arrays of Numba in memory of xseg, on the simulated driver.  Skipped without numba-cuda.

.ci/setup --numba installs numba-cuda in .deps/numba; an installed package is used otherwise.
"""
import gc
import importlib.util
import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import tempfile
import unittest

import cases

FOUND = "NUMBA_WAS_FOUND"


class Arrays(unittest.TestCase):
    def setUp(self):
        self.allocator = xseg.numba.allocator()

    def live(self):
        gc.collect()
        return self.allocator.statistics().allocation.all.current

    def test_arrays_come_from_xseg_and_go_back(self):
        before = self.live()
        array = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.int32))
        self.assertEqual(self.live(), before + 1)
        found = self.allocator.block_at(int(array.device_ctypes_pointer.value))
        self.assertEqual((found.state, found.requested), (xseg.BlockState.ALLOCATED, 4 << 20))
        self.assertEqual(array.copy_to_host().sum(), (1 << 20) * ((1 << 20) - 1) // 2)
        del array
        self.assertEqual(self.live(), before)

    def test_freed_memory_waits_for_the_streams_of_numba(self):
        stream = cuda.stream()
        array = cuda.device_array(8 << 20, dtype=numpy.uint8)
        address = int(array.device_ctypes_pointer.value)
        machine.checked("xseg_sim_launch", int(stream.handle if not hasattr(stream.handle, "value") else stream.handle.value),
                        machine.FOREVER)
        del array
        gc.collect()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        stream.synchronize()
        again = cuda.device_array(8 << 20, dtype=numpy.uint8)
        self.assertEqual(int(again.device_ctypes_pointer.value), address)

    def test_a_block_is_an_array_of_numba(self):
        with self.allocator.allocate(1000) as block:
            array = cuda.as_cuda_array(block)
            self.assertEqual((array.shape, array.dtype), ((1000,), numpy.uint8))
            array.copy_to_device(numpy.full(1000, 7, dtype=numpy.uint8))
            self.assertTrue((array.copy_to_host() == 7).all())
            del array

    def test_memory_info_counts_what_is_cached_as_free(self):
        free, total = cuda.current_context().get_memory_info()
        with self.allocator.allocate(64 << 20):
            held, _ = cuda.current_context().get_memory_info()
        self.assertEqual(free - held, 64 << 20)
        self.assertEqual(cuda.current_context().get_memory_info()[0], free)
        self.assertEqual(total, 1024 << 20)

    def test_a_reset_frees_everything_and_arrays_can_be_made_again(self):
        kept = cuda.device_array(1000, dtype=numpy.uint8)
        self.assertEqual(self.live(), 1)
        cuda.current_context().reset()
        self.assertEqual(self.live(), 0)
        del kept
        array = cuda.to_device(numpy.arange(10))
        self.assertEqual(array.copy_to_host().tolist(), list(range(10)))
        del array
        self.assertEqual(self.live(), 0)
        self.assertGreater(self.allocator.trim(wait=True).released, 0)

    def test_too_much_is_a_memory_error(self):
        self.assertRaises(MemoryError, cuda.device_array, 2 << 30, dtype=numpy.uint8)

    def test_the_example_of_the_page_prints_what_stands_there(self):
        text = (cases.ROOT / "docs/pytorch.md").read_text(encoding="utf-8")
        program, output = re.search(r"```python\n(import xseg_sim, xseg\.numba\n.*?)```\n\n```\n[^\n]*\n(.*?)```", text,
                                    re.DOTALL).groups()
        with tempfile.TemporaryDirectory() as folder:
            # The package xseg_sim as its wheel has it, but for the soname, which LD_LIBRARY_PATH makes up for.
            place = pathlib.Path(folder, "xseg_sim")
            shutil.copytree(cases.ROOT / "src/adapters/python-sim/xseg_sim", place)
            (place / "lib").mkdir(exist_ok=True)
            (place / "lib/libcuda.so.1").symlink_to(os.environ["XSEG_DRIVER"])
            found = f"import site, sys; site.addsitedir({os.environ[FOUND]!r}); sys.path.insert(0, {folder!r})\n"
            self.assertEqual(cases.said(found + program, NUMBA_CUDA_MEMORY_MANAGER="numba")[0], output)

    def test_handles_of_expandable_memory_are_refused_with_a_sentence(self):
        array = cuda.device_array(1000, dtype=numpy.uint8)
        self.assertRaisesRegex(NotImplementedError, "expandable_segments:False", array.get_ipc_handle)


def start_on_the_simulator():
    """This process again, with the simulator as libcuda.so.1 and a Numba to find."""
    package = cases.ROOT / ".deps/numba" / sys.implementation.cache_tag
    is_here = package.exists()
    if not is_here and not (importlib.util.find_spec("numba") and importlib.util.find_spec("numba_cuda")):
        cases.skip_all("numba-cuda is not installed; run .ci/setup --numba")
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "libcuda.so.1").symlink_to(os.environ["XSEG_DRIVER"])
        done = subprocess.run([sys.executable, *sys.argv], check=False, env={
            **os.environ, "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            FOUND: str(package) if is_here else "", "XSEG_SIM_BYTES": "1", "XSEG_SIM_MEMORY_MB": "1024",
            "NUMBA_CUDA_MEMORY_MANAGER": "xseg.numba"})
    sys.exit(done.returncode)


if __name__ == "__main__":
    if FOUND not in os.environ:
        start_on_the_simulator()
    if os.environ[FOUND]:
        site.addsitedir(os.environ[FOUND])  # numba-cuda has a .pth file
    import machine
    import numpy
    from numba import cuda

    import xseg.numba
    cases.main()
