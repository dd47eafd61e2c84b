# SPDX-License-Identifier: MIT
"""Functions of the tests of this suite: the environment of PyTorch on the simulator, and the allocators."""
import atexit
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENT = ROOT / "tests/support/torch_environment.py"
ADAPTER = ROOT / "src/adapters/python"
SKIPPED = 77
# Modules that forks.py imports in addition to torch.  A test may add modules before the first start().
PRELOADED = ["torch.distributed", "torch.multiprocessing", "torch.utils.data"]
# Prefixes of variables that Python reads when it starts, or that torch reads when it is loaded.
READ_EARLY = ("CUDA_", "LD_", "MALLOC_", "MKL_", "OMP_", "PYTHON", "TORCH")
# Whether this process runs a case of the test: the test starts its own program with "case:NAME".
IS_CASE = len(sys.argv) > 1 and sys.argv[1].startswith("case:")
# Variables that select an allocator, by PyTorch's name of the allocator.
BACKENDS = {"native": {}}
if (ADAPTER / "xseg/torch").is_dir():
    BACKENDS["xseg"] = {"XSEG_TORCH": "1", "PYTHONPATH": str(ADAPTER)}


def environment_without(*prefixes):
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def require(driver, needs_adapter=False):
    """Skips the test if PyTorch is not installed.  A test installs nothing."""
    process = subprocess.run([sys.executable, ENVIRONMENT, "--offline", "--driver", driver, "print"], check=False,
                             capture_output=True, text=True)
    if process.returncode == SKIPPED:
        print(process.stderr.strip())
        sys.exit(SKIPPED)
    if process.returncode != 0:
        print(process.stdout, process.stderr)
        sys.exit(1)
    if needs_adapter and "xseg" not in BACKENDS:
        print("skipped: the adapter is not in this tree")
        sys.exit(SKIPPED)


class Server:
    """A process of forks.py and a socket to it; one process for each driver, which ends with this process."""

    started = {}

    def __init__(self, driver):
        self.socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_socket:
            self.process = subprocess.Popen([sys.executable, ENVIRONMENT, "--offline", "--driver", driver, "run", "python",
                                             HERE / "forks.py", str(server_socket.fileno()), *PRELOADED],
                                            pass_fds=[server_socket.fileno()], env=plain_environment(),
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        atexit.register(self.stop)

    @classmethod
    def for_driver(cls, driver):
        if driver not in cls.started:
            cls.started[driver] = cls(driver)
        return cls.started[driver]

    def stop(self):
        self.socket.close()
        self.process.wait()


class ForkedProcess:
    """A process that the server has forked, with the members of subprocess.Popen that finish() uses."""

    def __init__(self, server, arguments, environment):
        (self.output, output), (self.status, status) = os.pipe(), os.pipe()
        message = {"arguments": arguments, "environment": environment, "folder": os.getcwd()}
        socket.send_fds(server.socket, [json.dumps(message).encode()], [output, status])
        os.close(output)
        os.close(status)
        self.returncode = None

    def communicate(self, timeout):
        text = read_all(self.output, timeout)
        self.returncode = int(read_all(self.status, timeout) or -signal.SIGKILL)
        return text, None


def read_all(descriptor, seconds):
    chunks, deadline = [b""], time.monotonic() + seconds
    try:
        while select.select([descriptor], [], [], max(0, deadline - time.monotonic()))[0]:
            chunks.append(os.read(descriptor, 1 << 20))
            if not chunks[-1]:
                return b"".join(chunks).decode(errors="replace")
    finally:
        os.close(descriptor)
    raise subprocess.TimeoutExpired("forks.py", seconds, b"".join(chunks))


def plain_environment():
    """The environment without variables of an allocator or of the simulated machine."""
    return environment_without("PYTORCH_", "XSEG_ALLOC", "XSEG_SIM", "XSEG_TORCH")


def can_be_forked(environment):
    """Whether the environment has the server's values of all variables that are read before a fork."""
    server = plain_environment()
    changed = [name for name in {**server, **environment} if server.get(name) != environment.get(name)
               and (name.startswith(READ_EARLY) and name != "PYTHONPATH" or "backend:" in environment.get(name, ""))]
    return not changed


def start(driver, backend, program, *arguments, **variables):
    """Starts a process that runs a program on an allocator; `variables` are added to the environment."""
    environment = plain_environment()
    environment.update(BACKENDS[backend], XSEG_DRIVER=str(driver), **variables)
    environment.setdefault("XSEG_LIBRARY", str(pathlib.Path(driver).parent / "libxseg.so"))
    if can_be_forked(environment):
        return ForkedProcess(Server.for_driver(str(driver)), [str(argument) for argument in (program, *arguments)], environment)
    return subprocess.Popen([sys.executable, ENVIRONMENT, "--offline", "--driver", driver, "run", "python",
                             HERE / "on_backend.py", program, *arguments],
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process, backend):
    text, _ = process.communicate(timeout=500)
    if process.returncode != 0:
        raise AssertionError(f"{backend}: status {process.returncode}\n{text}")
    if f"backend {backend}\n" not in text:
        raise AssertionError(f"expected allocator {backend}:\n{text}")
    return text


def on_each(driver, program, *arguments, **variables):
    """Returns the output of a program on each allocator, by the allocator's name; the processes run concurrently."""
    running = [(name, start(driver, name, program, *arguments, **variables)) for name in BACKENDS]
    return {name: finish(process, name) for name, process in running}


def run_all(driver, program, jobs):
    """Runs jobs (name, arguments, variables) on each allocator, four at a time; returns the exit status."""
    require(driver)
    waiting = [(backend, *job) for backend in BACKENDS for job in jobs]
    failed, running, count = [], [], len(waiting)
    while waiting or running:
        while waiting and len(running) < min(4, os.cpu_count() or 1):
            backend, name, arguments, variables = waiting.pop(0)
            running.append((backend, name, start(driver, backend, program, *arguments, **variables)))
        backend, name, process = running.pop(0)
        try:
            finish(process, backend)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
    print("\n".join(failed))
    print(f"{count} runs on {', '.join(BACKENDS)}; {len(failed)} failed")
    return 1 if failed else 0


class CaseTest(unittest.TestCase):
    """Runs functions case_NAME of the test's own program, each in a separate process."""

    environment = {}  # variables of all cases
    variables = {}  # variables of some cases, by NAME

    def start_case(self, name, *arguments, backend="xseg", **variables):
        return start(sys.argv[1], backend, os.path.abspath(sys.argv[0]), "case:" + name, *arguments,
                     **{**self.environment, **self.variables.get(name, {}), **variables})

    def run_case(self, name, *arguments, backend="xseg", **variables):
        text = finish(self.start_case(name, *arguments, backend=backend, **variables), backend)
        self.assertIn(f"case {name} done", text)
        return text


def main(names, test_case=None):
    """Runs the case of the command line, or all tests; a test is added to `test_case` for each case without one."""
    if IS_CASE:
        name = sys.argv[1].removeprefix("case:")
        names["case_" + name]()
        print("case", name, "done")
        return
    require(sys.argv[1], needs_adapter=True)
    for name in [name.removeprefix("case_") for name in names if test_case and name.startswith("case_")]:
        if not hasattr(test_case, "test_" + name):
            setattr(test_case, "test_" + name, lambda self, name=name: self.run_case(name))
    unittest.main(argv=sys.argv[:1])
