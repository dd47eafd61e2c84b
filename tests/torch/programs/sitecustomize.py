# SPDX-License-Identifier: MIT
"""Python imports this file first.  It reads xseg's .pth file, as an installation does, and waits for PyTorch's autograd
threads before the interpreter exits: such a thread acquires Python's lock in a destructor, and up to Python 3.13 the process
then aborts."""
import atexit
import pathlib
import site
import time

ADAPTER = pathlib.Path(__file__).resolve().parents[3] / "src/adapters/python"


def wait_count(folder):
    """The number of waits of a thread, or None while the thread runs.  A thread that waits for Python's lock wakes every 5 ms."""
    status = (folder / "status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields["voluntary_ctxt_switches"] if fields["State"].startswith("S") else None


def autograd_threads():
    """The number of waits of each autograd thread, by thread ID."""
    result = {}
    for folder in pathlib.Path("/proc/self/task").iterdir():
        try:
            if (folder / "comm").read_text().startswith("pt_autograd"):
                result[folder.name] = wait_count(folder)
        except OSError:
            pass
    return result


def wait_for_autograd_threads():
    """Returns after no autograd thread has woken for 60 ms."""
    before, idle_polls = autograd_threads(), 0
    while before and idle_polls < 3:
        time.sleep(0.02)
        after = autograd_threads()
        idle_polls = idle_polls + 1 if after == before and None not in after.values() else 0
        before = after


atexit.register(wait_for_autograd_threads)
site.addsitedir(str(ADAPTER))
