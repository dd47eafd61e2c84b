# SPDX-License-Identifier: MIT
"""Undoes the events of xseg's snapshots from the last one, each of which must be consistent: snapshots.py PROGRAM.

PROGRAM is tests/model/history.c, which writes a snapshot of each recorded state, and others while its threads run: with remaps,
pauses, decay, pools and captures, with rings that lose events, and without the first events if time or memory is insufficient.
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
    """Run the programs of some seeds, which write their snapshots."""
    process = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=500,
                          env={**os.environ, "XSEG_TEST_SNAPSHOTS": folder, "XSEG_TEST_SEED": str(seed),
                               "XSEG_TEST_SEEDS": str(seeds)})
    if process.returncode != 0:
        sys.exit(f"{program} ended with {process.returncode}:\n{process.stdout}")


def check(folder):
    """Undo the events of all files.  Returns the errors."""
    errors, causes, files, entries, partial, losing = [], set(), 0, 0, 0, 0
    for path in sorted(pathlib.Path(folder).iterdir()):
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        try:
            entries += rewind_snapshot.check(snapshot)
        except rewind_snapshot.Inconsistent as error:
            errors.append(f"{path.name}: {error}")
        devices = snapshot["xseg"]["devices"]
        causes |= {cause for device in devices for _, cause in device["causes"]}
        files += 1
        partial += any(device["left_out"] for device in devices)
        losing += any(device["lost"] for device in devices)
    print(f"{files} files, {entries} entries, {partial} without first events, {losing} of rings that lost events")
    if causes != CAUSES:
        errors.append(f"no snapshot has: {CAUSES - causes}")
    if min(files, entries // 100, 4 * partial, 4 * losing) < 50:
        errors.append("too few files, entries, partial snapshots or lost events")
    return errors


def main(program):
    """Run and check; returns the exit status."""
    if "MESON_EXE_WRAPPER" in os.environ:
        print("the mappings exceed the memory of an emulator (tests/fault/snapshot.c)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        play(program, folder, 30, 3)
        errors = check(folder)
    print("\n".join(errors))
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
