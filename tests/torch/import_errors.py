# SPDX-License-Identifier: MIT
"""If xseg cannot run PyTorch, an error message states the reason and a remedy, and PyTorch keeps its own allocator.

import_errors.py DRIVER
"""
import concurrent.futures
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import backends

DRIVER = sys.argv[1]
PROGRAM = """
import torch
{before}
try:
    import xseg.torch
    print("imported", flush=True)
except ImportError as error:
    print("import error:", error, flush=True)
print("backend", torch.cuda.get_allocator_backend(), flush=True)
print("allocated", torch.empty(1, device="cuda").numel())
"""


def start(code, **variables):
    environment = {**backends.environment_without("PYTORCH_", "XSEG_ALLOC", "XSEG_SIM", "XSEG_TORCH", "XSEG_DRIVER", "CXX"),
                   "PYTHONPATH": str(backends.ADAPTER), **variables}
    return subprocess.Popen([sys.executable, backends.ENVIRONMENT, "--offline", "--driver", DRIVER, "run", "python", "-c", code],
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def attempt(before="", after="", must_succeed=True, **variables):
    with start(PROGRAM.format(before=before) + after, **variables) as process:
        output, errors = process.communicate(timeout=300)
    if process.returncode and must_succeed:
        raise AssertionError(output + errors)
    return output


def set_cache(folder):
    """A line of Python that sets the cache folder of the adapter; torch_environment.py continues to use its own cache."""
    return f"import os; os.environ['XDG_CACHE_HOME'] = {folder!r}"


def script(folder, *lines):
    path = pathlib.Path(folder, "c++")
    path.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="ascii")
    path.chmod(0o755)
    return str(path)


def wait_for(condition):
    deadline = time.monotonic() + 100
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition is false after 100 seconds")
        time.sleep(0.02)


