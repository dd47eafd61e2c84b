# SPDX-License-Identifier: MIT
"""Runs a program on the allocator that the environment selects, xseg with XSEG_TORCH=1, after a line "backend NAME":
on_backend.py PROGRAM [ARGS...]."""
import os
import runpy
import sys

import torch

if os.environ.get("XSEG_TORCH") == "1":
    import xseg.torch  # noqa: F401 pylint: disable=unused-import

print("backend", torch.cuda.get_allocator_backend(), flush=True)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
