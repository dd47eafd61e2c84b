# SPDX-License-Identifier: MIT
"""Compare with PyTorch's own allocator on fresh random programs, by hand.

compare_with_pytorch.py XSEG MAKER [SEED [ROUNDS]]

XSEG is the command line tool.  MAKER makes tapes: `MAKER tape SEED OPERATIONS KIND` prints the random
program of a seed with PyTorch's statistics after each step, under the configuration in
PYTORCH_CUDA_ALLOC_CONF, on a device with as many MiB as FAKECUDA_MEM_MB says; KIND is letters: m mixed
sizes, s small, b big, x several streams, g graph captures, p private pools, e empty_cache often.

In programs that run short of memory xseg may do better: it is to serve what PyTorch serves, and what
it does not is counted apart and fails nothing here.

PyTorch's answer to one program is not always the same: the order in which it takes back the blocks
that a capture deferred hangs on where its heap put their records, which shows in the totals and peaks of
inactive_split.  So a program that disagrees is answered up to 60 times: xseg agrees if it gives one of
the answers, and these programs are counted.  Where none of them is xseg's, the lines in which the
answers differ from each other are left out of the comparison, which is counted, too.
"""
import os
import subprocess
import sys
import tempfile

OPERATIONS = 3000
ANSWERS = 60
ROOMY = 81920
REUSE = "graph_capture_record_stream_reuse:True"
LIST = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"
# Kinds, memory of the device in MiB, configuration.
PROGRAMS = [(kind, memory, config) for kinds, memory, config in (
    ("m se be mx mgx sgx mp", ROOMY, "expandable_segments:False"),
    ("me", ROOMY, "max_split_size_mb:24"),
    ("bx", ROOMY, "max_split_size_mb:128"),
    ("m", ROOMY, "roundup_power2_divisions:8"),
    ("m b", ROOMY, LIST),
    ("me", ROOMY, "large_segment_size_mb:64"),
    ("be", ROOMY, "max_split_size_mb:80,large_segment_size_mb:64"),
    ("mgx sgxe", ROOMY, REUSE),
    ("me se be mxe mgxe bgx mpe bpx", ROOMY, "expandable_segments:True"),
    ("m", ROOMY, "expandable_segments:True,roundup_power2_divisions:4"),
    ("me mgxe", ROOMY, "expandable_segments:True,max_split_size_mb:24"),
    ("me", ROOMY, "expandable_segments:True,large_segment_size_mb:64"),
    ("mgxe sgx", ROOMY, "expandable_segments:True," + REUSE),
    ("m", 950, "expandable_segments:False"),
    ("mx", 1350, "expandable_segments:False"),
    ("m", 940, "expandable_segments:True"),
    ("mx", 900, "expandable_segments:True"),
    ("b", 14000, "expandable_segments:True"),
    ("mgx", 2000, "expandable_segments:True"),
    ("mx", ROOMY, "expandable_segments:True,per_process_memory_fraction:0.011"),
    ("bx", ROOMY, "per_process_memory_fraction:0.1,garbage_collection_threshold:0.3,"
                  "max_split_size_mb:100"),
) for kind in kinds.split()]


def answer(maker, seed, program):
    """The program of a seed with the reference's answers, by lines."""
    kind, memory, config = program
    return subprocess.run([maker, "tape", str(seed), str(OPERATIONS), kind], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=config,
                                   FAKECUDA_MEM_MB=str(memory))).stdout.splitlines()


def complaint(xseg, lines, tape, check="exact"):
    """What xseg says to a tape that it does not agree with; None if it agrees."""
    with open(tape, "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")
    done = subprocess.run([xseg, "replay", "--check=" + check, tape], capture_output=True, text=True,
                          check=False)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]


def ran_short(lines):
    """Whether memory ran short: then xseg may do better, and only a failure counts."""
    return any(line == "! oom" or
               (line.startswith(("s num_alloc_retries ", "s num_ooms ")) and not line.endswith(" 0"))
               for line in lines)


def repeated(answers):
    """The lines that are the same in all answers; only statistics may differ."""
    lines = [line[0] if len(set(line)) == 1 else None for line in zip(*answers, strict=True)]
    assert all(lines[at] or answers[0][at].startswith("s ") for at in range(len(lines)))
    return [line for line in lines if line is not None]


def judge(xseg, maker, seed, program, tape):
    """One of the keys of the tally, and a complaint or None."""
    answers = [answer(maker, seed, program)]
    if ran_short(answers[0]):
        return "short" if complaint(xseg, answers[0], tape, "floor") else "served", None
    first = complaint(xseg, answers[0], tape)
    if first is None:
        return "agree", None
    for _ in range(ANSWERS - 1):
        lines = answer(maker, seed, program)
        if lines not in answers:
            answers.append(lines)
            if complaint(xseg, lines, tape) is None:
                return "another", None
    if len(answers) > 1 and complaint(xseg, repeated(answers), tape) is None:
        return "repeated", None
    return "bad", f"seed {seed}, {', '.join(map(str, program))}: {first}"


def main(xseg, maker, seed="1", rounds="12"):
    """Every program under every configuration, with a seed of its own."""
    tally = dict.fromkeys(("agree", "another", "repeated", "bad", "served", "short"), 0)
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        tape = os.path.join(folder, "fresh.tape")
        for number in range(int(rounds) * len(PROGRAMS)):
            verdict, problem = judge(xseg, maker, int(seed) + number,
                                     PROGRAMS[number % len(PROGRAMS)], tape)
            tally[verdict] += 1
            bad += [problem] if problem else []
    agree = tally["agree"] + tally["another"] + tally["repeated"]
    short = tally["served"] + tally["short"]
    print(f"{sum(tally.values())} programs of {OPERATIONS} operations\n"
          f"{agree} of {agree + tally['bad']} without shortage agree, {tally['another']} of them "
          f"with an answer that the reference gives in other runs, {tally['repeated']} but for "
          f"lines in which it differs from itself\n"
          f"{short} ran short: {tally['served']} of them with no failure that the reference avoids")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
