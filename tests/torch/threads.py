# SPDX-License-Identifier: MIT
"""Concurrent threads in the adapter: they open the library once, and destructors that the adapter runs can wait for threads.

threads.py DRIVER; it runs itself with PyTorch as threads.py DRIVER FOLDER.
"""
import ctypes
import pathlib
import subprocess
import sys
import tempfile
import threading

import backends


def run_threads(folder):
    import torch
    import xseg.torch
    from xseg.torch import _build
    command = _build.command(folder, pathlib.Path(torch.__file__).resolve().parent, torch._C._GLIBCXX_USE_CXX11_ABI)
    command[command.index(str(folder / "src/adapters/torch/all.cpp"))] = str(backends.HERE / "threads.cpp")
    subprocess.run(command, check=True)
    library, opened, start = ctypes.CDLL(str(folder / "adapter.so")), set(), threading.Barrier(8)

    def init():
        start.wait()
        library.threads_init()
        opened.add(xseg.torch._ADAPTER.xseg_torch_library())

    threads = [threading.Thread(target=init) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.init()
    print("opened", len(opened), "destroyed", library.threads_destroy())


def main():
    driver = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        return run_threads(pathlib.Path(sys.argv[2]))
    backends.require(driver, needs_adapter=True)
    with tempfile.TemporaryDirectory() as folder:
        output = backends.finish(backends.start(driver, "xseg", __file__, driver, folder), "xseg")
    print(output)
    return 0 if "opened 1 destroyed 1" in output else 1


if __name__ == "__main__":
    sys.exit(main())
