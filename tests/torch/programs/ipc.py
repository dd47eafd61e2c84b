# SPDX-License-Identifier: MIT
"""Two processes hand each other tensors by torch.multiprocessing: whole ones, parts, one of each pool."""
import torch
import torch.multiprocessing as mp
from figures import Figures


def consume(given, answers):
    """The other process: looks at what comes, answers, lets go."""
    figures = Figures()
    while (message := given.get()) is not None:
        name, tensors = message
        figures.step(f"given {name}", *tensors)
        figures.note(f"device of {name}", sorted({str(tensor.device) for tensor in tensors}))
        own = torch.zeros(1 << 18, device="cuda")
        own.copy_(tensors[0].flatten()[: 1 << 18].expand(1 << 18) if tensors[0].numel() == 1 else own)
        del tensors, message
        answers.put(name)
    torch.cuda.synchronize()
    figures.step("all gone")
    answers.put(figures.report())


def main():
    figures = Figures()
    context = mp.get_context("spawn")
    given, answers = context.SimpleQueue(), context.SimpleQueue()
    other = context.Process(target=consume, args=(given, answers))
    other.start()
    base = torch.zeros(6 << 20, device="cuda")
    for name, tensors in (("small", [torch.zeros(1, device="cuda"), torch.zeros(1000, device="cuda")]),
                          ("large", [base, torch.zeros(3 << 20, device="cuda")]),
                          ("part", [base[1 << 20: 2 << 20]]),
                          ("again", [base])):
        given.put((name, tensors))
        figures.note(f"answer to {name}", answers.get())
        figures.step(f"gave {name}", *tensors)
    given.put(None)
    figures.note("other", answers.get())
    other.join()
    figures.note("ended with", other.exitcode)
    del base, tensors
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    figures.step("emptied")
    figures.print()


if __name__ == "__main__":
    main()