def has_ended(process):
    """Whether the process with this ID no longer runs `sleep 300`; another process may have its ID."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes() != b"sleep\000300\0"
    except OSError:
        return True


class ImportErrors(unittest.TestCase):
    def expect(self, output, *words):
        for word in ("import error:", *words, "backend native", "allocated 1"):
            self.assertIn(word, output)

    def test_unsupported_states_raise_import_error(self):
        for before, variables, words in (
                ("torch.cuda.init()", {}, ("xseg.torch: CUDA is already initialized", "right after torch")),
                ("", {"XSEG_DRIVER": "/no-such-folder/libcuda.so"},
                 ("XSEG_DRIVER: cannot load the driver, /no-such-folder/libcuda.so", "unset XSEG_DRIVER")),
                ("torch.__version__ = '2.5.1'", {}, ("unsupported version of PyTorch, 2.5.1", "install 2.6 or newer")),
                ("torch.version.cuda = None", {}, ("was built without CUDA", "install a build with CUDA")),
                ("", {"XSEG_ALLOC_CONF": "expandable_segment:True"}, ("did you mean expandable_segments?",))):
            with self.subTest(words):
                self.expect(attempt(before, **variables), *words)

    def test_wheel_for_another_architecture_is_reported(self):
        machine, name = (b"\xb7\0", "aarch64") if platform.machine() == "x86_64" else (b"\x3e\0", "x86_64")
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\x7fELF\2\1\1" + 9 * b"\0" + b"\3\0" + machine + 44 * b"\0")
            file.flush()
            self.expect(attempt(XSEG_LIBRARY=file.name), f"xseg: cannot load the library, {file.name}: built for {name}",
                        "install the wheel")

    def test_missing_compiler_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            self.expect(attempt(set_cache(folder), CXX="no-such-compiler"), "CXX: compiler not found, no-such-compiler")

    def test_uncreatable_cache_is_reported(self):
        with tempfile.NamedTemporaryFile() as file:
            self.expect(attempt(set_cache(file.name)), "cannot store the adapter", "XDG_CACHE_HOME")

    def test_another_allocator_in_use_is_reported(self):
        output = attempt(must_succeed=False, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
        for word in ("import error:", "already uses another allocator, 'cudaMallocAsync'", "remove backend:cudaMallocAsync",
                     "backend cudaMallocAsync"):
            self.assertIn(word, output)

    def test_concurrent_processes_share_a_failed_build(self):
        """Another compiler is tried immediately."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            compiler = pathlib.Path(script(folder, f"echo tried >> {log}", "sleep 1", "echo 'a.cpp:1: error: no' >&2",
                                           "exit 1"))
            with concurrent.futures.ThreadPoolExecutor() as pool:
                outputs = list(pool.map(lambda _: attempt(set_cache(folder), CXX=str(compiler)), range(3)))
            for output in outputs:
                self.expect(output, "does not compile", "a.cpp:1: error: no", "set CXX to a compiler that supports C++20")
            self.assertEqual(log.read_text(), "tried\n")
            self.assertEqual(sum("another process failed" in output for output in outputs), 2)
            compiler = compiler.rename(compiler.with_name("other"))
            self.assertNotIn("another process", attempt(set_cache(folder), CXX=str(compiler)))
            self.assertEqual(log.read_text(), "tried\ntried\n")

    def test_killed_compiler_is_reported_and_retried(self):
        """The message does not advise another compiler, and the next process retries immediately."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            for last in ("kill -KILL $$", "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
                         "echo 'clang: error: unable to execute command: Killed' >&2; exit 1"):
                compiler = script(folder, f"echo tried >> {log}", last)
                for _ in range(2):
                    output = attempt(set_cache(folder), CXX=compiler)
                    self.expect(output, f"killed by a signal, {compiler}, ", "retry", "host memory is low")
                    self.assertNotIn("another", output)
            self.assertEqual(log.read_text(), 6 * "tried\n")

    def interrupt(self, number, code):
        """Returns the standard error of a process that imports xseg.torch and receives a signal during the compilation."""
        with tempfile.TemporaryDirectory() as folder:
            started = pathlib.Path(folder, "started")
            compiler = script(folder, "sleep 300 &", f"echo $! > {started}.new; mv {started}.new {started}", "wait")
            with start(f"{set_cache(folder)}\n{code}", CXX=compiler) as process:
                wait_for(started.exists)
                self.assertEqual(len(list(pathlib.Path(folder, "xseg").glob("build-*"))), 1)
                process.send_signal(number)
                _, errors = process.communicate(timeout=100)
            self.assertEqual(process.returncode, -number, errors)
            self.assertEqual(list(pathlib.Path(folder, "xseg").glob("build-*")), [])
            wait_for(lambda: has_ended(int(started.read_text())))
            return errors

    def test_interrupt_removes_the_build(self):
        """The compiler and its children end, the build folder is removed, and the last line is a message."""
        for code in ("import xseg.torch", "import _xseg_torch_hook, torch"):
            with self.subTest(code=code):
                last = self.interrupt(signal.SIGINT, code).splitlines()[-1]
                self.assertIn("KeyboardInterrupt: xseg.torch: build of the adapter was interrupted", last)

    def test_termination_prints_no_traceback(self):
        """The signal ends the process, as without xseg."""
        self.assertNotIn("Traceback", self.interrupt(signal.SIGTERM, "import xseg.torch"))

    def test_read_only_cache_is_used(self):
        """A cached adapter is loaded without a write to the cache."""
        attempt()
        self.assertIn("backend xseg", attempt("import os; os.access = lambda *all: False"))

    def test_truncated_cache_is_rebuilt(self):
        """A cached adapter that cannot be loaded is built again."""
        output = attempt(after="print('adapter', xseg.torch.info()['adapter'])")
        adapter = pathlib.Path(output.split("adapter ")[1].strip())
        truncated = adapter.with_suffix(".new")
        truncated.write_bytes(adapter.read_bytes()[:1000])
        os.replace(truncated, adapter)
        self.assertIn("backend xseg", attempt())
        self.assertGreater(len(adapter.read_bytes()), 1000)


if __name__ == "__main__":
    backends.require(DRIVER, needs_adapter=True)
    unittest.main(argv=sys.argv[:1])
