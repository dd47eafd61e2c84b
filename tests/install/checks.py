# SPDX-License-Identifier: MIT
"""Functions of the tests of installations: commands in a clean environment, and cases that print TAP."""
import os
import subprocess

# A developer's or meson's variables begin so.
FOREIGN = ("XSEG_", "PYTORCH_", "PYTHON", "PKG_CONFIG", "CMAKE_", "MESON", "DESTDIR", "LD_LIBRARY_PATH")


class Absent(Exception):
    """The reason why a case is skipped."""


def start(*command, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd="/",
                          stdin=subprocess.DEVNULL, env={**clean, **variables})


def run(*command, **variables):
    done = start(*command, **variables)
    expect(done.returncode == 0, f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(is_good, what):
    if not is_good:
        raise AssertionError(what)


def run_cases(cases):
    """Runs pairs of a name and a function, and prints TAP; returns the exit status."""
    count = failed = 0
    for count, (name, case) in enumerate(cases, 1):
        try:
            case()
            print(f"ok {count} - {name}", flush=True)
        except Absent as why:
            print(f"ok {count} - {name} # SKIP {why}", flush=True)
        except (AssertionError, OSError, KeyError) as why:
            failed += 1
            print(f"not ok {count} - {name}")
            print("\n".join(f"# {line}" for line in f"{type(why).__name__}: {why}".splitlines()), flush=True)
    print(f"1..{count}")
    return 1 if failed else 0
