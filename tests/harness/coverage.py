# SPDX-License-Identifier: MIT
"""Line coverage of src and vmm in the last run of the tests, and the functions that no test called.

coverage.py ROOT BUILD [--lines]

BUILD was configured by gcc with -Db_coverage=true.  --lines also prints the line numbers that were not
executed.  gcovr sums the counters of all programs and processes.
"""
import json
import pathlib
import subprocess
import sys


def read_counts(root, build):
    """For each file: the number of executions of each line and the number of calls of each function."""
    report = subprocess.run(["gcovr", "--root", root, "--object-directory", build, "--filter", f"{root}/(src|vmm)/",
                             "--json", "-", build], check=True, stdout=subprocess.PIPE, text=True).stdout
    files = {}
    for file in json.loads(report)["files"]:
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


def format_line_numbers(numbers):
    """Sorted line numbers in the form "3-5 9"."""
    intervals = []
    for number in sorted(numbers):
        if intervals and intervals[-1][1] == number - 1:
            intervals[-1][1] = number
        else:
            intervals.append([number, number])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in intervals)


def format_row(name, missed, total):
    return f"{100 * (total - missed) / total:6.1f} %  {total:6}  {missed:6}  {name}"


def main(root, build, *options):
    files = read_counts(pathlib.Path(root).resolve(), pathlib.Path(build).resolve())
    if not files:
        print("coverage: no line was executed; run the tests before this program")
        return 1
    print("covered    lines  missed  file")
    sums, uncalled = {}, []
    for name, (lines, functions) in sorted(files.items()):
        missed = [number for number, executions in lines.items() if executions == 0]
        folder = name.rpartition("/")[0]
        for key in (folder, "src and vmm"):
            missed_before, lines_before = sums.get(key, (0, 0))
            sums[key] = missed_before + len(missed), lines_before + len(lines)
        print(format_row(name, len(missed), len(lines)))
        if missed and "--lines" in options:
            print(f"{'':24}lines {format_line_numbers(missed)}")
        uncalled += [f"{name}: {function}" for function, calls in sorted(functions.items()) if calls == 0]
    print("\nby folder")
    for name in sorted(sums, key=lambda folder: (folder == "src and vmm", folder)):
        print(format_row(name, *sums[name]))
    print(f"\n{len(uncalled)} functions that no test calls")
    print("".join(f"  {function}\n" for function in uncalled), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
