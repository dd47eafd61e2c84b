# SPDX-License-Identifier: MIT
"""Tests of the simulated driver with a program that does not use xseg: NVIDIA's Python package cuda.bindings.

bindings.py TOOL SOURCE_ROOT; the package loads the library in XSEG_DRIVER as libcuda.so.1.  The test is skipped if
.deps/bindings has no package for this version of Python."""
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

MIB = 1 << 20
FOREVER = (1 << 64) - 1
EXIT_SKIPPED = 77

UNMAP_UNDER_WORK = """
import ctypes
from cuda.bindings import driver as cuda

def ok(result):
    assert result[0] == cuda.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) > 1 else None

ok(cuda.cuInit(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
prop = cuda.CUmemAllocationProp()
prop.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
access = cuda.CUmemAccessDesc()
access.location = prop.location
access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
address = ok(cuda.cuMemAddressReserve(2 << 20, 0, 0, 0))
ok(cuda.cuMemMap(address, 2 << 20, 0, ok(cuda.cuMemCreate(2 << 20, prop, 0)), 0))
ok(cuda.cuMemSetAccess(address, 2 << 20, [access], 1))
stream = ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
simulator = ctypes.CDLL("libcuda.so.1")
simulator.xseg_sim_launch(ctypes.c_void_p(int(stream)), ctypes.c_uint64(2 ** 64 - 1))
ok(cuda.cuMemsetD8Async(address, 1, 4096, stream))
if WAITS:
    ok(cuda.cuStreamSynchronize(stream))
ok(cuda.cuMemUnmap(address, 2 << 20))
print("unmapped")
"""


