# SPDX-License-Identifier: MIT
"""Creates train, generate, short, early, late and steps.pickle.zst of this folder.

record.py FOLDER, which requires PyTorch with a CUDA device.

PyTorch's own allocator records programs of tests/torch/programs.  `short` is `generate` with too little memory: its snapshot is
written on the out-of-memory error.  `early` and `late` are from one run of leak.py, and `steps` is from steps.py, with every
optional kind of entry.  peaks.json receives the peaks of PyTorch's statistics.
"""
import json
import os
import pathlib
import pickle
import re
import runpy
import subprocess
import sys

from generate import write_compressed

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE.parent.parent / "torch/programs"
# Name: program, configuration, limit of device memory in bytes.
KINDS = {
    "train": ("train_step", "expandable_segments:False", None),
    "generate": ("generate", "expandable_segments:False", None),
    "short": ("generate", "expandable_segments:False", 156 << 20),
}


def without_folders(snapshot):
    """Remove the folders from the file names of frames; the path of a library begins with /lib/python3."""
    for entries in snapshot["device_traces"] + [snapshot[key] for key in ("segments", "host_segments", "host_traces")]:
        for entry in entries:
            for block in [entry, *entry.get("blocks", [])]:
                for frame in block.get("frames", []):
                    frame["filename"] = re.search(r"/lib/python3.*|[^/]*$", frame["filename"])[0]
    return snapshot


def run(torch, program):
    """Execute a program; returns whether it ran out of memory."""
    sys.path.insert(0, str(PROGRAMS))
    try:
        runpy.run_path(str(PROGRAMS / f"{program}.py"))
        return False
    except torch.OutOfMemoryError:
        return True


def record_program(name, folder):
    """Record a program; returns its peaks.  Each program runs in a separate process."""
    import torch  # pylint: disable=import-outside-toplevel

    program, _, limit = KINDS[name]
    raw = folder / "raw"
    torch.cuda.memory._record_memory_history("all", "all", "python", 1 << 20)
    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: torch.cuda.memory._dump_snapshot(str(raw)))
    is_short = run(torch, program)
    if is_short != (limit is not None):
        raise SystemExit(f"{name}: out of memory: {is_short}, expected {limit is not None}")
    if limit is None:
        torch.cuda.memory._dump_snapshot(str(raw))
    write_compressed(folder / f"{name}.pickle.zst", pickle.dumps(without_folders(pickle.loads(raw.read_bytes()))))
    raw.unlink()
    stats = torch.cuda.memory_stats()
    return {key: stats[f"{key}_bytes.all.peak"] for key in ("requested", "allocated", "active", "reserved")}


def record_local_program(folder, program, **options):
    """Record a program of this folder, which calls snapshot()."""
    import torch  # pylint: disable=import-outside-toplevel

    def snapshot(name):
        torch.cuda.memory._dump_snapshot(str(folder / "raw"))
        contents = without_folders(pickle.loads((folder / "raw").read_bytes()))
        write_compressed(folder / f"{name}.pickle.zst", pickle.dumps(contents))
        (folder / "raw").unlink()

    torch.cuda.memory._record_memory_history("all", "all", "python", 1 << 20, **options)
    runpy.run_path(str(HERE / f"{program}.py"), {"snapshot": snapshot})


def main():
    """Record a program of the command line, or each program in a subprocess."""
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2 and sys.argv[2] == "leak":
        record_local_program(folder, "leak")
        return
    if len(sys.argv) > 2 and sys.argv[2] == "steps":
        record_local_program(folder, "steps", compile_context=True, global_record_annotations=True,
                             record_pinned_host_memory=True)
        return
    if len(sys.argv) > 2:
        print("\n" + json.dumps(record_program(sys.argv[2], folder)))
        return
    peaks = json.loads((folder / "peaks.json").read_text(encoding="utf-8"))
    for kind, (_, config, _) in KINDS.items():
        output = subprocess.run([sys.executable, __file__, str(folder), kind], check=True, stdout=subprocess.PIPE,
                                env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": config}).stdout
        peaks[kind] = json.loads(output.splitlines()[-1])
    for program in ("leak", "steps"):
        subprocess.run([sys.executable, __file__, str(folder), program], check=True,
                       env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    (folder / "peaks.json").write_text(json.dumps(peaks, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
