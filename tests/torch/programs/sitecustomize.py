# SPDX-License-Identifier: MIT
"""Python imports this file first.  It reads xseg's .pth file, as an installation does, and waits for PyTorch's autograd threads before
the interpreter exits: such a thread acquires Python's lock in a destructor, and up to Python 3.13 the process then aborts."""
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
