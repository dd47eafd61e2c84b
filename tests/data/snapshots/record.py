# SPDX-License-Identifier: MIT
"""Makes train, generate, short, early, late and steps.pickle.zst of this folder: record.py FOLDER, where PyTorch finds a CUDA device.

Programs of tests/torch/programs run on PyTorch's own allocator, and it writes what happened.  `short` is `generate` with
less memory than it needs: the snapshot is of the moment when it ran out.  `early` and `late` are of one run of leak.py,
`steps` of steps.py, with all that PyTorch records on request.
peaks.json gets what PyTorch counted.
"""
import json
import os
import pathlib
import pickle
import re
import runpy
import subprocess
import sys

from generate import packed

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE.parent.parent / "torch/programs"
# Name: program, configuration, bytes of the device that it may take.
KINDS = {
    "train": ("train_step", "expandable_segments:False", None),
    "generate": ("generate", "expandable_segments:False", None),
    "short": ("generate", "expandable_segments:False", 156 << 20),
}


def without_folders(snapshot):
    """Frames name files: of a library from its folder on, of a program by its name.  Where they lay does not belong here."""
    for entries in snapshot["device_traces"] + [snapshot[key] for key in ("segments", "host_segments", "host_traces")]:
        for entry in entries:
            for block in [entry, *entry.get("blocks", [])]:
                for frame in block.get("frames", []):
                    found = re.search(r"/lib/python3.*|[^/]*$", frame["filename"])
                    frame["filename"] = found.group()
    return snapshot


def run(torch, program):
    """A program, until its end or until memory is short."""
    sys.path.insert(0, str(PROGRAMS))
    try:
        runpy.run_path(str(PROGRAMS / f"{program}.py"))
        return False
    except torch.OutOfMemoryError:
        return True


def make(name, folder):
    """One program, in a process of its own."""
    import torch  # pylint: disable=import-outside-toplevel

    program, _, limit = KINDS[name]
    raw = folder / "raw"
    torch.cuda.memory._record_memory_history("all", "all", "python", 1 << 20)
    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: torch.cuda.memory._dump_snapshot(str(raw)))
    is_short = run(torch, program)
    if is_short != (limit is not None):
        raise SystemExit(f"{name}: that memory was short is {is_short}")
    if limit is None:
        torch.cuda.memory._dump_snapshot(str(raw))
    packed(folder / f"{name}.pickle.zst", pickle.dumps(without_folders(pickle.loads(raw.read_bytes()))))
    raw.unlink()
    stats = torch.cuda.memory_stats()
    return {key: stats[f"{key}_bytes.all.peak"] for key in ("requested", "allocated", "active", "reserved")}


def make_others(folder, program, **more):
    """The snapshots of a program of this folder."""
    import torch  # pylint: disable=import-outside-toplevel

    def snapshot(name):
        torch.cuda.memory._dump_snapshot(str(folder / "raw"))
        packed(folder / f"{name}.pickle.zst", pickle.dumps(without_folders(pickle.loads((folder / "raw").read_bytes()))))
        (folder / "raw").unlink()

    torch.cuda.memory._record_memory_history("all", "all", "python", 1 << 20, **more)
    runpy.run_path(str(HERE / f"{program}.py"), {"snapshot": snapshot})


def main():
    """All of them."""
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2 and sys.argv[2] == "leak":
        make_others(folder, "leak")
        return
    if len(sys.argv) > 2 and sys.argv[2] == "steps":
        make_others(folder, "steps", compile_context=True, global_record_annotations=True, record_pinned_host_memory=True)
        return
    if len(sys.argv) > 2:
        print("\n" + json.dumps(make(sys.argv[2], folder)))
        return
    peaks = json.loads((folder / "peaks.json").read_text(encoding="utf-8"))
    for kind, (_, config, _) in KINDS.items():
        ran = subprocess.run([sys.executable, __file__, str(folder), kind], check=True,
                             env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": config}, stdout=subprocess.PIPE)
        peaks[kind] = json.loads(ran.stdout.splitlines()[-1])
    for program in ("leak", "steps"):
        subprocess.run([sys.executable, __file__, str(folder), program], check=True,
                       env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    (folder / "peaks.json").write_text(json.dumps(peaks, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
