# SPDX-License-Identifier: MIT
"""PyTorch processes that share a GPU by a budget file, as in docs/sharing.md.

processes.py DRIVER; each test starts processes that run functions of this file, and synchronize by files in a folder.
"""
import os
import pathlib
import re
import sys
import tempfile
import time
import types

import backends

if backends.IS_CASE:
    import torch
    import xseg.torch
    from tensors import MIB, byte_tensor, expect

PAGE = backends.ROOT / "docs/sharing.md"
LONG = 120  # seconds that no step takes, however busy the machine is


def section(title):
    return re.search(rf"^### {title}\n(.*?)(?=^##)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]


def strings(text):
    return re.findall(r'XSEG_ALLOC_CONF(?:=|, value: ")([^\s"]+)', text)


def functions(title):
    names = {"PAGE": 2 << 20, "xseg": sys.modules.get("xseg")}
    for block in re.findall(r"^```python\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE):
        exec(compile(block, title, "exec"), names)
    return types.SimpleNamespace(**names)


# --- In the processes. ---

def say(step):
    pathlib.Path(sys.argv[2], step).touch()


def wait_for(step):
    until = time.monotonic() + LONG
    while not pathlib.Path(sys.argv[2], step).exists():
        expect(time.monotonic() < until, f"the other process has not come to {step}")
        time.sleep(0.01)


def get(function, *arguments):
    """What a call returns that is refused at first, perhaps: on a busy machine others may take longer to give."""
    until = time.monotonic() + LONG
    while True:
        try:
            return function(*arguments)
        except (MemoryError, torch.OutOfMemoryError):
            if time.monotonic() > until:
                raise


def refuses(mib):
    try:
        byte_tensor(mib)
    except torch.OutOfMemoryError:
        return True
    return False


def case_lender():
    """Has much, frees it, and works on with less."""
    held = [byte_tensor(100) for _ in range(9)]
    say("has much")
    wait_for("was refused")
    kept = held.pop()
    held.clear()
    expect(torch.cuda.memory_reserved() >= 900 * MIB, "PyTorch keeps it cached")
    say("has freed")
    wait_for("was served")
    expect(torch.cuda.memory_reserved() <= 424 * MIB, torch.cuda.memory_reserved())
    expect(get(byte_tensor, 200).numel() == 200 * MIB and kept.numel() == 100 * MIB, "goes on")
    say("lender goes on")
    wait_for("has returned")
    expect(len([get(byte_tensor, 80) for _ in range(9)]) == 9, "all comes back")


def case_borrower():
    """Is refused what is used, gets what is idle, and gives it back."""
    wait_for("has much")
    expect(refuses(400), "all is in use")
    say("was refused")
    wait_for("has freed")
    held = get(byte_tensor, 600)
    say("was served")
    wait_for("lender goes on")
    expect(held.numel() == 600 * MIB, "goes on")
    del held
    say("has returned")


def case_chat():
    """An engine with 0.7 of the card, which it lends for a while."""
    run, cache = functions("Two inference engines"), xseg.torch.range(1024 * MIB)
    expect(run.grow(cache, 0, 450), "all but a little is there")
    run.shrink(cache, 50, 400)
    say("chat is quiet")
    wait_for("batch is large")
    expect(not run.grow(cache, 50, 300), "the other one uses it")
    say("chat has waited")
    wait_for("batch has ended requests")
    until = time.monotonic() + LONG
    while not run.grow(cache, 50, 300):
        expect(time.monotonic() < until, "its 0.7 does not come back")


def case_batch():
    run, cache = functions("Two inference engines"), xseg.torch.range(1024 * MIB)
    wait_for("chat is quiet")
    until = time.monotonic() + LONG
    while not run.grow(cache, 0, 350):
        expect(time.monotonic() < until, "nothing is lent")
    say("batch is large")
    wait_for("chat has waited")
    run.shrink(cache, 150, 200)
    say("batch has ended requests")


def case_rollout():
    run = functions("A trainer and a rollout engine")
    with xseg.torch.tag("cache"):
        cache = byte_tensor(700)
    address = cache.data_ptr()
    xseg.torch.pause("cache", keep="nothing")
    say("rollout 0")
    for turn in range(1, 4):
        wait_for(f"train {turn}")
        expect(get(run.generate, cache.data_ptr) == address, "at the same address")
        say(f"rollout {turn}")


def case_train():
    for turn in range(1, 4):
        wait_for(f"rollout {turn - 1}")
        activations = [get(byte_tensor, 100) for _ in range(9)]
        del activations
        expect(torch.cuda.memory_reserved() >= 900 * MIB, "nothing was emptied")
        say(f"train {turn}")


# --- The tests. ---

class Processes(backends.CaseTest):
    """Each with two processes on one simulated GPU of 1 GiB."""

    def run_cases(self, *cases):
        with tempfile.TemporaryDirectory() as folder:
            machine = f"torch-{os.getpid()}-{time.monotonic_ns()}"
            started = []
            for name, config in cases:
                # A budget file of this test, and enough time for a busy host.
                config = re.sub(r"budget_file:[^,]+", f"budget_file:{folder}/budget", config)
                config = re.sub(r",budget_wait_ms:\d+", "", config) + ",budget_wait_ms:4000"
                started.append((name, self.start_case(name, folder, XSEG_SIM_MEMORY_MB="1024", XSEG_SIM_SHARED=machine,
                                                      XSEG_ALLOC_CONF=config)))
            for name, process in started:
                text, _ = process.communicate(timeout=500)
                self.assertEqual(process.returncode, 0, text)
                self.assertIn(f"case {name} done", text)
                self.assertNotIn("(not in effect", text)

    def test_the_first_example(self):
        first, second = strings(PAGE.read_text(encoding="utf-8"))[:2]
        self.run_cases(("lender", second), ("borrower", first))

    def test_engines(self):
        chat, batch = strings(section("Two inference engines"))
        self.run_cases(("chat", chat), ("batch", batch))

    def test_trainer(self):
        rollout, train = strings(section("A trainer and a rollout engine"))
        self.run_cases(("rollout", rollout), ("train", train))

    def test_configurations(self):
        """All strings of the page are ones, and all of users and containers name a path."""
        page = PAGE.read_text(encoding="utf-8")
        self.assertGreaterEqual(len(strings(page)), 8)
        for title in ("Users of one GPU, each with a notebook", "Containers, and time-slicing in Kubernetes"):
            self.assertEqual(len(strings(section(title))), 1)
            self.assertTrue(strings(section(title))[0].startswith("budget_file:/run/xseg/"))
        for config in strings(page):
            # The folder is missing here: a sentence, and the program goes on.
            text = self.run_case("one_tensor", "none",
                                 XSEG_ALLOC_CONF=re.sub("budget_file:[^,]+", "budget_file:/nowhere/budget", config))
            self.assertEqual(text.count("budget_file: shared budget file cannot be opened, \"/nowhere/budget\" ("), 1, text)

    def test_variables_of_pytorch(self):
        """PyTorch refuses keys that it does not know, which is why they stand in xseg's own variable."""
        for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            process = self.start_case("one_tensor", "none", **{variable: "budget_file:none"})
            text, _ = process.communicate(timeout=500)
            self.assertNotEqual(process.returncode, 0, text)
            self.assertIn("budget_file", text)


def case_one_tensor():
    expect(byte_tensor(1).numel() == MIB, "a tensor")


if __name__ == "__main__":
    backends.main(globals())
