# SPDX-License-Identifier: MIT
"""A PyTorch program with growing buffers.  With segments of a fixed size no buffer fits into the memory of an earlier one.

It prints:

    xseg: 580 MiB reserved for a peak of 576 MiB
    after empty_cache(): 0 MiB reserved

Without the import of xseg.torch, PyTorch's allocator reserves 2880 MiB with its default settings.
"""
import torch
import xseg.torch  # right after torch, before the first use of CUDA

for mib in range(64, 640, 64):
    buffer = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    del buffer
print(f"{torch.cuda.get_allocator_backend()}: {torch.cuda.memory_reserved() >> 20} MiB reserved "
      f"for a peak of {torch.cuda.max_memory_allocated() >> 20} MiB")
torch.cuda.empty_cache()
print(f"after empty_cache(): {torch.cuda.memory_reserved() >> 20} MiB reserved")
