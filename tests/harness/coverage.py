# SPDX-License-Identifier: MIT
"""Coverage of src and vmm by the last run of tests: lines, and functions that no test called.

coverage.py ROOT BUILD [--lines]

BUILD was configured with -Db_coverage=true by gcc.  --lines adds the numbers of the lines that were
not executed.  gcovr sums the counters of all programs and processes.
"""
import json
import pathlib
import subprocess
import sys


def count(root, build):
    """For each file: the number of executions of each line and the number of calls of each function."""
    text = subprocess.run(["gcovr", "--root", root, "--object-directory", build, "--filter",
                           f"{root}/(src|vmm)/", "--json", "-", build], check=True, stdout=subprocess.PIPE, text=True).stdout
    files = {}
    for file in json.loads(text)["files"]:
        lines, functions = {}, {}
        for line in file["lines"]:
            if not line["gcovr/noncode"]:
                number = line["line_number"]
                lines[number] = lines.get(number, 0) + line["count"]
        for function in file["functions"]:
            functions[function["name"]] = functions.get(function["name"], 0) + function["execution_count"]
        if lines:
            files[file["file"]] = lines, functions
    return files


def runs(numbers):
    """Sorted numbers in the form "3-5 9"."""
    intervals = []
    for number in sorted(numbers):
        if intervals and intervals[-1][1] == number - 1:
            intervals[-1][1] = number
        else:
            intervals.append([number, number])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in intervals)


def row(name, missed, total):
    return f"{100 * (total - missed) / total:6.1f} %  {total:6}  {missed:6}  {name}"


def main(root, build, *options):
    files = count(pathlib.Path(root).resolve(), pathlib.Path(build).resolve())
    if not files:
        print("no lines were executed: did any test run?")
        return 1
    print("covered    lines  missed  file")
    sums, uncalled = {}, []
    for name, (lines, functions) in sorted(files.items()):
        missed = [number for number, times in lines.items() if times == 0]
        folder = name.rpartition("/")[0]
        for key in (folder, "src and vmm"):
            missed_before, lines_before = sums.get(key, (0, 0))
            sums[key] = missed_before + len(missed), lines_before + len(lines)
        print(row(name, len(missed), len(lines)))
        if missed and "--lines" in options:
            print(f"{'':24}lines {runs(missed)}")
        uncalled += [f"{name}: {function}" for function, times in sorted(functions.items()) if times == 0]
    print("\nby folder")
    for name in sorted(sums, key=lambda folder: (folder == "src and vmm", folder)):
        print(row(name, *sums[name]))
    print(f"\n{len(uncalled)} functions that no test calls")
    print("".join(f"  {function}\n" for function in uncalled), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
