# SPDX-License-Identifier: MIT
"""Programs that disable expandable segments at run time, as verl and vLLM do: toggles.py DRIVER.

With XSEG_TORCH_KEEP_EXPANDABLE=1 the change has no effect if the library serves IPC of expandable memory.
"""
import re
import sys

import backends

if backends.IS_CASE:
    import torch
    from tensors import MIB, byte_tensor, expect, expect_error

CLASSIC, EXPANDABLE = "expandable_segments:False", "expandable_segments:True"


# --- Cases, which run in the processes. ---

def set_settings(text):
    torch._C._accelerator_setAllocatorSettings(text)


def read_settings():
    """The settings that a program can read: the string, and the string and the value in a snapshot."""
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return torch._C._accelerator_getAllocatorSettings(), settings["PYTORCH_CUDA_ALLOC_CONF"], settings["expandable_segments"]


def is_expandable(tensor):
    return next(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()
                if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"])


def expect_settings(text, value):
    expect(read_settings() == (text, text, value), read_settings())


def case_kept():
    torch.cuda.init()
    expect_settings(EXPANDABLE, True)
    for text in (CLASSIC, " expandable_segments : False ", f"max_split_size_mb:64,{CLASSIC}", f"{CLASSIC},max_split_size_mb:64"):
        set_settings(text)
        expect_settings(text, False)
        expect(is_expandable(byte_tensor(100)), "new memory is expandable")
        expect(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == (64 * MIB if "64" in text else -1),
               "other keys have an effect")
    expect_error(ValueError, "max_split_size_mb", set_settings, f"{CLASSIC},max_split_size_mb:x")
    expect_settings(text, False)
    set_settings(EXPANDABLE)
    expect_settings(EXPANDABLE, True)
    set_settings("max_split_size_mb:64")
    expect_settings("max_split_size_mb:64", True)


def case_changed():
    """The string of the program has an effect if XSEG_TORCH_KEEP_EXPANDABLE has none."""
    torch.cuda.init()
    set_settings(CLASSIC)
    expect_settings(CLASSIC, False)
    expect(not is_expandable(byte_tensor(100)), "new memory is classic")
    set_settings(EXPANDABLE)
    expect(is_expandable(byte_tensor(200)), "new memory is expandable")


def case_before():
    """Before CUDA is initialized, a string is part of the start configuration."""
    set_settings(CLASSIC)
    expect(not is_expandable(byte_tensor(100)), "classic")


def case_restored():
    """Reads the string, replaces one value, and restores the string, as vLLM does."""
    set_settings(f"max_split_size_mb:64,{EXPANDABLE}")
    torch.cuda.init()
    before = read_settings()
    for _ in range(2):
        settings = read_settings()[1]
        set_settings(settings.replace(EXPANDABLE, CLASSIC))
        expect(not read_settings()[2], "the program sees that its setting is in effect")
        expect(is_expandable(byte_tensor(100)), "new memory is expandable")
        set_settings(settings)
        expect(read_settings() == before, read_settings())


def case_sync():
    """Rounds of training and weight sync, as in verl; prints the largest amount of reserved memory."""
    weights = [byte_tensor(30) for _ in range(20)]
    for size in range(4):
        activations = [byte_tensor(90 + 30 * size) for _ in range(6)]
        del activations
        set_settings(CLASSIC)
        torch.cuda.empty_cache()
        for width in (1, 2, 3, 4, 6):  # buffers of a growing number of gathered tensors
            buffer = byte_tensor(30 * width + 6 * size)
            del buffer
        set_settings(EXPANDABLE)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    print("reserved", stats["reserved_bytes.all.peak"] // MIB, torch.cuda.memory_reserved() // MIB,
          "allocated", stats["allocated_bytes.all.peak"] // MIB, len(weights))


# --- The tests. ---

KEEP = {"XSEG_TORCH_KEEP_EXPANDABLE": "1"}


class Toggles(backends.CaseTest):
    # With a variable of Python itself, the process is started and not forked, so torch is loaded after libxseg-ipc.so.
    environment = {"PYTHONHASHSEED": "0"}

    def test_kept_segments_ignore_the_toggle(self):
        self.run_case("kept", **KEEP)

    def test_settings_are_restored(self):
        self.run_case("restored", **KEEP)

    def test_toggle_has_an_effect_by_default(self):
        self.run_case("changed")
        self.assertNotIn("KEEP_EXPANDABLE", self.run_case("changed", XSEG_TORCH_KEEP_EXPANDABLE="0"))
        text = self.run_case("changed", XSEG_TORCH_KEEP_EXPANDABLE="yes")
        self.assertEqual(text.count("ignoring XSEG_TORCH_KEEP_EXPANDABLE: unknown value, 'yes'; set 1"), 1, text)
        self.run_case("changed", XSEG_ALLOC_CONF="exportable:False", **KEEP)
        self.run_case("before", **KEEP)

    def test_kept_segments_reserve_less_in_weight_sync(self):
        def reserved(**variables):
            return list(map(int, re.findall(r"\d+", re.search(r"reserved .*", self.run_case("sync", **variables))[0])))

        kept, changed = reserved(**KEEP), reserved()
        print("kept", kept, "changed", changed)
        self.assertEqual(kept[2:], changed[2:])
        self.assertLess(kept[0], changed[0])


if __name__ == "__main__":
    backends.main(globals())
