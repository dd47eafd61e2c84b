# SPDX-License-Identifier: MIT
"""Graph trees without a compiler: functions are captured into one pool, in sequence and in branches that restore checkpoints."""
import gc

import torch
from torch._inductor import config
from torch._inductor.cudagraph_trees import cudagraphify_impl, get_manager, reset_cudagraph_trees
from recorder import Recorder

config.triton.cudagraph_trees = True
recorder = Recorder()
SETTINGS = {"device_index": 0, "is_backward": False, "is_inference": True}


def graphed(output_count, function):
    """A function as graphs of the tree.  Like a compiled function, it pops its arguments from a list."""
    def boxed(arguments):
        argument = arguments.pop()
        return function(argument)

    return cudagraphify_impl(boxed, [x], (), stack_traces=[None] * output_count, **SETTINGS)


def record_pool(name):
    """Records the statistics, and the segments and blocks of the pool of the tree."""
    recorder.step(name)
    manager = get_manager(0, create_if_none_exists=False)
    if manager is not None:
        pool = tuple(manager.cuda_graphs_thread_pool)
        segments = [segment for segment in torch.cuda.memory_snapshot() if tuple(segment["segment_pool_id"]) == pool]
        recorder.record(f"pool, {name}", sorted(
            [segment["total_size"], segment["allocated_size"], segment["active_size"],
             [[block["size"], block["state"]] for block in segment["blocks"]]] for segment in segments))


x = torch.zeros(1 << 20, device="cuda")
widen = graphed(2, lambda x: (torch.cat([x, x]), x + 1))
small = graphed(1, lambda x: (x[: 1 << 10] * 2,))
large = graphed(2, lambda x: (torch.cat([x, x, x]), x * 3))


def run(name, *functions):
    """Runs one path of the tree, from its root."""
    torch.compiler.cudagraph_mark_step_begin()
    argument, outputs = x, []
    for function in functions:
        outputs = function([argument])
        argument = outputs[0]
        record_pool(f"{name}, {len(outputs)} outputs")
    del outputs, argument


with torch.no_grad():
    for turn in range(3):
        run(f"turn {turn}, one branch", widen, small)
        run(f"turn {turn}, the other", widen, large, small)
        run(f"turn {turn}, another root", small)
    # A copy of an output outlives the change of branch.
    torch.compiler.cudagraph_mark_step_begin()
    held = widen([x])
    copy = held[1].clone()
    del held
    record_pool("copy of one output")
    run("after the copy", widen, large)
manager = get_manager(0, create_if_none_exists=False)
recorder.record("checkpoints restored", manager.debug_checkpointing_counter)
recorder.record("graphs", manager.new_graph_id().id)
del manager, widen, small, large, copy
reset_cudagraph_trees()
gc.collect()
torch.cuda.empty_cache()
record_pool("tree destroyed")
recorder.print()
