# SPDX-License-Identifier: MIT
"""Two other builds of the adapter with the installed PyTorch: for PyTorch before 2.15, which does not distinguish captures from
routes; and by Clang, which has no unique symbols, so that PyTorch's settings are in its library and not in the adapter.

older.py DRIVER
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import backends

# The weights, the outside tensor and the output have 20 MiB each.  empty_cache() releases the outside tensor within a tag,
# and during a capture only after its end.
PROGRAM = """
import os
import torch
os.environ["XDG_CACHE_HOME"] = {folder!r}
import xseg.torch

def reserved():
    return torch.cuda.memory_reserved() >> 20

outside = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
with xseg.torch.tag("weights"):
    inside = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    del outside
    torch.cuda.empty_cache()
    print("tag", reserved())
outside = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    output = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    del outside
    torch.cuda.empty_cache()
    print("capture", reserved())
graph.replay()
torch.cuda.empty_cache()
print("replay", reserved())
del graph, output
torch.cuda.empty_cache()
print("end", reserved())
"""


SETTINGS = """
import os
import torch
os.environ["XDG_CACHE_HOME"] = {folder!r}
import xseg.torch

print(torch.arange(1000).pin_memory().to("cuda").numel(), len(torch.cuda.memory._snapshot()["segments"]))
torch._C._accelerator_setAllocatorSettings("backend:native,pinned_num_register_threads:2")
print(torch.cuda.memory._snapshot()["allocator_settings"]["pinned_num_register_threads"])
try:
    torch._C._accelerator_setAllocatorSettings("backend:cudaMallocAsync")
except RuntimeError as error:
    print("cudaMallocAsync != native" in str(error))
"""


def run(program, compiler, **variables):
    environment = {**backends.environment_without("PYTORCH_", "XSEG_ALLOC", "XSEG_SIM", "XSEG_TORCH", "XSEG_DRIVER", "CXX"),
                   "PYTHONPATH": str(backends.ADAPTER), "CXX": compiler, **variables}
    environment.setdefault("XSEG_LIBRARY", str(pathlib.Path(sys.argv[1]).parent / "libxseg.so"))
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run([sys.executable, backends.ENVIRONMENT, "--offline", "--driver", sys.argv[1], "run", "python",
                                  "-c", program.format(folder=folder)],
                                 env=environment, capture_output=True, text=True, check=False)
    print(process.stdout, process.stderr)
    return process.stdout.split()


def main():
    backends.require(sys.argv[1], needs_adapter=True)
    is_correct = run(PROGRAM, "c++ -DXSEG_TORCH_WITHOUT_MARKS") == "tag 20 capture 60 replay 40 end 20".split()
    if shutil.which("clang++"):
        is_correct &= run(SETTINGS, "clang++", PYTORCH_CUDA_ALLOC_CONF="backend:native") == "1000 1 2 True".split()
    return 0 if is_correct else 1


if __name__ == "__main__":
    sys.exit(main())
