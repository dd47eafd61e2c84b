# SPDX-License-Identifier: MIT
"""What the programs here find in place of an installation, and how they end.

Python imports this file first.  It reads xseg's .pth file, as Python does by itself once the wheel is installed.

It lets the threads of PyTorch's autograd come to rest before Python ends.  Such a thread drops what it holds after backward() has returned, and takes Python's lock for that.  Up to 3.13
Python ends a thread that asks for its lock while it finalizes, by unwinding the stack, and the thread is in
a destructor: the process aborts.  A short program meets that in one run of three, whatever its allocator.
"""
import atexit
import pathlib
import site
import time

ADAPTER = pathlib.Path(__file__).resolve().parents[3] / "src/adapters/python"


def resting(folder):
    """How often a thread has waited, or None while it runs.  One that waits for Python's lock wakes every 5 ms."""
    status = (folder / "status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields["voluntary_ctxt_switches"] if fields["State"].startswith("S") else None


def threads():
    """The state of every thread of autograd, by number."""
    found = {}
    for folder in pathlib.Path("/proc/self/task").iterdir():
        try:
            if (folder / "comm").read_text().startswith("pt_autograd"):
                found[folder.name] = resting(folder)
        except OSError:
            pass
    return found


def settle():
    """Return once all of them have waited for 60 ms without waking."""
    before, quiet = threads(), 0
    while before and quiet < 3:
        time.sleep(0.02)
        now = threads()
        quiet = quiet + 1 if now == before and None not in now.values() else 0
        before = now


atexit.register(settle)
site.addsitedir(str(ADAPTER))
