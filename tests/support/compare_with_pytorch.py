# SPDX-License-Identifier: MIT
"""Compares xseg with PyTorch's own allocator on new random programs.  No test runs this program.

compare_with_pytorch.py XSEG MAKER [SEED [ROUNDS]]

XSEG is the command line tool.  MAKER creates tapes: `MAKER tape SEED OPERATIONS KIND` prints the random program of a seed with
PyTorch's statistics after each step, with the configuration in PYTORCH_CUDA_ALLOC_CONF, on a device with FAKECUDA_MEM_MB MiB of
memory.  KIND consists of letters: m mixed sizes, s small, b big, x several streams, g graph captures, p private pools, e frequent
calls of empty_cache.

In programs that run out of memory, xseg may serve more requests than PyTorch.  Requests that only PyTorch serves are counted
separately and are not failures.

PyTorch's results for one program can vary: the order in which PyTorch frees the blocks that a capture deferred depends on host
addresses, and affects the totals and peaks of inactive_split.  Therefore a program that disagrees is executed up to 60 times, and
xseg agrees if it matches one of the results.  If it matches none, the lines that differ between the results are excluded from the
comparison.  The programs of both cases are counted.
"""
import os
import subprocess
import sys
import tempfile

OPERATIONS = 3000
RUNS = 60
LARGE = 81920
REUSE = "graph_capture_record_stream_reuse:True"
LIST = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"
# Kinds, memory of the device in MiB, configuration.
PROGRAMS = [(kind, memory, config) for kinds, memory, config in (
    ("m se be mx mgx sgx mp", LARGE, "expandable_segments:False"),
    ("me", LARGE, "max_split_size_mb:24"),
    ("bx", LARGE, "max_split_size_mb:128"),
    ("m", LARGE, "roundup_power2_divisions:8"),
    ("m b", LARGE, LIST),
    ("me", LARGE, "large_segment_size_mb:64"),
    ("be", LARGE, "max_split_size_mb:80,large_segment_size_mb:64"),
    ("mgx sgxe", LARGE, REUSE),
    ("me se be mxe mgxe bgx mpe bpx", LARGE, "expandable_segments:True"),
    ("m", LARGE, "expandable_segments:True,roundup_power2_divisions:4"),
    ("me mgxe", LARGE, "expandable_segments:True,max_split_size_mb:24"),
    ("me", LARGE, "expandable_segments:True,large_segment_size_mb:64"),
    ("mgxe sgx", LARGE, "expandable_segments:True," + REUSE),
    ("m", 950, "expandable_segments:False"),
    ("mx", 1350, "expandable_segments:False"),
    ("m", 940, "expandable_segments:True"),
    ("mx", 900, "expandable_segments:True"),
    ("b", 14000, "expandable_segments:True"),
    ("mgx", 2000, "expandable_segments:True"),
    ("mx", LARGE, "expandable_segments:True,per_process_memory_fraction:0.011"),
    ("bx", LARGE, "per_process_memory_fraction:0.1,garbage_collection_threshold:0.3,"
                  "max_split_size_mb:100"),
) for kind in kinds.split()]


def make_tape(maker, seed, program):
    """The lines of the tape of a seed, with the results of PyTorch."""
    kind, memory, config = program
    return subprocess.run([maker, "tape", str(seed), str(OPERATIONS), kind], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=config, FAKECUDA_MEM_MB=str(memory))).stdout.splitlines()


def compare(xseg, lines, tape, check="exact"):
    """The error that xseg prints for a tape, or None if the results agree."""
    with open(tape, "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")
    result = subprocess.run([xseg, "replay", "--check=" + check, tape], capture_output=True, text=True, check=False)
    return None if result.returncode == 0 else (result.stdout + result.stderr).strip().splitlines()[-1]


def ran_out_of_memory(lines):
    """Whether the program ran out of memory or released memory for a request."""
    return any(line == "! oom" or
               (line.startswith(("s num_alloc_retries ", "s num_ooms ")) and not line.endswith(" 0"))
               for line in lines)


def common_lines(tapes):
    """The lines that are equal in all tapes; only statistics may differ."""
    lines = [line[0] if len(set(line)) == 1 else None for line in zip(*tapes, strict=True)]
    assert all(line or first.startswith("s ") for line, first in zip(lines, tapes[0]))
    return [line for line in lines if line is not None]


def classify(xseg, maker, seed, program, tape):
    """One of the keys of the tally, and an error or None."""
    tapes = [make_tape(maker, seed, program)]
    if ran_out_of_memory(tapes[0]):
        return "denied" if compare(xseg, tapes[0], tape, "success") else "served", None
    error = compare(xseg, tapes[0], tape)
    if error is None:
        return "agree", None
    for _ in range(RUNS - 1):
        lines = make_tape(maker, seed, program)
        if lines not in tapes:
            tapes.append(lines)
            if compare(xseg, lines, tape) is None:
                return "varying", None
    if len(tapes) > 1 and compare(xseg, common_lines(tapes), tape) is None:
        return "common", None
    return "failed", f"seed {seed}, {', '.join(map(str, program))}: {error}"


def main(xseg, maker, seed="1", rounds="12"):
    """Compare every program with every configuration, each with another seed."""
    tally = dict.fromkeys(("agree", "varying", "common", "failed", "served", "denied"), 0)
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        tape = os.path.join(folder, "fresh.tape")
        for number in range(int(rounds) * len(PROGRAMS)):
            verdict, error = classify(xseg, maker, int(seed) + number, PROGRAMS[number % len(PROGRAMS)], tape)
            tally[verdict] += 1
            errors += [error] if error else []
    agree = tally["agree"] + tally["varying"] + tally["common"]
    out_of_memory = tally["served"] + tally["denied"]
    print(f"{sum(tally.values())} programs of {OPERATIONS} operations\n"
          f"{agree} of {agree + tally['failed']} with enough memory agree: {tally['varying']} of them "
          f"with the results of another run of PyTorch, {tally['common']} without the lines that vary between runs\n"
          f"{out_of_memory} ran out of memory: in {tally['served']} of them, xseg serves every request that PyTorch serves")
    print("\n".join(errors))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
