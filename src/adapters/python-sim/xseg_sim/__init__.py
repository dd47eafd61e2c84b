# SPDX-License-Identifier: MIT
"""The simulated CUDA driver of xseg, in the place of libcuda.so.1.

    import xseg_sim         # before anything that loads the driver
    import numba.cuda       # or xseg, cuda.bindings, ...: they find the simulator

The loader knows libraries by their soname: once this package is imported, whatever loads libcuda.so.1 by that name, in this
process, gets the simulator.  A program that it starts has to import xseg_sim itself.  Kernels compute nothing, and PyTorch
does not run: it needs NVIDIA's libraries beside the driver (docs/python.md has what to do).

Environment variables XSEG_SIM_* say what the machine is like; xseg/sim.h, which the package xseg has, lists them.
"""
import ctypes
import os
import pathlib

__all__ = ["library", "path"]


def path() -> str:
    """The path of the simulator; its soname is libcuda.so.1."""
    return str(pathlib.Path(__file__).resolve().parent / "lib/libcuda.so.1")


def _load() -> ctypes.CDLL:
    """Load the simulator, unless a driver is here already."""
    try:
        other = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        other = None
    if other is not None and not hasattr(other, "xseg_sim_reset"):
        raise ImportError("xseg_sim: a CUDA driver is already loaded in this process; import xseg_sim before other CUDA modules")
    return ctypes.CDLL(path(), mode=os.RTLD_NOW | os.RTLD_GLOBAL)


#: The simulator; functions of xseg/sim.h, such as xseg_sim_reset(), have no types here.
library = _load()
