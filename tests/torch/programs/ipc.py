# SPDX-License-Identifier: MIT
"""A process sends tensors to another by torch.multiprocessing: small and large tensors, a part, and the same tensor again."""
import torch
import torch.multiprocessing as mp
from figures import Figures


def consume(requests, replies):
    """The receiver: records the tensors of each request, releases them, and replies."""
    figures = Figures()
    while (message := requests.get()) is not None:
        name, tensors = message
        figures.step(f"received {name}", *tensors)
        figures.note(f"device of {name}", sorted({str(tensor.device) for tensor in tensors}))
        own = torch.zeros(1 << 18, device="cuda")
        own.copy_(tensors[0].flatten()[: 1 << 18].expand(1 << 18) if tensors[0].numel() == 1 else own)
        del tensors, message
        replies.put(name)
    torch.cuda.synchronize()
    figures.step("all released")
    replies.put(figures.report())


def main():
    figures = Figures()
    context = mp.get_context("spawn")
    requests, replies = context.SimpleQueue(), context.SimpleQueue()
    other = context.Process(target=consume, args=(requests, replies))
    other.start()
    base = torch.zeros(6 << 20, device="cuda")
    for name, tensors in (("small", [torch.zeros(1, device="cuda"), torch.zeros(1000, device="cuda")]),
                          ("large", [base, torch.zeros(3 << 20, device="cuda")]),
                          ("part", [base[1 << 20: 2 << 20]]),
                          ("again", [base])):
        requests.put((name, tensors))
        figures.note(f"reply to {name}", replies.get())
        figures.step(f"sent {name}", *tensors)
    requests.put(None)
    figures.note("other", replies.get())
    other.join()
    figures.note("exit status", other.exitcode)
    del base, tensors
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    figures.step("emptied")
    figures.print()


if __name__ == "__main__":
    main()
