# SPDX-License-Identifier: MIT
"""Coverage of src and vmm by the last run of tests: lines, and functions that were not called.

coverage.py ROOT BUILD [--lines]

BUILD was configured with -Db_coverage=true by gcc.  --lines adds the numbers of the lines that were
not executed.  gcovr sums the counters of all programs and processes.
"""
import json
import pathlib
import subprocess
import sys


def count(root, build):
    """For each file: how often each line was reached, and each function called."""
    text = subprocess.run(["gcovr", "--root", root, "--object-directory", build, "--filter",
                           f"{root}/(src|vmm)/", "--json", "-", build], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    files = {}
    for file in json.loads(text)["files"]:
        lines, functions = {}, {}
        for line in file["lines"]:
            if not line["gcovr/noncode"]:
                number = line["line_number"]
                lines[number] = lines.get(number, 0) + line["count"]
        for one in file["functions"]:
            functions[one["name"]] = functions.get(one["name"], 0) + one["execution_count"]
        if lines:
            files[file["file"]] = lines, functions
    return files


def runs(numbers):
    """Numbers in order, as "3-5 9"."""
    found = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in found)


def row(name, missed, total):
    return f"{100 * (total - missed) / total:6.1f} %  {total:5}  {missed:4}  {name}"


def main(root, build, *options):
    files = count(pathlib.Path(root).resolve(), pathlib.Path(build).resolve())
    if not files:
        print("nothing was counted: did any test run?")
        return 1
    print("reached     lines  left  file")
    sums, uncalled = {}, []
    for name, (lines, functions) in sorted(files.items()):
        missed = [number for number, times in lines.items() if times == 0]
        folder = name.rpartition("/")[0]
        for key in (folder, "src and vmm"):
            old = sums.get(key, (0, 0))
            sums[key] = old[0] + len(missed), old[1] + len(lines)
        print(row(name, len(missed), len(lines)))
        if missed and "--lines" in options:
            print(f"{'':24}lines {runs(missed)}")
        uncalled += [f"{name}: {one}" for one, times in sorted(functions.items()) if times == 0]
    print("\nby folder")
    for name in sorted(sums, key=lambda one: (one == "src and vmm", one)):
        print(row(name, *sums[name]))
    print(f"\n{len(uncalled)} functions that no test calls")
    print("".join(f"  {one}\n" for one in uncalled), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
