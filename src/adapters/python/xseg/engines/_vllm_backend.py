# SPDX-License-Identifier: MIT
"""The sleep backend "xseg" of vLLM, which imports this module when the backend is selected."""
import logging

from vllm.device_allocator.sleep_mode_backend import CuMemBackend  # pylint: disable=import-error

from xseg.engines import is_used

logger = logging.getLogger("vllm.xseg")


class XsegBackend(CuMemBackend):  # type: ignore[misc,no-any-unimported]
    """suspend(), resume() and discard() of vLLM's backend, with the allocator that the plug-in has set.

    Tags of xseg keep their addresses, so NCCL communicators and captured graphs stay valid, as with vLLM's backend.
    """

    @classmethod
    def is_supported(cls) -> bool:
        """Get whether PyTorch runs on xseg."""
        if not is_used():
            logger.error("xseg: sleep backend is not available, because PyTorch does not run on xseg; start vLLM by `xseg run`, or set "
                         "XSEG_TORCH=1")
        return is_used()
