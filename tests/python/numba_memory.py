# SPDX-License-Identifier: MIT
"""Tests of Numba arrays in memory of xseg, on the simulated driver.  The test is skipped without numba-cuda.

.ci/setup --numba installs numba-cuda in .deps/numba; otherwise an installed package is used.
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

NUMBA_FOLDER = "NUMBA_FOLDER"


class NumbaTest(unittest.TestCase):
    def setUp(self):
        self.allocator = xseg.numba.allocator()

    def count_allocated(self):
        gc.collect()
        return self.allocator.statistics().allocation.all.current

    def test_arrays_allocate_from_xseg_and_free_their_memory(self):
        before = self.count_allocated()
        array = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.int32))
        self.assertEqual(self.count_allocated(), before + 1)
        info = self.allocator.block_at(int(array.device_ctypes_pointer.value))
        self.assertEqual((info.state, info.requested), (xseg.BlockState.ALLOCATED, 4 << 20))
        self.assertEqual(array.copy_to_host().sum(), (1 << 20) * ((1 << 20) - 1) // 2)
        del array
        self.assertEqual(self.count_allocated(), before)

    def test_freed_memory_waits_for_the_streams_of_numba(self):
        stream, array = cuda.stream(), cuda.device_array(8 << 20, dtype=numpy.uint8)
        address = int(array.device_ctypes_pointer.value)
        handle = stream.handle.value if hasattr(stream.handle, "value") else stream.handle
        simulation.call_driver("xseg_sim_launch", int(handle), simulation.FOREVER)
        del array
        gc.collect()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        stream.synchronize()
        reused = cuda.device_array(8 << 20, dtype=numpy.uint8)
        self.assertEqual(int(reused.device_ctypes_pointer.value), address)

    def test_block_can_be_used_as_a_numba_array(self):
        with self.allocator.allocate(1000) as block:
            array = cuda.as_cuda_array(block)
            self.assertEqual((array.shape, array.dtype), ((1000,), numpy.uint8))
            array.copy_to_device(numpy.full(1000, 7, dtype=numpy.uint8))
            self.assertTrue((array.copy_to_host() == 7).all())
            del array

    def test_memory_info_counts_cached_memory_as_free(self):
        free, total = cuda.current_context().get_memory_info()
        with self.allocator.allocate(64 << 20):
            free_with_block, _ = cuda.current_context().get_memory_info()
        self.assertEqual(free - free_with_block, 64 << 20)
        self.assertEqual(cuda.current_context().get_memory_info()[0], free)
        self.assertEqual(total, 1024 << 20)

    def test_reset_frees_all_memory_and_allows_new_arrays(self):
        array_before_reset = cuda.device_array(1000, dtype=numpy.uint8)
        self.assertEqual(self.count_allocated(), 1)
        cuda.current_context().reset()
        self.assertEqual(self.count_allocated(), 0)
        del array_before_reset
        array = cuda.to_device(numpy.arange(10))
        self.assertEqual(array.copy_to_host().tolist(), list(range(10)))
        del array
        self.assertEqual(self.count_allocated(), 0)
        self.assertGreater(self.allocator.trim(wait=True).released, 0)

    def test_allocation_beyond_device_memory_raises_memory_error(self):
        self.assertRaises(MemoryError, cuda.device_array, 2 << 30, dtype=numpy.uint8)

    def test_example_prints_the_documented_output(self):
        text = (cases.ROOT / "docs/pytorch.md").read_text(encoding="utf-8")
        program, output = re.search(r"```python\n(import xseg_sim, xseg\.numba\n.*?)```\n\n```\n[^\n]*\n(.*?)```", text,
                                    re.DOTALL).groups()
        with tempfile.TemporaryDirectory() as folder:
            # The contents of the wheel xseg_sim, except for the soname, which LD_LIBRARY_PATH replaces.
            package = pathlib.Path(folder, "xseg_sim")
            shutil.copytree(cases.ROOT / "src/adapters/python-sim/xseg_sim", package)
            (package / "lib").mkdir(exist_ok=True)
            (package / "lib/libcuda.so.1").symlink_to(os.environ["XSEG_DRIVER"])
            preamble = f"import site, sys; site.addsitedir({os.environ[NUMBA_FOLDER]!r}); sys.path.insert(0, {folder!r})\n"
            self.assertEqual(cases.run_python(preamble + program, NUMBA_CUDA_MEMORY_MANAGER="numba")[0], output)

    def test_ipc_handle_of_expandable_memory_is_rejected_with_a_remedy(self):
        array = cuda.device_array(1000, dtype=numpy.uint8)
        self.assertRaisesRegex(NotImplementedError, "expandable_segments:False", array.get_ipc_handle)


def restart_with_the_simulator():
    """Runs this test in a new process, which finds the simulator as libcuda.so.1 and Numba, and exits with its status."""
    package = cases.ROOT / ".deps/numba" / sys.implementation.cache_tag
    is_in_deps = package.exists()
    if not is_in_deps and not (importlib.util.find_spec("numba") and importlib.util.find_spec("numba_cuda")):
        cases.skip_all("numba-cuda is not installed; run .ci/setup --numba")
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "libcuda.so.1").symlink_to(os.environ["XSEG_DRIVER"])
        completed = subprocess.run([sys.executable, *sys.argv], check=False, env={
            **os.environ, "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            NUMBA_FOLDER: str(package) if is_in_deps else "", "XSEG_SIM_BYTES": "1", "XSEG_SIM_MEMORY_MB": "1024",
            "NUMBA_CUDA_MEMORY_MANAGER": "xseg.numba"})
    sys.exit(completed.returncode)


if __name__ == "__main__":
    if NUMBA_FOLDER not in os.environ:
        restart_with_the_simulator()
    if os.environ[NUMBA_FOLDER]:
        site.addsitedir(os.environ[NUMBA_FOLDER])  # numba-cuda has a .pth file
    import simulation
    import numpy
    from numba import cuda

    import xseg.numba
    cases.main()
