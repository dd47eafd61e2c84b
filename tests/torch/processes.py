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
TIMEOUT_SECONDS = 120  # longer than a step on a busy host


def section(title):
    return re.search(rf"^### {title}\n(.*?)(?=^##)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]


def settings_strings(text):
    return re.findall(r'XSEG_ALLOC_CONF(?:=|, value: ")([^\s"]+)', text)


def functions(title):
    """The functions of the Python examples in a section of the page."""
    names = {"PAGE": 2 << 20, "xseg": sys.modules.get("xseg")}
    for block in re.findall(r"^```python\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE):
        exec(compile(block, title, "exec"), names)
    return types.SimpleNamespace(**names)


# --- Cases, which run in the processes. ---

def signal_step(step):
    pathlib.Path(sys.argv[2], step).touch()


def wait_for(step):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not pathlib.Path(sys.argv[2], step).exists():
        expect(time.monotonic() < deadline, f"the other process reaches: {step}")
        time.sleep(0.01)


def retry(function, *arguments):
    """Retries a call that runs out of memory: on a busy host, another process may take longer to release memory."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return function(*arguments)
        except (MemoryError, torch.OutOfMemoryError):
            if time.monotonic() > deadline:
                raise


def is_out_of_memory(mib):
    try:
        byte_tensor(mib)
    except torch.OutOfMemoryError:
        return True
    return False


def case_first_process():
    """Allocates most of the memory, frees it, and continues with less."""
    tensors = [byte_tensor(100) for _ in range(9)]
    signal_step("first process allocated")
    wait_for("second process out of memory")
    first = tensors.pop()
    tensors.clear()
    expect(torch.cuda.memory_reserved() >= 900 * MIB, "freed memory is cached")
    signal_step("first process freed")
    wait_for("second process allocated")
    expect(torch.cuda.memory_reserved() <= 424 * MIB, torch.cuda.memory_reserved())
    expect(retry(byte_tensor, 200).numel() == 200 * MIB and first.numel() == 100 * MIB, "the first process continues")
    signal_step("first process continued")
    wait_for("second process freed")
    expect(len([retry(byte_tensor, 80) for _ in range(9)]) == 9, "the first process regains its memory")


def case_second_process():
    """Runs out of memory while all memory is in use, then allocates memory that is idle in the first process, and frees it."""
    wait_for("first process allocated")
    expect(is_out_of_memory(400), "all memory is in use")
    signal_step("second process out of memory")
    wait_for("first process freed")
    held = retry(byte_tensor, 600)
    signal_step("second process allocated")
    wait_for("first process continued")
    expect(held.numel() == 600 * MIB, "the second process continues")
    del held
    signal_step("second process freed")


def case_chat():
    """An engine with a share of 0.7 of the GPU, whose idle memory another engine uses temporarily."""
    run, cache = functions("Two inference engines"), xseg.torch.range(1024 * MIB)
    expect(run.grow(cache, 0, 450), "450 pages of 2 MiB are available")
    run.shrink(cache, 50, 400)
    signal_step("chat is idle")
    wait_for("batch is large")
    expect(not run.grow(cache, 50, 300), "the other engine uses the memory")
    signal_step("chat has waited")
    wait_for("batch has ended requests")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not run.grow(cache, 50, 300):
        expect(time.monotonic() < deadline, "the engine regains its share")


def case_batch():
    run, cache = functions("Two inference engines"), xseg.torch.range(1024 * MIB)
    wait_for("chat is idle")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not run.grow(cache, 0, 350):
        expect(time.monotonic() < deadline, "the engine uses idle memory")
    signal_step("batch is large")
    wait_for("chat has waited")
    run.shrink(cache, 150, 200)
    signal_step("batch has ended requests")


def case_rollout():
    run = functions("A trainer and a rollout engine")
    with xseg.torch.tag("cache"):
        cache = byte_tensor(700)
    address = cache.data_ptr()
    xseg.torch.pause("cache", keep="nothing")
    signal_step("rollout 0")
    for iteration in range(1, 4):
        wait_for(f"train {iteration}")
        expect(retry(run.generate, cache.data_ptr) == address, "the address is unchanged")
        signal_step(f"rollout {iteration}")


def case_train():
    for iteration in range(1, 4):
        wait_for(f"rollout {iteration - 1}")
        activations = [retry(byte_tensor, 100) for _ in range(9)]
        del activations
        expect(torch.cuda.memory_reserved() >= 900 * MIB, "freed memory is cached")
        signal_step(f"train {iteration}")


# --- The tests. ---

class Processes(backends.CaseTest):
    """Each test has two processes on one simulated GPU of 1 GiB."""

    def run_cases(self, *cases):
        with tempfile.TemporaryDirectory() as folder:
            simulator_name = f"torch-{os.getpid()}-{time.monotonic_ns()}"
            started = []
            for name, config in cases:
                # The test uses its own budget file, and a longer timeout for busy hosts.
                config = re.sub(r"budget_file:[^,]+", f"budget_file:{folder}/budget", config)
                config = re.sub(r",budget_wait_ms:\d+", "", config) + ",budget_wait_ms:4000"
                started.append((name, self.start_case(name, folder, XSEG_SIM_MEMORY_MB="1024", XSEG_SIM_SHARED=simulator_name,
                                                      XSEG_ALLOC_CONF=config)))
            for name, process in started:
                text, _ = process.communicate(timeout=500)
                self.assertEqual(process.returncode, 0, text)
                self.assertIn(f"case {name} done", text)
                self.assertNotIn("(not in effect", text)

    def test_process_uses_idle_memory_of_another_process(self):
        first, second = settings_strings(PAGE.read_text(encoding="utf-8"))[:2]
        self.run_cases(("first_process", second), ("second_process", first))

    def test_two_engines_share_a_gpu(self):
        chat, batch = settings_strings(section("Two inference engines"))
        self.run_cases(("chat", chat), ("batch", batch))

    def test_trainer_and_rollout_share_a_gpu(self):
        rollout, train = settings_strings(section("A trainer and a rollout engine"))
        self.run_cases(("rollout", rollout), ("train", train))

    def test_strings_of_the_page_are_valid(self):
        """All settings strings of the page are valid, and those for users and containers contain the path of a mounted folder."""
        page = PAGE.read_text(encoding="utf-8")
        self.assertGreaterEqual(len(settings_strings(page)), 8)
        for title in ("Users of one GPU, each with a notebook", "Containers, and time-slicing in Kubernetes"):
            self.assertEqual(len(settings_strings(section(title))), 1)
            self.assertTrue(settings_strings(section(title))[0].startswith("budget_file:/run/xseg/"))
        for config in settings_strings(page):
            # The folder does not exist, so the library prints a warning, and the program continues.
            text = self.run_case("one_tensor", "none",
                                 XSEG_ALLOC_CONF=re.sub("budget_file:[^,]+", "budget_file:/nowhere/budget", config))
            self.assertEqual(text.count("budget_file: shared budget file cannot be opened, \"/nowhere/budget\" ("), 1, text)

    def test_pytorch_rejects_keys_of_xseg(self):
        """PyTorch rejects keys that it does not know, so xseg has its own variable for its keys."""
        for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            process = self.start_case("one_tensor", "none", **{variable: "budget_file:none"})
            text, _ = process.communicate(timeout=500)
            self.assertNotEqual(process.returncode, 0, text)
            self.assertIn("budget_file", text)


def case_one_tensor():
    expect(byte_tensor(1).numel() == MIB, "the size of the tensor")


if __name__ == "__main__":
    backends.main(globals())
