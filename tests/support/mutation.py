# SPDX-License-Identifier: MIT
"""Mutants of the lines that changed since a commit: which of them does no test detect?

mutation.py [--base COMMIT] [--count N] [--seed TEXT]

universalmutator generates mutants of the C files of src and vmm that changed between COMMIT (default: the parent of HEAD) and
HEAD.  Only changed lines that the suites unit, model and api execute are mutated.  TEXT draws N mutants (default: 50) among those
that compile to other code, and each is tested in a copy of HEAD.  The difference of each mutant that survives is printed: a test
is missing, or the mutant has no effect that a test could detect.

universalmutator is installed once, into ${XDG_CACHE_HOME:-~/.cache}/xseg.  Exits with 1 if a mutant survives, and with 77 if
universalmutator cannot be installed.
"""
import argparse
import collections
import difflib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src/adapters/python"), str(ROOT / "tests/harness")]
import coverage  # noqa: E402 pylint: disable=wrong-import-position
from manylinux.torch_headers import SKIPPED, NotInstalled, cache, locked, pip  # noqa: E402 pylint: disable=wrong-import-position

TOOL = "universalmutator==1.14.1"
SUITES = ("--suite", "unit", "--suite", "model", "--suite", "api")
IGNORED = "XSEG_ASSERT\nXSEG_AUDIT\nXSEG_INVARIANT\n"  # no test fails if a self-check is weaker


def run(*command, cwd=ROOT, may_fail=False):
    """Output of a command and whether it succeeds.  Variables that change tests are unset; ccache ignores the folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XSEG_", "PYTORCH_"))}
    result = subprocess.run(list(map(str, command)), cwd=cwd, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**environment, "CCACHE_NOHASHDIR": "1"})
    if result.returncode != 0 and not may_fail:
        sys.exit(f"{result.stdout}\nmutation: command failed, {' '.join(map(str, command))}")
    return result.stdout, result.returncode == 0


def install():
    """The program `mutate` of universalmutator."""
    folder = cache() / TOOL.replace("==", "-")
    with locked():
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip(folder / "bin/python", "install", TOOL)
            (folder / "complete").touch()
    return folder / "bin/mutate"


def changed_lines(base):
    """The lines of each C file of src and vmm that changed between a commit and HEAD."""
    lines, path = collections.defaultdict(set), None
    for line in run("git", "diff", "--unified=0", "--no-renames", f"{base}..HEAD", "--", "src/*.c", "vmm/*.c")[0].splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            lines[path] |= set(range(int(match[1]), int(match[1]) + int(match[2] or 1)))
    return {path: changed for path, changed in lines.items() if changed}


def generate(mutate, file, lines, folder):
    """The text of each mutant of some lines of a file."""
    folder.mkdir()
    (folder / "lines").write_text("\n".join(map(str, sorted(lines))))
    (folder / "ignored").write_text(IGNORED)
    run(mutate, file, "c", "--noCheck", "--lines", folder / "lines", "--ignore", folder / "ignored", "--mutantDir", folder)
    return sorted(mutant.read_text() for mutant in folder.glob("*.mutant.*"))


def code(build, objects):
    """Object files without debug information, or None if one cannot be compiled."""
    if not run("ninja", "-C", build, *objects, may_fail=True)[1]:
        return None
    texts = []
    for name in objects:
        run("objcopy", "--strip-debug", build / name, build / "stripped.o")
        texts.append((build / "stripped.o").read_bytes())
    return texts


def survives(file, mutant, build):
    """Whether the tests pass with a mutant, or None if it has the same code or cannot be compiled."""
    compiled = json.loads((build / "compile_commands.json").read_text())
    objects = [entry["output"] for entry in compiled if (build / entry["file"]).resolve() == file.resolve()]
    original, before = file.read_text(), code(build, objects)
    file.write_text(mutant)
    try:
        if code(build, objects) in (before, None):
            return None
        return run("meson", "test", "-C", build, "--maxfail", "1", *SUITES, may_fail=True)[1]
    finally:
        file.write_text(original)


def main():
    """Print the mutants that survive; returns the exit status."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--base", default="HEAD~1")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", default="")
    arguments = parser.parse_args()
    mutate, changed, mutants, verdicts = install(), changed_lines(arguments.base), [], collections.Counter()
    if not changed:
        print(f"mutation: no C file of src or vmm changed since {arguments.base}")
        return 0
    with tempfile.TemporaryDirectory(prefix="xseg-mutation-") as scratch:
        tree = pathlib.Path(scratch, "tree")
        tree.mkdir()
        run("sh", "-c", 'git archive HEAD | tar -x -C "$0" && ln -s "$PWD/.deps" "$0"', tree)
        run("tests/run", "--coverage", *SUITES, cwd=tree, may_fail=True)
        covered = coverage.read_counts(tree, tree / "build-tests-coverage")
        build = tree / "build"
        run("meson", "setup", build, tree, "-Dbuildtype=debugoptimized")  # without -Werror: a mutant may have a warning
        run("meson", "test", "-C", build, *SUITES, cwd=tree)
        for number, path in enumerate(sorted(changed)):
            executed = {line for line, times in covered.get(path, [{}])[0].items() if times > 0} & changed[path]
            mutants += [(path, text) for text in generate(mutate, tree / path, executed, pathlib.Path(scratch, str(number)))]
        random.Random(arguments.seed).shuffle(mutants)
        while mutants and verdicts.total() < arguments.count:
            path, mutant = mutants.pop()
            verdict = survives(tree / path, mutant, build)
            if verdict:
                lines = [text.splitlines(True) for text in ((tree / path).read_text(), mutant)]
                print("".join(difflib.unified_diff(*lines, path, "survives", n=1)), flush=True)
            verdicts.update([verdict] if verdict is not None else [])
    print(f"mutation: {verdicts[True]} of {verdicts.total()} mutants survive; --seed '{arguments.seed}' --base {arguments.base}")
    return 1 if verdicts[True] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotInstalled as reason:
        print(f"mutation: {TOOL} cannot be installed, {reason}")
        sys.exit(SKIPPED)
