# SPDX-License-Identifier: MIT
"""Functions of the tests of installations: execution of commands in a clean environment, and output of cases as TAP."""
import os
import subprocess

# Prefixes of the variables of developers and meson.
FOREIGN = ("XSEG_", "PYTORCH_", "PYTHON", "PKG_CONFIG", "CMAKE_", "MESON", "DESTDIR", "LD_LIBRARY_PATH")


class Absent(Exception):
    """The reason why a case is skipped."""


def start(*command, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return subprocess.run([str(argument) for argument in command], capture_output=True, text=True, check=False, cwd="/",
                          stdin=subprocess.DEVNULL, env={**clean, **variables})


def run(*command, **variables):
    result = start(*command, **variables)
    expect(result.returncode == 0, f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def run_cases(cases):
    """Runs pairs of a name and a function, and prints TAP; returns the exit status."""
    count = failed = 0
    for count, (name, case) in enumerate(cases, 1):
        try:
            case()
            print(f"ok {count} - {name}", flush=True)
        except Absent as reason:
            print(f"ok {count} - {name} # SKIP {reason}", flush=True)
        except (AssertionError, OSError, KeyError) as error:
            failed += 1
            print(f"not ok {count} - {name}")
            print("\n".join(f"# {line}" for line in f"{type(error).__name__}: {error}".splitlines()), flush=True)
    print(f"1..{count}")
    return 1 if failed else 0
