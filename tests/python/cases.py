# SPDX-License-Identifier: MIT
"""Common functions of the tests of the Python package: child processes, and results as TAP.

Each test is started as NAME.py ROOT COMPILER... with the package in PYTHONPATH, the library of the build in XSEG_LIBRARY,
and the simulated driver in XSEG_DRIVER.
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


def skip_all(reason):
    """Reports that the whole test is skipped, and exits."""
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)


def skip_sanitized():
    """Skips the test if Python cannot load the libraries of the build."""
    if re.search(rb"__[at]san_init", pathlib.Path(os.environ["XSEG_DRIVER"]).read_bytes()):
        skip_all("Python cannot load a library that is built with a sanitizer")


skip_sanitized()  # before an import loads a library


def run_python(program, *arguments, status=0, **variables):
    """Runs a Python program in a new process, checks its exit status, and returns standard output and standard error."""
    completed = subprocess.run([sys.executable, *arguments, "-c", program], capture_output=True, text=True, timeout=120,
                               check=False, stdin=subprocess.DEVNULL, env={**os.environ, **variables})
    if completed.returncode != status:
        raise AssertionError(f"status {completed.returncode}:\n{completed.stdout}{completed.stderr}")
    return completed.stdout, completed.stderr


def without_self_checks(text):
    """Returns standard error without the message of a library with self-checks."""
    return "".join(line for line in text.splitlines(keepends=True) if "self-checks: " not in line)


def run_in_threads(function, *arguments):
    """Calls a function in one thread per argument, and returns the exceptions of the calls."""
    failures = []

    def call(argument):
        try:
            function(argument)
        except Exception as error:  # pylint: disable=broad-exception-caught
            failures.append(error)

    threads = [threading.Thread(target=call, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


class Tap(unittest.TestResult):
    """Prints the result of each case as a line of TAP."""

    def print_result(self, test, passed, note=""):
        name = test.id().removeprefix("__main__.")
        print(f"{'ok' if passed else 'not ok'} {self.testsRun} - {name}{note}", flush=True)

    def print_failure(self, test, error):
        self.print_result(test, False)
        print("".join(f"# {line}\n" for line in self._exc_info_to_string(error, test).splitlines()), end="")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.print_result(test, True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.print_failure(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self.print_failure(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.print_failure(subtest, err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.print_result(test, True, f" # SKIP {reason}")


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    print(f"1..{suite.countTestCases()}")
    sys.exit(not suite.run(Tap()).wasSuccessful())
