# SPDX-License-Identifier: MIT
"""If xseg cannot run PyTorch, an error message states the reason and a remedy, and PyTorch keeps its own allocator.

refusals.py DRIVER
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
TRY = """
import torch
{before}
try:
    import xseg.torch
    print("imported", flush=True)
except ImportError as refusal:
    print("refused:", refusal, flush=True)
print("backend", torch.cuda.get_allocator_backend(), flush=True)
print("allocated", torch.empty(1, device="cuda").numel())
"""


def start(code, **variables):
    environment = {**backends.without("PYTORCH_", "XSEG_ALLOC", "XSEG_SIM", "XSEG_TORCH", "XSEG_DRIVER", "CXX"),
                   "PYTHONPATH": str(backends.ADAPTER), **variables}
    return subprocess.Popen([sys.executable, backends.ENVIRONMENT, "--offline", "--driver", DRIVER, "run", "python", "-c", code],
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def attempt(before="", after="", is_whole=True, **variables):
    with start(TRY.format(before=before) + after, **variables) as process:
        printed, complaints = process.communicate(timeout=300)
    if process.returncode and is_whole:
        raise AssertionError(printed + complaints)
    return printed


def keep_in(folder):
    """A line of Python that names another folder for the adapter; the environment itself goes on using its own."""
    return f"import os; os.environ['XDG_CACHE_HOME'] = {folder!r}"


def script(folder, *lines):
    path = pathlib.Path(folder, "c++")
    path.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="ascii")
    path.chmod(0o755)
    return str(path)


def wait_for(is_so):
    ends = time.monotonic() + 100
    while not is_so():
        if time.monotonic() > ends:
            raise AssertionError("it did not come about")
        time.sleep(0.02)


def has_ended(process):
    try:
        return " Z " in pathlib.Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return True


class Refusals(unittest.TestCase):
    def expect(self, printed, *words):
        for word in ("refused:", *words, "backend native", "allocated 1"):
            self.assertIn(word, printed)

    def test_import_that_cannot_work_is_refused(self):
        for before, variables, words in (
                ("torch.cuda.init()", {}, ("xseg.torch: CUDA is already initialized", "right after torch")),
                ("", {"XSEG_DRIVER": "/no-such-folder/libcuda.so"},
                 ("XSEG_DRIVER: cannot load the driver, /no-such-folder/libcuda.so", "unset XSEG_DRIVER")),
                ("torch.__version__ = '2.5.1'", {}, ("unsupported version of PyTorch, 2.5.1", "install 2.6 or newer")),
                ("torch.version.cuda = None", {}, ("was built without CUDA", "install a build with CUDA")),
                ("", {"XSEG_ALLOC_CONF": "expandable_segment:True"}, ("did you mean expandable_segments?",))):
            with self.subTest(words):
                self.expect(attempt(before, **variables), *words)

    def test_a_wheel_for_another_processor(self):
        number, name = (b"\xb7\0", "aarch64") if platform.machine() == "x86_64" else (b"\x3e\0", "x86_64")
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\x7fELF\2\1\1" + 9 * b"\0" + b"\3\0" + number + 44 * b"\0")
            file.flush()
            self.expect(attempt(XSEG_LIBRARY=file.name), f"xseg: cannot load the library, {file.name}: built for {name}", "install the wheel")

    def test_no_compiler(self):
        with tempfile.TemporaryDirectory() as folder:
            self.expect(attempt(keep_in(folder), CXX="no-such-compiler"), "CXX: compiler not found, no-such-compiler")

    def test_a_cache_that_cannot_be_made(self):
        with tempfile.NamedTemporaryFile() as file:
            self.expect(attempt(keep_in(file.name)), "cannot store the adapter", "XDG_CACHE_HOME")

    def test_another_allocator(self):
        printed = attempt(is_whole=False, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
        for word in ("refused:", "already uses another allocator, 'cudaMallocAsync'", "remove backend:cudaMallocAsync",
                     "backend cudaMallocAsync"):
            self.assertIn(word, printed)

    def test_a_failed_build_is_tried_once(self):
        """Processes that start together share the failure of one; another compiler is tried at once."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            compiler = pathlib.Path(script(folder, f"echo tried >> {log}", "sleep 1", "echo 'a.cpp:1: error: no' >&2",
                                           "exit 1"))
            with concurrent.futures.ThreadPoolExecutor() as pool:
                printed = list(pool.map(lambda _: attempt(keep_in(folder), CXX=str(compiler)), range(3)))
            for each in printed:
                self.expect(each, "does not compile", "a.cpp:1: error: no", "set CXX to a compiler that supports C++20")
            self.assertEqual(log.read_text(), "tried\n")
            self.assertEqual(sum("another process failed" in each for each in printed), 2)
            compiler = compiler.rename(compiler.with_name("other"))
            self.assertNotIn("another process", attempt(keep_in(folder), CXX=str(compiler)))
            self.assertEqual(log.read_text(), "tried\ntried\n")

    def test_a_compiler_that_is_killed(self):
        """The sentence does not speak of another compiler, and the next process tries again at once."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            for last in ("kill -KILL $$", "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
                         "echo 'clang: error: unable to execute command: Killed' >&2; exit 1"):
                compiler = script(folder, f"echo tried >> {log}", last)
                for _ in range(2):
                    printed = attempt(keep_in(folder), CXX=compiler)
                    self.expect(printed, f"killed by a signal, {compiler}, ", "retry", "host memory is low")
                    self.assertNotIn("another", printed)
            self.assertEqual(log.read_text(), 6 * "tried\n")

    def interrupt(self, number, code):
        """What a process that imports xseg.torch leaves to standard error when a signal comes while it compiles."""
        with tempfile.TemporaryDirectory() as folder:
            started = pathlib.Path(folder, "started")
            compiler = script(folder, "sleep 300 &", f"echo $! > {started}.new; mv {started}.new {started}", "wait")
            with start(f"{keep_in(folder)}\n{code}", CXX=compiler) as process:
                wait_for(started.exists)
                self.assertEqual(len(list(pathlib.Path(folder, "xseg").glob("build-*"))), 1)
                process.send_signal(number)
                _, complaints = process.communicate(timeout=100)
            self.assertEqual(process.returncode, -number, complaints)
            self.assertEqual(list(pathlib.Path(folder, "xseg").glob("build-*")), [])
            wait_for(lambda: has_ended(int(started.read_text())))
            return complaints

    def test_interrupted(self):
        """The compiler and what it has started end, its folder goes, and the last line is a sentence."""
        for code in ("import xseg.torch", "import _xseg_torch_hook, torch"):
            with self.subTest(code=code):
                last = self.interrupt(signal.SIGINT, code).splitlines()[-1]
                self.assertIn("KeyboardInterrupt: xseg.torch: build of the adapter was interrupted", last)

    def test_terminated(self):
        """The process ends by the signal, as without xseg."""
        self.assertNotIn("Traceback", self.interrupt(signal.SIGTERM, "import xseg.torch"))

    def test_a_cache_that_is_read_only(self):
        """What is there is used; nothing needs to be written."""
        attempt()
        self.assertIn("backend xseg", attempt("import os; os.access = lambda *all: False"))

    def test_a_broken_cache(self):
        """What is kept but cannot be loaded is built again."""
        printed = attempt(after="print('adapter', xseg.torch.info()['adapter'])")
        kept = pathlib.Path(printed.split("adapter ")[1].strip())
        whole = kept.read_bytes()
        broken = kept.with_suffix(".new")
        broken.write_bytes(whole[:1000])
        os.replace(broken, kept)
        self.assertIn("backend xseg", attempt())
        self.assertGreater(len(kept.read_bytes()), 1000)


if __name__ == "__main__":
    backends.require(DRIVER, needs_adapter=True)
    unittest.main(argv=sys.argv[:1])
