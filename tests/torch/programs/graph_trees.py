# SPDX-License-Identifier: MIT
"""Graph trees, made by hand: functions are captured into one pool, in sequence and in branches, which restore checkpoints of the pool.
"""
import gc

import torch
from torch._inductor import config
from torch._inductor.cudagraph_trees import cudagraphify_impl, get_manager, reset_cudagraph_trees
from figures import Figures

config.triton.cudagraph_trees = True
figures = Figures()
SETTINGS = {"device_index": 0, "is_backward": False, "is_inference": True}


def tracked(outputs, work):
    """A function with so many outputs in graphs; as compilers make it, it takes its arguments in a list that it empties."""
    def boxed(arguments):
        given = arguments.pop()
        return work(given)

    return cudagraphify_impl(boxed, [x], (), stack_traces=[None] * outputs, **SETTINGS)


def note(name):
    """The counts, and how the pool of the tree is divided."""
    figures.step(name)
    manager = get_manager(0, create_if_none_exists=False)
    if manager is not None:
        pool = tuple(manager.cuda_graphs_thread_pool)
        segments = [segment for segment in torch.cuda.memory_snapshot() if tuple(segment["segment_pool_id"]) == pool]
        figures.note(f"pool, {name}", sorted(
            [segment["total_size"], segment["allocated_size"], segment["active_size"],
             [[block["size"], block["state"]] for block in segment["blocks"]]] for segment in segments))


x = torch.zeros(1 << 20, device="cuda")
widen = tracked(2, lambda x: (torch.cat([x, x]), x + 1))
small = tracked(1, lambda x: (x[: 1 << 10] * 2,))
large = tracked(2, lambda x: (torch.cat([x, x, x]), x * 3))


def run(name, *functions):
    """One way through the tree, from its root."""
    torch.compiler.cudagraph_mark_step_begin()
    given, outputs = x, []
    for function in functions:
        outputs = function([given])
        given = outputs[0]
        note(f"{name}, {len(outputs)} of it")
    del outputs, given


with torch.no_grad():
    for turn in range(3):
        run(f"turn {turn}, one branch", widen, small)
        run(f"turn {turn}, the other", widen, large, small)
        run(f"turn {turn}, another root", small)
    # An output is held over the change of branch, and dies later.
    torch.compiler.cudagraph_mark_step_begin()
    held = widen([x])
    kept = held[1].clone()
    del held
    note("one output is kept")
    run("after it", widen, large)
manager = get_manager(0, create_if_none_exists=False)
figures.note("checkpoints restored", manager.debug_checkpointing_counter)
figures.note("graphs", manager.new_graph_id().id)
del manager, widen, small, large, kept
reset_cudagraph_trees()
gc.collect()
torch.cuda.empty_cache()
note("tree gone")
figures.print()
