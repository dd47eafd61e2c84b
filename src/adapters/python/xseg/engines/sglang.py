# SPDX-License-Identifier: MIT
"""The plug-in for SGLang: memory saver mode pauses tags of xseg.

SGLang imports the package torch_memory_saver by its name when torch_memory_saver_adapter.py is loaded.  With XSEG_TORCH=1 this import
finds xseg's implementation, because of the hook of the wheel.  The plug-in corrects an import that came before.
"""
import importlib
import sys

from xseg.engines import is_used

ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter"


def register() -> None:
    """Set up the process.  SGLang calls this function in each of its processes."""
    if not is_used():
        return
    saver = importlib.import_module("xseg.engines.torch_memory_saver")
    sys.modules["torch_memory_saver"] = saver
    adapter = sys.modules.get(ADAPTER)
    if adapter is not None:
        vars(adapter).update(torch_memory_saver=saver, _memory_saver=saver.torch_memory_saver, import_error=None)
