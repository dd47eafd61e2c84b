# SPDX-License-Identifier: MIT
"""The plug-in for vLLM: sleep mode pauses tags of xseg.

It replaces vllm.device_allocator.cumem.CuMemAllocator, and registers the sleep backend "xseg".  Both backends, "cumem" (the default of
vLLM) and "xseg", then use this allocator; "xseg" is an error in a process whose PyTorch does not run on xseg.
"""
import logging

from xseg.engines import is_used

BACKEND = "xseg"
logger = logging.getLogger("vllm.xseg")


def register() -> None:
    """Set up the process.  vLLM calls this function in each of its processes, possibly several times."""
    _register_backend()
    if not is_used():
        return
    try:
        from vllm.device_allocator import cumem  # pylint: disable=import-outside-toplevel,import-error
    except Exception as error:  # pylint: disable=broad-exception-caught
        # vLLM does not catch errors of plug-ins.
        logger.warning("xseg: sleep mode is not available, %s", error)
        return
    from xseg.engines._vllm_allocator import CuMemAllocator  # pylint: disable=import-outside-toplevel
    cumem.CuMemAllocator = CuMemAllocator
    cumem.cumem_available = True


def _register_backend() -> None:
    """Register the sleep backend by its name.  Versions of vLLM before 0.22 have no backends."""
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory  # pylint: disable=import-outside-toplevel,import-error
    except ImportError:
        return
    try:
        SleepModeBackendFactory.register_backend(BACKEND, "xseg.engines._vllm_backend", "XsegBackend")
    except ValueError:  # it is registered
        pass
