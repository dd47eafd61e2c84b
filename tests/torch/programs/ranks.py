# SPDX-License-Identifier: MIT
"""Two ranks, each on its own device, train together over gloo: torchrun --standalone --nproc-per-node=2 ranks.py; rank 0 prints.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from recorder import Recorder

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(rank)
recorder = Recorder()
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for number in range(4):
    optimizer.zero_grad()
    output = model(torch.zeros(32 + 16 * rank, 512, device="cuda"))
    output.square().mean().backward()
    optimizer.step()
    recorder.step(f"step {number}", output)
gathered = [torch.empty(10, device="cuda") for _ in range(2)]
dist.all_gather(gathered, torch.zeros(10, device="cuda"))
recorder.step("gathered", *gathered)
total = torch.full((1000,), rank + 1.0).to(f"cuda:{rank}")
dist.all_reduce(total)
assert total[7].item() == 3.0
recorder.step("summed", total)
recorder.step("other device", device=1 - rank)
# A copy from one device to the other, not through host memory.
torch.zeros(1 << 20, device=f"cuda:{1 - rank}").copy_(torch.zeros(1 << 20, device="cuda"))
recorder.step("copied", device=1 - rank)
reports = [None, None]
dist.all_gather_object(reports, recorder.report())
if rank == 0:
    recorder.record("rank 1", reports[1])
    recorder.print()
dist.barrier()
dist.destroy_process_group()
