# SPDX-License-Identifier: MIT
"""Plug-ins for inference engines, which load them by entry points of the wheel (docs/engines.md).

    vllm.general_plugins   xseg = xseg.engines.vllm:register
    sglang.srt.plugins     xseg = xseg.engines.sglang:register

In a process whose PyTorch does not run on xseg they change nothing.  The modules import neither torch nor an engine until then.
"""
import sys

#: Versions of the engines whose modules were tested.
TESTED = {"vllm": "0.33.0", "sglang": "0.5.23", "torch_memory_saver": "0.0.10"}


def is_used() -> bool:
    """Get whether PyTorch runs on xseg in this process."""
    return "xseg.torch" in sys.modules
