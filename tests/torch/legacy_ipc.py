# SPDX-License-Identifier: MIT
"""Legacy IPC of tensors by a compiled extension: legacy_ipc.py DRIVER.

A process of PyTorch on xseg sends the address of a tensor by cudaIpcGetMemHandle(), and a second process opens it.  Both read and
write.  The hook of the wheel loads libxseg-ipc.so, or LD_PRELOAD does.  Exports of allocation handles do not need it.
"""
import array
import ctypes
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import backends

if backends.IS_CASE:
    import torch
    from tensors import MIB, byte_tensor, expect, fill, holds

NOT_SUPPORTED, INVALID_VALUE, INVALID_HANDLE = 801, 1, 400
HEADER = ctypes.c_uint64 * 2  # offset and size


def compile_extension(folder, driver):
    """Compiles the extension, and links it with the runtime and the driver, like the extensions of engines."""
    library = folder / "ipc_extension.so"
    output = subprocess.run([sys.executable, backends.ENVIRONMENT, "--offline", "--driver", driver, "print"], check=True,
                            capture_output=True, text=True).stdout
    library_folder = pathlib.Path(output.split("LD_LIBRARY_PATH='")[1].split("'")[0].split(":")[0])
    subprocess.run([shutil.which("cc"), "-shared", "-fPIC", "-Wall", "-Werror", "-fvisibility=hidden", "-Wl,--no-as-needed",
                    "-o", library, backends.HERE / "ipc_extension.c", *library_folder.glob("libcudart.so.??"),
                    library_folder / "libcuda.so.1"], check=True)
    return library


# --- Cases, which run in the processes. ---

class Extension:
    """The functions of the extension."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)

    def call(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def send(self, tensor, function="send_address"):
        """Returns the handle of a tensor's reservation or page and the offset, or an error code."""
        handle, offset = ctypes.create_string_buffer(64), ctypes.c_uint64()
        error = self.call(function, ctypes.c_void_p(tensor.data_ptr()), handle, ctypes.byref(offset))
        return error or (handle.raw, offset.value)

    def open(self, handle):
        """Opens a handle.  Returns the address, or an error code."""
        base = ctypes.c_void_p()
        error = self.call("open_address", ctypes.create_string_buffer(handle, 64), ctypes.byref(base))
        return error or base.value

    def close(self, base):
        return self.call("close_address", ctypes.c_void_p(base))

    def read(self, address, count):
        buffer = ctypes.create_string_buffer(count)
        expect(self.call("copy", buffer, ctypes.c_void_p(address), ctypes.c_size_t(count)) == 0, "copies from the device")
        return buffer.raw

    def write(self, address, data):
        expect(self.call("copy", ctypes.c_void_p(address), data, ctypes.c_size_t(len(data))) == 0, "copies to the device")


def connected(role):
    """Returns a socket to the other process, and the extension."""
    path, extension = sys.argv[2:4]
    torch.cuda.init()
    if role == "sender":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            return server.accept()[0], Extension(extension)
    client = socket.socket(socket.AF_UNIX)
    for _ in range(1200):
        try:
            client.connect(path)
            return client, Extension(extension)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.1)
    raise AssertionError("the sender does not listen")


def case_sender():
    """Sends tensors of both pools of a segment, with frees and reuse in between; the receiver's writes are visible."""
    connection, extension = connected("sender")
    small, large = byte_tensor(0.25), byte_tensor(40)
    gap, last = byte_tensor(40), byte_tensor(24)
    fill(small, 1), fill(large, 2), fill(last, 3)
    del gap
    torch.cuda.empty_cache()  # unmaps pages between the two large tensors
    for tensor in (small, large, last):
        handle, offset = extension.send(tensor)
        expect(extension.send(tensor) == (handle, offset), "handles of the same memory are equal")
        connection.sendall(handle + bytes(HEADER(offset, tensor.numel())))
        expect(connection.recv(1) == b"w", "the receiver replies")
        expect(holds(tensor[:5], 9) and not holds(tensor[5:6], 9), "the writes of the receiver are visible")
    fill(large, 2)
    for part in (large[: 2 * MIB], large[38 * MIB:]):  # on the first and on the last page
        handle, offset = extension.send(part, "send_page")
        expect(offset < 20 * MIB, "an offset in the page")
        connection.sendall(handle + bytes(HEADER(offset, part.numel())))
        expect(connection.recv(1) == b"w" and holds(part[:5], 9), "the writes of the receiver are visible")
    added = byte_tensor(100)  # grows the segment
    handle, offset = extension.send(added)
    expect(handle != extension.send(small)[0], "the handle of another segment differs")
    fill(added, 4)
    connection.sendall(handle + bytes(HEADER(offset, added.numel())))
    expect(connection.recv(1) == b"w" and holds(added[:5], 9), "writes in the grown segment are visible")
    expect(connection.recv(1) == b"", "the receiver ends")