def ok(result):
    if result[0] != cuda.CUresult.CUDA_SUCCESS:
        raise AssertionError(f"the driver returned {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def run(program):
    return subprocess.run([sys.executable, "-c", program], check=False, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Bindings(unittest.TestCase):
    def setUp(self):
        self.assertEqual(simulator.xseg_sim_reset(None), 0)
        ok(cuda.cuInit(0))
        self.device = ok(cuda.cuDeviceGet(0))
        self.context = ok(cuda.cuDevicePrimaryCtxRetain(self.device))
        ok(cuda.cuCtxSetCurrent(self.context))

    def tearDown(self):
        description = ctypes.create_string_buffer(1024)
        leak_count = simulator.xseg_sim_leaks(description, ctypes.c_size_t(len(description)))
        # The only remaining object is the context, whose release would also destroy its memory, streams and events.
        self.assertEqual(leak_count, 1, description.value.decode())
        ok(cuda.cuCtxSetCurrent(cuda.CUcontext(0)))
        ok(cuda.cuDevicePrimaryCtxRelease(self.device))
        self.assertEqual(simulator.xseg_sim_leaks(None, ctypes.c_size_t(0)), 0)

    def expect_driver_error(self, name, result):
        self.assertEqual(result[0], getattr(cuda.CUresult, "CUDA_ERROR_" + name))

    def launch_kernel(self, stream, nanoseconds=FOREVER):
        """Queues simulated work with a duration; FOREVER: until a thread waits for the work."""
        self.assertEqual(simulator.xseg_sim_launch(ctypes.c_void_p(int(stream)), ctypes.c_uint64(nanoseconds)), 0)

    def test_package_loads_the_simulated_driver(self):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mapped_paths = [line.split()[-1] for line in maps if "libxseg-sim" in line]
        self.assertTrue(mapped_paths)
        self.assertEqual(ok(cuda.cuDriverGetVersion()), 13000)
        # The package and ctypes share one instance of the simulator: the call of the package is counted.
        self.assertEqual(simulator.xseg_sim_calls(b"cuInit"), 1)

    def test_device_attributes_are_reported(self):
        attribute = cuda.CUdevice_attribute
        self.assertEqual(ok(cuda.cuDeviceGetCount()), 1)
        self.assertEqual(ok(cuda.cuDeviceGetName(64, self.device)).split(b"\0")[0], b"Simulated device 0")
        self.assertEqual(len(ok(cuda.cuDeviceGetUuid(self.device)).bytes), 16)
        self.assertEqual(ok(cuda.cuDeviceTotalMem(self.device)), 256 * MIB)
        for requested, value in (
                (attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8), (attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
                (attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1)):
            self.assertEqual(ok(cuda.cuDeviceGetAttribute(requested, self.device)), value)
        self.expect_driver_error("INVALID_DEVICE", cuda.cuDeviceGet(1))

    def test_copies_and_fills_change_the_memory(self):
        data = bytes(range(256)) * 256
        first, second = ok(cuda.cuMemAlloc(len(data))), ok(cuda.cuMemAlloc(len(data)))
        ok(cuda.cuMemcpyHtoD(first, data, len(data)))
        ok(cuda.cuMemsetD8(int(first) + 1000, 0xab, 24))
        ok(cuda.cuMemcpyDtoD(second, first, len(data)))
        received = bytearray(len(data))
        ok(cuda.cuMemcpyDtoH(received, second, len(received)))
        self.assertEqual(bytes(received), data[:1000] + b"\xab" * 24 + data[1024:])
        # The memory of the simulator is accessible at its address.
        self.assertEqual(ctypes.string_at(int(second) + 998, 4), b"\xe6\xe7\xab\xab")
        # Each allocation occupies a page of 2 MiB.
        self.assertEqual(ok(cuda.cuMemGetInfo()), ((256 - 2 * 2) * MIB, 256 * MIB))
        ok(cuda.cuMemFree(first))
        ok(cuda.cuMemFree(second))
        self.assertEqual(ok(cuda.cuMemGetInfo()), (256 * MIB, 256 * MIB))

    def test_memory_is_mapped_into_a_reserved_address_range(self):
        prop = cuda.CUmemAllocationProp()
        prop.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = 0
        access = cuda.CUmemAccessDesc()
        access.location = prop.location
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        page_size = ok(cuda.cuMemGetAllocationGranularity(
            prop, cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
        self.assertEqual(page_size, 2 * MIB)
        base = int(ok(cuda.cuMemAddressReserve(4 * page_size, 0, 0, 0)))
        pages = [ok(cuda.cuMemCreate(page_size, prop, 0)) for _ in range(2)]
        for index, page in enumerate(pages):
            ok(cuda.cuMemMap(base + index * page_size, page_size, 0, page, 0))
        ok(cuda.cuMemSetAccess(base, 2 * page_size, [access], 1))
        self.assertEqual(ok(cuda.cuMemGetAccess(access.location, base)), 3)  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        # Write across the boundary of two pages; then map the second page at another address.
        ok(cuda.cuMemcpyHtoD(base + page_size - 3, b"abcdef", 6))
        self.expect_driver_error("INVALID_VALUE", cuda.cuMemUnmap(base + MIB, page_size))
        ok(cuda.cuMemUnmap(base, 2 * page_size))
        ok(cuda.cuMemMap(base + 3 * page_size, page_size, 0, pages[1], 0))
        ok(cuda.cuMemSetAccess(base + 3 * page_size, page_size, [access], 1))
        received = bytearray(3)
        ok(cuda.cuMemcpyDtoH(received, base + 3 * page_size, 3))
        self.assertEqual(received, b"def")
        self.expect_driver_error("INVALID_VALUE", cuda.cuMemAddressFree(base, 4 * page_size))
        ok(cuda.cuMemUnmap(base + 3 * page_size, page_size))
        for page in pages:
            ok(cuda.cuMemRelease(page))
        ok(cuda.cuMemAddressFree(base, 4 * page_size))

    def test_streams_execute_in_order_and_wait_for_events(self):
        streams = [ok(cuda.cuStreamCreate(1)) for _ in range(2)]
        event = ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        memory = ok(cuda.cuMemAlloc(16))
        ok(cuda.cuMemsetD8(memory, 0, 16))
        self.launch_kernel(streams[0])
        ok(cuda.cuMemsetD8Async(memory, 1, 16, streams[0]))
        ok(cuda.cuEventRecord(event, streams[0]))
        ok(cuda.cuStreamWaitEvent(streams[1], event, 0))
        ok(cuda.cuMemsetD8Async(memory, 2, 8, streams[1]))
        self.expect_driver_error("NOT_READY", cuda.cuEventQuery(event))
        self.expect_driver_error("NOT_READY", cuda.cuStreamQuery(streams[1]))
        self.assertEqual(ctypes.string_at(int(memory), 16), bytes(16))
        ok(cuda.cuEventSynchronize(event))
        ok(cuda.cuCtxSynchronize())
        ok(cuda.cuStreamQuery(streams[1]))
        self.assertEqual(ctypes.string_at(int(memory), 16), b"\2" * 8 + b"\1" * 8)
        ok(cuda.cuMemFree(memory))
        ok(cuda.cuEventDestroy(event))
        for stream in streams:
            ok(cuda.cuStreamDestroy(stream))

    def test_elapsed_time_between_events_is_reported(self):
        stream = ok(cuda.cuStreamCreate(1))
        first, second = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
        ok(cuda.cuEventRecord(first, stream))
        self.launch_kernel(stream, 1500000)
        ok(cuda.cuEventRecord(second, stream))
        self.expect_driver_error("NOT_READY", cuda.cuEventElapsedTime(first, second))
        ok(cuda.cuEventSynchronize(second))
        self.assertEqual(ok(cuda.cuEventElapsedTime(first, second)), 1.5)
        ok(cuda.cuEventDestroy(first))
        ok(cuda.cuEventDestroy(second))
        ok(cuda.cuStreamDestroy(stream))

    def test_capture_creates_a_graph(self):
        kind = cuda.CUgraphNodeType
        stream, memory = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(64))
        ok(cuda.cuMemsetD8(memory, 7, 64))
        ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        ok(cuda.cuMemsetD8Async(memory, 9, 32, stream))
        ok(cuda.cuMemcpyDtoDAsync(int(memory) + 32, memory, 32, stream))
        self.expect_driver_error("STREAM_CAPTURE_UNSUPPORTED", cuda.cuMemAlloc(64))
        self.expect_driver_error("STREAM_CAPTURE_INVALIDATED", cuda.cuStreamEndCapture(stream))
        ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        ok(cuda.cuMemsetD8Async(memory, 9, 32, stream))
        ok(cuda.cuMemcpyDtoDAsync(int(memory) + 32, memory, 32, stream))
        self.assertEqual(ok(cuda.cuStreamIsCapturing(stream)), cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE)
        graph = ok(cuda.cuStreamEndCapture(stream))
        _, count = ok(cuda.cuGraphGetNodes(graph, 0))
        nodes, _ = ok(cuda.cuGraphGetNodes(graph, count))
        self.assertEqual([ok(cuda.cuGraphNodeGetType(node)) for node in nodes],
                         [kind.CU_GRAPH_NODE_TYPE_MEMSET, kind.CU_GRAPH_NODE_TYPE_MEMCPY])
        dependencies, _, count = ok(cuda.cuGraphNodeGetDependencies(nodes[1], 1))
        self.assertEqual([int(node) for node in dependencies[:count]], [int(nodes[0])])
        # Captured operations are not executed.
        self.assertEqual(ctypes.string_at(int(memory), 64), b"\7" * 64)
        ok(cuda.cuGraphDestroy(graph))
        ok(cuda.cuStreamDestroy(stream))
        ok(cuda.cuMemFree(memory))

    def test_driver_errors_are_raised(self):
        self.expect_driver_error("OUT_OF_MEMORY", cuda.cuMemAlloc(257 * MIB))
        self.assertEqual(ok(cuda.cuGetErrorName(cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY)), b"CUDA_ERROR_OUT_OF_MEMORY")
        self.expect_driver_error("INVALID_VALUE", cuda.cuMemAlloc(0))
        self.expect_driver_error("INVALID_VALUE", cuda.cuMemFree(12345))
        self.expect_driver_error("INVALID_HANDLE", cuda.cuStreamQuery(cuda.CUstream(12345)))
        ok(cuda.cuCtxSetCurrent(cuda.CUcontext(0)))
        self.expect_driver_error("INVALID_CONTEXT", cuda.cuMemAlloc(64))

    def test_injected_fault_fails_the_call(self):
        self.assertEqual(simulator.xseg_sim_fail(b"cuMemAlloc", ctypes.c_uint64(2), 719), 0)
        memory = ok(cuda.cuMemAlloc(64))
        self.expect_driver_error("LAUNCH_FAILED", cuda.cuMemAlloc(64))
        ok(cuda.cuMemFree(memory))

    def test_missing_functions_are_reported(self):
        with self.assertRaisesRegex(RuntimeError, 'Function "cuModuleLoadData" not found'):
            cuda.cuModuleLoadData(b"")

    def test_unmapping_under_queued_work_aborts_the_process(self):
        completed = run("WAITS = True" + UNMAP_UNDER_WORK)
        self.assertEqual((completed.returncode, completed.stdout), (0, "unmapped\n"), completed.stderr)
        completed = run("WAITS = False" + UNMAP_UNDER_WORK)
        self.assertEqual((completed.returncode, completed.stdout), (-signal.SIGABRT, ""), completed.stderr)
        for message in ("xseg-sim: cuMemUnmap: undefined behavior, queued work accesses the memory",
                        "call:         cuMemUnmap", "work:         stream ", "queued by cuMemsetD8Async"):
            self.assertIn(message, completed.stderr)

    def test_example_of_the_documentation_runs(self):
        text = pathlib.Path(sys.argv[2], "docs/simulator.md").read_text(encoding="utf-8")
        program, = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        completed = run(program)
        self.assertEqual((completed.returncode, completed.stderr), (0, ""))


def restart_with_the_simulator():
    """Runs this test in a new process, which finds the simulator as libcuda.so.1 and the package, and exits with its status."""
    driver = pathlib.Path(os.environ["XSEG_DRIVER"])
    package = pathlib.Path(sys.argv[2], ".deps/bindings", sys.implementation.cache_tag)
    sanitizer = re.search(rb"__[at]san_init", driver.read_bytes())
    if sanitizer:
        print("skipped: Python cannot load a library that is built with a sanitizer")
        sys.exit(EXIT_SKIPPED)
    if not package.exists():
        print(f"skipped: {package} is not installed; run .ci/setup --bindings")
        sys.exit(EXIT_SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "libcuda.so.1").symlink_to(driver)
        completed = subprocess.run([sys.executable, *sys.argv, folder], check=False, env={
            **os.environ, "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}", "XSEG_SIM_BYTES": "1", "XSEG_SIM_MEMORY_MB": "256"})
    sys.exit(completed.returncode)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        restart_with_the_simulator()
    from cuda.bindings import driver as cuda
    simulator = ctypes.CDLL("libcuda.so.1")
    simulator.xseg_sim_leaks.restype = ctypes.c_size_t
    simulator.xseg_sim_calls.restype = ctypes.c_uint64
    unittest.main(argv=sys.argv[:1], verbosity=1)
