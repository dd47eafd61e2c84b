# SPDX-License-Identifier: MIT
"""A process sends tensors to another by torch.multiprocessing: small and large tensors, a part, and the same tensor again."""
import torch
import torch.multiprocessing as mp
from recorder import Recorder


def consume(requests, replies):
    """The receiver: records the tensors of each request, releases them, and replies."""
    recorder = Recorder()
    while (message := requests.get()) is not None:
        name, tensors = message
        recorder.step(f"received {name}", *tensors)
        recorder.record(f"device of {name}", sorted({str(tensor.device) for tensor in tensors}))
        local = torch.zeros(1 << 18, device="cuda")
        local.copy_(tensors[0].flatten()[: 1 << 18].expand(1 << 18) if tensors[0].numel() == 1 else local)
        del tensors, message
        replies.put(name)
    torch.cuda.synchronize()
    recorder.step("all released")
    replies.put(recorder.report())


def main():
    recorder = Recorder()
    context = mp.get_context("spawn")
    requests, replies = context.SimpleQueue(), context.SimpleQueue()
    receiver = context.Process(target=consume, args=(requests, replies))
    receiver.start()
    base = torch.zeros(6 << 20, device="cuda")
    for name, tensors in (("small", [torch.zeros(1, device="cuda"), torch.zeros(1000, device="cuda")]),
                          ("large", [base, torch.zeros(3 << 20, device="cuda")]),
                          ("part", [base[1 << 20: 2 << 20]]),
                          ("again", [base])):
        requests.put((name, tensors))
        recorder.record(f"reply to {name}", replies.get())
        recorder.step(f"sent {name}", *tensors)
    requests.put(None)
    recorder.record("receiver", replies.get())
    receiver.join()
    recorder.record("exit status", receiver.exitcode)
    del base, tensors
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    recorder.step("emptied")
    recorder.print()


if __name__ == "__main__":
    main()
