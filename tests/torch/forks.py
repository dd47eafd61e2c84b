# SPDX-License-Identifier: MIT
"""Forks processes after the import of torch, which takes 2 s, more than most programs of the tests.

forks.py SOCKET MODULE...: the number of a socket, and the modules to import in addition to torch.

A message on the socket is an object of JSON with "arguments", "environment" and "folder", and two descriptors: for the
program's output and for its exit status.  A program runs as with on_backend.py.

CUDA is not used before the fork, because PyTorch's allocator and the driver read the environment at their first use.
"""
import contextlib
import gc
import importlib
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import sys

import torch  # noqa: F401 pylint: disable=unused-import

MAX_BYTES = 1 << 20
# Variables of PyTorch on the simulator, which torch_environment.py has set.
PRESERVED = ("CUDA_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD")


def set_up_child(message, output):
    """Applies the environment, the output, the folder and the arguments of a message to a forked child."""
    preserved = {name: os.environ[name] for name in PRESERVED if name in os.environ}
    os.environ.clear()
    os.environ.update({**message["environment"], **preserved})
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(message["folder"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    sys.argv[:] = [str(pathlib.Path(__file__).with_name("on_backend.py")), *message["arguments"]]


def reap(children):
    """Writes the exit status of each child that has ended to its pipe."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(BrokenPipeError), open(children.pop(pid), "w", encoding="ascii") as file:
            file.write(str(os.waitstatus_to_exitcode(status)))


def serve_requests(requests):
    """Forks for each message.  Returns only in the children; the server ends when the test closes its socket."""
    wakeup_reader, wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = {}
    while True:
        if wakeup_reader in select.select([requests, wakeup_reader], [], [])[0]:
            os.read(wakeup_reader, 4096)
            reap(children)
            continue
        text, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 2)
        if not text:
            break
        output, status = descriptors
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            set_up_child(json.loads(text), output)
            for descriptor in (wakeup_reader, wakeup_writer, output, status, *children.values()):
                os.close(descriptor)
            requests.close()
            return
        os.close(output)
        children[child] = status
    for child in children:
        os.kill(child, signal.SIGKILL)
    sys.exit(0)


for module in sys.argv[2:]:
    importlib.import_module(module)
# The garbage collector ignores existing objects; otherwise, collections at exit would take most of a child's time.
gc.freeze()
with socket.socket(fileno=int(sys.argv[1])) as control:
    serve_requests(control)
runpy.run_path(sys.argv[0], run_name="__main__")
