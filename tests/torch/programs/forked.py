# SPDX-License-Identifier: MIT
"""Forks while CUDA is in use, after which the child fails and the parent continues; and forks before CUDA is in use."""
import gc
import json
import os
import sys

import torch
from figures import Figures


def in_child(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, json.dumps(work()).encode())
            status = 0
        except BaseException as error:  # noqa: BLE001
            print(repr(error), file=sys.stderr)
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return {"result": json.loads(text or "null"), "status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def allocate():
    figures = Figures()
    tensors = [torch.zeros(1 << 20, device="cuda") for _ in range(5)]
    figures.step("child", *tensors)
    return figures.report()


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


figures = Figures()
figures.note("before CUDA", in_child(allocate))
held = [torch.zeros(size, device="cuda") for size in (100, 1 << 20, 6 << 20)]
figures.step("parent", *held)
figures.note("allocation error", in_child(allocation_error))
figures.note("initialized", in_child(initialized))
figures.step("parent after the forks", *held)
held.append(torch.zeros(7 << 20, device="cuda"))
del held[1]
torch.cuda.empty_cache()
figures.step("parent continues", *held)
figures.print()
