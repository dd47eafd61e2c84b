# SPDX-License-Identifier: MIT
"""A reproducible training run: losses, weights and step times.

The last line is a JSON object.  Weights and data are generated on the host with a fixed seed; algorithms are
deterministic."""
import hashlib
import json
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required for deterministic matrix products

import torch  # pylint: disable=wrong-import-position

STEPS, WARMUP_STEPS, WIDTH, WORDS = 40, 10, 256, 512


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.query_key_value, self.project = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.query_key_value(self.before(x)).chunk(3, dim=-1)
        x = x + self.project(torch.softmax(query @ key.transpose(1, 2) / WIDTH ** 0.5, dim=-1) @ value)
        return x + self.narrow(torch.nn.functional.gelu(self.widen(self.between(x))))


def main():
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(torch.nn.Linear(WORDS, WIDTH), *(Layer() for _ in range(6)),
                                torch.nn.Linear(WIDTH, WORDS)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, wall_times, cpu_times = [], [], []
    for step in range(STEPS):
        # The steps have different lengths, so blocks of many sizes are allocated and freed.
        words = torch.randint(WORDS, (8, 64 + 16 * (step % 5)))
        inputs = torch.nn.functional.one_hot(words, WORDS).float().cuda()  # pylint: disable=not-callable
        targets = words.cuda().flatten()
        torch.cuda.synchronize()
        start, start_cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        wall_times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - start_cpu)
        losses.append(loss.item().hex())
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    stats = torch.cuda.memory_stats()
    print(json.dumps({"backend": torch.cuda.get_allocator_backend(),
        "notes": {"blocks": stats["allocation.all.allocated"], "peak": stats["allocated_bytes.all.peak"]},
        "computed": {"losses": losses, "weights": digest.hexdigest()},
        "step_ms": 1000 * statistics.median(wall_times[WARMUP_STEPS:]),
        "cpu_ms": 1000 * min(cpu_times[WARMUP_STEPS:]),}), flush=True)


if __name__ == "__main__":
    main()
