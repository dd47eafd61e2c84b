# SPDX-License-Identifier: MIT
"""Each of our snapshots is taken back from its end, and never misses: snapshots.py PROGRAM.

PROGRAM is tests/model/history.c, which writes a snapshot at each checkpoint and one while its threads run: with steals,
pauses, decay, pools and captures, with rings that lose events, and with their beginning left out for want of time or room.
"""
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import rewind_snapshot  # noqa: E402  pylint: disable=wrong-import-position

CAUSES = {"remap", "decay", "trim", "pause", "resume"}


def play(program, folder, seed, seeds):
    """Let the programs of some seeds write their snapshots."""
    done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=500,
                          env={**os.environ, "XSEG_TEST_SNAPSHOTS": folder, "XSEG_TEST_SEED": str(seed),
                               "XSEG_TEST_SEEDS": str(seeds)})
    if done.returncode != 0:
        sys.exit(f"{program} ended with {done.returncode}:\n{done.stdout}")


def check(folder):
    """Take all files back.  Returns what is wrong."""
    wrong, causes, files, entries, partial, losing = [], set(), 0, 0, 0, 0
    for path in sorted(pathlib.Path(folder).iterdir()):
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        try:
            entries += rewind_snapshot.check(snapshot)
        except rewind_snapshot.Missed as missed:
            wrong.append(f"{path.name}: {missed}")
        devices = snapshot["xseg"]["devices"]
        causes |= {cause for device in devices for _, cause in device["causes"]}
        files += 1
        partial += any(device["left_out"] for device in devices)
        losing += any(device["lost"] for device in devices)
    print(f"{files} files, {entries} entries, {partial} without their beginning, {losing} of rings that lost events")
    if causes != CAUSES:
        wrong.append(f"no snapshot has: {CAUSES - causes}")
    if min(files, entries // 100, 4 * partial, 4 * losing) < 50:
        wrong.append("too little happened")
    return wrong


def main(program):
    """Play and check; the exit status."""
    if "MESON_EXE_WRAPPER" in os.environ:
        print("an emulator has no room for so many mappings (tests/fault/snapshot.c)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        play(program, folder, 30, 3)
        wrong = check(folder)
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