def case_receiver():
    connection, extension = connected("receiver")
    opened = {}
    for value in (1, 2, 3, 2, 2, 4):
        message = connection.recv(64 + ctypes.sizeof(HEADER), socket.MSG_WAITALL)
        handle, (offset, size) = message[:64], HEADER.from_buffer_copy(message[64:])
        if handle not in opened:  # vLLM caches opened handles by their bytes
            opened[handle] = extension.open(handle)
        address = opened[handle] + offset
        expect(extension.read(address, 100) == bytes([value]) * 100, "reads the first bytes")
        expect(extension.read(address + size - 100, 100) == bytes([value]) * 100, "reads the last bytes")
        source = fill(byte_tensor(1), 9)
        torch.cuda.synchronize()
        status = extension.call("copy", ctypes.c_void_p(address), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(5))
        expect(status == 0, "copies on the device")
        connection.sendall(b"w")
    for base in opened.values():
        expect(extension.close(base) == 0, "closes")
    foreign = extension.open(bytes(64))
    expect(foreign in (INVALID_VALUE, INVALID_HANDLE), f"the driver rejects a foreign handle: {foreign}")


def case_alone():
    """Without the library, the driver rejects the call, and no line is printed; classic segments can be exported."""
    extension = Extension(sys.argv[2])
    expect(extension.send(byte_tensor(4)) == INVALID_VALUE, "the driver's error")
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    expect(len(extension.send(byte_tensor(400))) == 2, "classic memory")


def case_not_exportable():
    extension = Extension(sys.argv[2])
    expect(extension.send(byte_tensor(4)) == NOT_SUPPORTED, "CUDA's error code for unsupported calls")


def case_classic():
    """The driver exports memory of classic segments."""
    extension = Extension(sys.argv[2])
    handle, offset = extension.send(byte_tensor(4))
    expect(handle[:4] != b"xseg" and offset == 0, "the driver's handle")


def case_page_sender():
    connection, extension = connected("sender")
    tensor = fill(byte_tensor(4), 5)
    torch.cuda.synchronize()
    descriptor, base, size = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    expect(extension.call("export_page", ctypes.c_void_p(tensor.data_ptr()), ctypes.byref(descriptor), ctypes.byref(base),
                          ctypes.byref(size)) == 0, "exports the allocation handle of a page")
    expect(size.value in (2 * MIB, 20 * MIB), "of a page")
    message = bytes(HEADER(tensor.data_ptr() - base.value, size.value))
    connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor.value]))])
    expect(connection.recv(1) == b"w" and holds(tensor[:5], 9), "the writes of the receiver are visible")


def case_page_receiver():
    connection, extension = connected("receiver")
    message, control, _, _ = connection.recvmsg(ctypes.sizeof(HEADER), socket.CMSG_SPACE(4))
    offset, size = HEADER.from_buffer_copy(message)
    base = ctypes.c_uint64()
    expect(extension.call("map_page", array.array("i", control[0][2])[0], ctypes.c_size_t(size), ctypes.byref(base)) == 0, "maps")
    expect(extension.read(base.value + offset, 100) == b"\5" * 100, "reads")
    extension.write(base.value + offset, b"\x09" * 5)
    connection.sendall(b"w")
    expect(extension.call("unmap_page", base, ctypes.c_size_t(size)) == 0, "unmaps")


# --- The tests. ---

class LegacyIpc(backends.CaseTest):
    environment = {"XSEG_SIM_BYTES": "1"}
    # With a variable of Python itself, the process is started and not forked, so torch is loaded after libxseg-ipc.so.
    variables = dict.fromkeys(("sender", "receiver", "page_sender", "page_receiver", "not_exportable", "classic"),
                              {"PYTHONHASHSEED": "0"})

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.extension = str(compile_extension(cls.folder, sys.argv[1]))
        cls.library = next(pathlib.Path(sys.argv[1]).parent.rglob("libxseg-ipc.so"))

    def run_pair(self, sender, receiver, **variables):
        variables["XSEG_SIM_SHARED"] = f"torch-{os.getpid()}-{time.monotonic_ns()}"
        path = str(self.folder / variables["XSEG_SIM_SHARED"])
        processes = [self.start_case(name, path, self.extension, **variables) for name in (sender, receiver)]
        texts = [process.communicate(timeout=500)[0] for process in processes]
        for name, process, text in zip((sender, receiver), processes, texts):
            self.assertEqual(process.returncode, 0, "\n".join(texts))
            self.assertIn(f"case {name} done", text)
        return texts

    def test_hook_of_the_wheel_loads_the_library(self):
        for text in self.run_pair("sender", "receiver"):
            self.assertNotIn("cudaIpc", text)

    def test_library_is_preloaded(self):
        self.run_pair("sender", "receiver", LD_PRELOAD=str(self.library))

    def test_allocation_handles_are_exported(self):
        self.run_pair("page_sender", "page_receiver")

    def test_driver_rejects_the_call_without_the_library(self):
        text = self.run_case("alone", self.extension)
        self.assertNotIn("cudaIpc", text)

    def test_non_exportable_memory_is_rejected(self):
        text = self.run_case("not_exportable", self.extension, XSEG_ALLOC_CONF="exportable:False")
        self.assertRegex(text, r"(?m)^xseg: cudaIpcGetMemHandle: .*exportable")

    def test_classic_segments_are_exported_by_the_driver(self):
        self.run_case("classic", self.extension, XSEG_ALLOC_CONF="expandable_segments:False")


if __name__ == "__main__":
    backends.main(globals())
