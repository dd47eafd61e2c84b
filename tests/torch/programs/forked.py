# SPDX-License-Identifier: MIT
"""Forks while CUDA is in use, after which the child fails and the parent continues; and forks before CUDA is in use."""
import gc
import json
import os
import sys

import torch
from recorder import Recorder


def in_child(function):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, json.dumps(function()).encode())
            status = 0
        except BaseException as error:  # noqa: BLE001
            print(repr(error), file=sys.stderr)
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return {"result": json.loads(text or "null"), "status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def allocate():
    recorder = Recorder()
    tensors = [torch.zeros(1 << 20, device="cuda") for _ in range(5)]
    recorder.step("child", *tensors)
    return recorder.report()


def allocation_error():
    try:
        torch.zeros(10, device="cuda")
        result = "no error"
    except RuntimeError as error:
        result = str(error).split(".")[0]
    held.clear()
    gc.collect()
    return result


def initialized():
    """Whether CUDA is initialized in a child that does not use it."""
    return [torch.cuda.is_initialized(), torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0]


recorder = Recorder()
recorder.record("before CUDA", in_child(allocate))
held = [torch.zeros(size, device="cuda") for size in (100, 1 << 20, 6 << 20)]
recorder.step("parent", *held)
recorder.record("allocation error", in_child(allocation_error))
recorder.record("initialized", in_child(initialized))
recorder.step("parent after the forks", *held)
held.append(torch.zeros(7 << 20, device="cuda"))
del held[1]
torch.cuda.empty_cache()
recorder.step("parent continues", *held)
recorder.print()
