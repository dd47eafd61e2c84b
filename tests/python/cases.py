# SPDX-License-Identifier: MIT
"""Functions of the tests of the Python package: a child process, and results as TAP.

Each test is started as NAME.py ROOT COMPILER...; PYTHONPATH has the package, XSEG_LIBRARY the library that was built,
and XSEG_DRIVER the simulated driver.
"""
import os
import pathlib
import re
import subprocess
import sys
import threading
import unittest

MIB = 1 << 20
ROOT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
COMPILER = sys.argv[2:]


def skip_all(why):
    """End: nothing of this test can run here."""
    print(f"1..0 # SKIP {why}")
    sys.exit(0)


def skip_sanitized():
    """End where Python cannot load what was built."""
    if re.search(rb"__[at]san_init", pathlib.Path(os.environ["XSEG_DRIVER"]).read_bytes()):
        skip_all("Python cannot load a library that is built with a sanitizer")


skip_sanitized()  # before anything else is imported that loads it


def said(program, *arguments, status=0, **variables):
    """What a Python program prints on both streams, in a process of its own that has to end with this status."""
    done = subprocess.run([sys.executable, *arguments, "-c", program], capture_output=True, text=True, timeout=120,
                          check=False, stdin=subprocess.DEVNULL, env={**os.environ, **variables})
    if done.returncode != status:
        raise AssertionError(f"status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def complaints(text):
    """Standard error without the line by which a library that checks itself says so."""
    return "".join(line for line in text.splitlines(keepends=True) if "self-checks: " not in line)


def in_threads(work, *arguments):
    """Calls a function in a thread for each argument; returns the errors that the calls raised."""
    failures = []

    def call(argument):
        try:
            work(argument)
        except Exception as failure:  # pylint: disable=broad-exception-caught
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


class Tap(unittest.TestResult):
    """One line for each case."""

    def tell(self, test, good, note=""):
        name = test.id().removeprefix("__main__.")
        print(f"{'ok' if good else 'not ok'} {self.testsRun} - {name}{note}", flush=True)

    def complain(self, test, failure):
        self.tell(test, False)
        print("".join(f"# {line}\n" for line in self._exc_info_to_string(failure, test).splitlines()), end="")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.tell(test, True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.complain(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self.complain(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.complain(subtest, err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.tell(test, True, f" # SKIP {reason}")


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    print(f"1..{suite.countTestCases()}")
    sys.exit(not suite.run(Tap()).wasSuccessful())
