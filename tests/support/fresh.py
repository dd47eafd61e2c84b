# SPDX-License-Identifier: MIT
"""Compare with PyTorch's own allocator on fresh random programmes, by hand.

fresh.py XSEG MAKER [SEED [ROUNDS]]

XSEG is the command line tool.  MAKER makes tapes: `MAKER tape SEED OPERATIONS KIND` prints the random
programme of a seed with PyTorch's statistics after each step, under the configuration in
PYTORCH_CUDA_ALLOC_CONF; KIND is letters: m mixed sizes, s small, b big, x several streams, g graph
captures, p private pools, e empty_cache often.

PyTorch's answer to one programme is not always the same: the order in which it takes back the blocks
that a capture deferred hangs on where its heap put their records, which shows in the totals and peaks of
inactive_split.  So a programme that disagrees is answered 24 times, and then compared without the
lines in which the answers differ from each other; these programmes are counted.
"""
import os
import subprocess
import sys
import tempfile

OPERATIONS = 3000
ANSWERS = 24
PROGRAMMES = [
    ("m", "expandable_segments:False"),
    ("se", "expandable_segments:False"),
    ("be", "expandable_segments:False"),
    ("mx", "expandable_segments:False"),
    ("mgx", "expandable_segments:False"),
    ("sgx", "expandable_segments:False"),
    ("mp", "expandable_segments:False"),
    ("me", "max_split_size_mb:24"),
    ("m", "roundup_power2_divisions:8"),
    ("m", "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"),
    ("me", "large_segment_size_mb:64"),
    ("mgx", "graph_capture_record_stream_reuse:True"),
    ("sgxe", "graph_capture_record_stream_reuse:True"),
    ("me", "expandable_segments:True"),
    ("se", "expandable_segments:True"),
    ("be", "expandable_segments:True"),
    ("mxe", "expandable_segments:True"),
    ("mgxe", "expandable_segments:True"),
    ("bgx", "expandable_segments:True"),
    ("mpe", "expandable_segments:True"),
    ("bpx", "expandable_segments:True"),
    ("m", "expandable_segments:True,roundup_power2_divisions:4"),
    ("me", "expandable_segments:True,max_split_size_mb:24"),
    ("mgxe", "expandable_segments:True,max_split_size_mb:24"),
    ("me", "expandable_segments:True,large_segment_size_mb:64"),
    ("mgxe", "expandable_segments:True,graph_capture_record_stream_reuse:True"),
    ("sgx", "expandable_segments:True,graph_capture_record_stream_reuse:True"),
]


def answer(maker, seed, kind, config):
    """The programme of a seed with the reference's answers, by lines."""
    return subprocess.run([maker, "tape", str(seed), str(OPERATIONS), kind], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=config)).stdout.splitlines()


def complaint(xseg, lines, tape):
    """What xseg says to a tape that it does not agree with; None if it agrees."""
    with open(tape, "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")
    done = subprocess.run([xseg, "replay", "--check", tape], capture_output=True, text=True,
                          check=False)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]


def ran_short(lines):
    """Whether memory ran short: then xseg may do better, and nothing is compared."""
    return any(line.startswith(("s num_alloc_retries ", "s num_ooms ")) and not line.endswith(" 0")
               for line in lines)


def repeated(answers):
    """The lines that are the same in all answers; only statistics may differ."""
    lines = [line[0] if len(set(line)) == 1 else None for line in zip(*answers, strict=True)]
    assert all(lines[at] or answers[0][at].startswith("s ") for at in range(len(lines)))
    return [line for line in lines if line is not None]


def main(xseg, maker, seed="1", rounds="12"):
    """Every programme under every configuration, with a seed of its own."""
    count = again = short = 0
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        tape = os.path.join(folder, "fresh.tape")
        for _ in range(int(rounds)):
            for kind, config in PROGRAMMES:
                number = int(seed) + count
                count += 1
                lines = answer(maker, number, kind, config)
                short += ran_short(lines)
                problem = None if ran_short(lines) else complaint(xseg, lines, tape)
                if problem:
                    others = [answer(maker, number, kind, config) for _ in range(ANSWERS - 1)]
                    kept = repeated([lines] + others)
                    differs = len(kept) < len(lines)
                    if differs:
                        problem = complaint(xseg, kept, tape)
                    again += differs and not problem
                if problem:
                    bad.append(f"seed {number}, {kind}, {config}: {problem}")
    print(f"{count} programmes of {OPERATIONS} operations: {count - short - len(bad)} of "
          f"{count - short} without shortage agree, "
          f"{again} of them but for lines in which the reference differs from itself")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
