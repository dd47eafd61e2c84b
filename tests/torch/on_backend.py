# SPDX-License-Identifier: MIT
"""Runs a PyTorch program on the allocator that the environment selects, and prints its name.

on_backend.py PROGRAM [ARGS...]; XSEG_TORCH=1 selects xseg.  The first line is "backend NAME".
"""
import os
import runpy
import sys

if os.environ.get("XSEG_TORCH") == "1":
    import _xseg_torch_hook  # noqa: F401 pylint: disable=unused-import
import torch

if os.environ.get("XSEG_TORCH") == "1":
    import xseg.torch  # noqa: F401 pylint: disable=unused-import

print("backend", torch.cuda.get_allocator_backend(), flush=True)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
