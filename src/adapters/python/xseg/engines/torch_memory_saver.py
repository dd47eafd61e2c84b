# SPDX-License-Identifier: MIT
"""The module torch_memory_saver in a process whose PyTorch runs on xseg: the interface of that package, by tags."""
from xseg.torch.memory_saver import TorchMemorySaver, configure_subprocess, torch_memory_saver

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]
is_xseg = True  # pylint: disable=invalid-name
