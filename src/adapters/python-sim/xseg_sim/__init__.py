# SPDX-License-Identifier: MIT
"""The simulated CUDA driver of xseg, loaded as libcuda.so.1.

    import xseg_sim         # before modules that load the driver
    import numba.cuda       # or xseg, cuda.bindings, ...: they find the simulator

The dynamic loader identifies libraries by their soname.  After the import of this package, libcuda.so.1 in this process is the
simulator.  Child processes must import xseg_sim themselves.  Kernels compute nothing.  PyTorch does not run, because it also needs
NVIDIA's libraries (see docs/getting-started.md).

The environment variables XSEG_SIM_* configure the simulated host; xseg/sim.h of the package xseg documents them.
"""
import ctypes
import os
import pathlib

__all__ = ["library", "path"]


def path() -> str:
    """Get the path of the simulator, whose soname is libcuda.so.1."""
    return str(pathlib.Path(__file__).resolve().parent / "lib/libcuda.so.1")


def _load() -> ctypes.CDLL:
    """Load the simulator, unless the process has already loaded a driver."""
    try:
        loaded = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        loaded = None
    if loaded is not None and not hasattr(loaded, "xseg_sim_reset"):
        raise ImportError("xseg_sim: a CUDA driver is already loaded in this process; import xseg_sim before other CUDA modules")
    return ctypes.CDLL(path(), mode=os.RTLD_NOW | os.RTLD_GLOBAL)


#: The simulator; functions of xseg/sim.h, such as xseg_sim_reset(), have no types here.
library = _load()
