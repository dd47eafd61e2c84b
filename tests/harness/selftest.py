# SPDX-License-Identifier: MIT
"""tests/run itself, on a small project whose tests pass, fail, crash, hang and skip on purpose.

selftest.py ROOT FAILS; FAILS is a cmocka program of which one case passes and one fails.
"""
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tally

TAP = """print("1..2\\nok 1 - a\\nok 2 - b", flush=True)"""
# For the shell: it has to say that before its time is over, and Python may be slow to start.
HANG = "printf '1..2\\nok 1 - a\\nok 2 - b\\n'; exec sleep 60"
# Suite: keywords of meson's test(), the program in Python (HANG; None: FAILS), the tally of that suite.
TESTS = {
    "cases": ("protocol: 'tap'", TAP, (2, 0, 0)),
    "cmocka": ("protocol: 'tap', env: {'CMOCKA_MESSAGE_OUTPUT': 'TAP'}", None, (1, 1, 0)),
    "crash": ("protocol: 'tap'", TAP + "; import os; os.abort()", (2, 1, 0)),
    "short": ("protocol: 'tap'", "print('1..2'); print('ok 1 - a')", (1, 1, 0)),
    "hang": ("protocol: 'tap', timeout: 6", HANG, (2, 1, 0)),
    "absent": ("protocol: 'tap'", "print('1..0 # SKIP not here')", (0, 0, 1)),
    "partly": ("protocol: 'tap'", "print('1..2\\nok 1 - a\\nok 2 - b # SKIP no b')", (1, 0, 1)),
    "good": ("", "pass", (1, 0, 0)),
    "bad": ("", "raise SystemExit(1)", (0, 1, 0)),
    "skip": ("", "print('skip.py: skipped: no word'); raise SystemExit(77)", (0, 0, 1)),
    "mute": ("", "raise SystemExit(77)", (0, 0, 1)),
    "late": ("timeout: 1", "import time; time.sleep(60)", (0, 1, 0)),
    "wrong": ("should_fail: true", "raise SystemExit(1)", (1, 0, 0)),
    "right": ("should_fail: true", "pass", (0, 1, 0)),
}
SKIPPED = ["absent: not here", "mute: no reason given", "partly, b: no b",
           "skip: skip.py: skipped: no word"]
FOLDERS = {"build-tests", "build-tests-debug", "build-tests-release"}
# Suites that tests/run is called with, and without: one that passes, one that fails and one that skips; what waits, and fails.
RUN_ALONE, LEFT_OUT = ("good", "bad", "skip"), ("bad", "hang", "late")
EVERYTHING = tuple(map(sum, zip(*(want for _, _, want in TESTS.values()))))


def make_project(folder, root, fails):
    """A project of such tests around this tree's tests/run."""
    lines = ["project('harness')", "python = find_program('python3')", "sh = find_program('sh')"]
    for suite, (keywords, code, _) in TESTS.items():
        program = {None: f"find_program('{fails}')", HANG: "sh"}.get(code, "python")
        path = folder / suite
        path.write_text(code or "")
        arguments = [f"'{suite}'", program, f"suite: '{suite}'"]
        if code is not None:
            arguments.append(f"args: '{path}'")
        if keywords:
            arguments.append(keywords)
        lines.append(f"test({', '.join(arguments)})")
    (folder / "meson.build").write_text("\n".join(lines) + "\n")
    for name in ("tests/run", "tests/harness/tally.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    (folder / ".ci").mkdir()
    (folder / ".ci/setup").write_text("#!/bin/sh\n")
    (folder / ".ci/setup").chmod(0o755)


def release_build(folder):
    """What stands in build/, to see whether it has been touched: name and time of each file."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "build").rglob("*")}


def folders_made(folder):
    """Where tests/run has built."""
    return {path.parent.name for path in folder.glob("*/build.ninja")} - {"build"}


def run(folder, *options):
    """What tests/run prints, as lines, and its exit status."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("MESON")}
    done = subprocess.run([folder / "tests/run", *options], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, env=environment)
    return done.stdout.split("\n")[:-1], done.returncode


def count_again(folder, suite, status):
    """What tally.py prints of a suite, as lines, and its exit status, from the logs of all suites."""
    logs, part = folder / "build-tests/meson-logs", folder / f"logs-{suite}/meson-logs"
    part.mkdir(parents=True)
    shutil.copy(logs / "testlog.junit.xml", part)
    lines = (logs / "testlog.json").read_text().splitlines(keepends=True)
    (part / "testlog.json").write_text("".join(
        line for line in lines if json.loads(line)["name"].endswith(f" / {suite}")))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        ended = tally.main(part.parent, status)
    return said.getvalue().split("\n")[:-1], ended


def cases():
    """Name, options (None: the logs of the first case are counted) and the tally that is due, for each case."""
    yield "all suites", [], EVERYTHING
    for suite, (_, _, want) in TESTS.items():
        yield f"suite {suite}", None, want
    for suite in RUN_ALONE:
        yield f"suite {suite} alone", ["--suite", suite], TESTS[suite][2]
    without = [TESTS[suite][2] for suite in LEFT_OUT]
    yield "all but some suites", [f"--without={suite}" for suite in LEFT_OUT], \
        tuple(all_of - sum(left_out) for all_of, *left_out in zip(EVERYTHING, *without))
    yield "no such suite", ["--suite", "nothing"], None
    yield "no such option", ["--nonsense"], (0, 1, 0)
    yield "another set of options", ["--debug", "--suite=good"], (1, 0, 0)
    yield "a folder from before an option", ["--release", "--suite=good"], (1, 0, 0)
    yield "the release build's folder", ["--builddir=./build/"], (0, 1, 0)
    yield "broken build", ["--builddir", "build-broken"], (0, 1, 0)


def main(root, fails):
    """Print TAP; returns the exit status."""
    failed, todo = 0, list(cases())
    print(f"1..{len(todo) + 1}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_project(folder, pathlib.Path(root), pathlib.Path(fails).resolve())
        # The second as it was before the project had options.
        for made in ("build", "build-tests-release"):
            subprocess.run(["meson", "setup", folder / made, folder, "--buildtype=release"],
                           stdout=subprocess.DEVNULL, check=True)
        shutil.copy(pathlib.Path(root, "meson_options.txt"), folder)
        release = release_build(folder)
        for number, (what, options, want) in enumerate(todo, 1):
            if what == "broken build":
                with open(folder / "meson.build", "a", encoding="utf-8") as build:
                    build.write("error('broken')\n")
            passed, bad, skipped = want or (0, 0, 0)
            lines, status = count_again(folder, what.split()[1], bad) if options is None else run(folder, *options)
            line = lines[-1]
            named = [text[len("skipped: "):] for text in lines[-1 - skipped:-1]]
            is_good = line == f"{passed} passed, {bad} failed, {skipped} skipped" and \
                (status == 0) == (bad == 0 and passed > 0) and \
                not any("\r" in text for text in lines) and \
                (sorted(named) == SKIPPED if what == "all suites" else len(named) == skipped)
            failed += not is_good
            print(f"{'ok' if is_good else 'not ok'} {number} - {what}", flush=True)
            if not is_good:
                print(f"# wanted {want}, got {line!r}, {named} and status {status}")
        made = folders_made(folder)
        is_good = release_build(folder) == release and made == FOLDERS
        failed += not is_good
        print(f"{'ok' if is_good else 'not ok'} {len(todo) + 1} - folders: {sorted(made)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
