# SPDX-License-Identifier: MIT
"""Summarizes `meson test`: slow tests, failures, reasons of skipped tests, and the totals: tally.py BUILD_FOLDER STATUS [--interrupted].
A TAP program counts as its cases.  Crashes after the last case and timeouts are only in the log by test.  The exit status is 1 after a
failure, or if no test ran."""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

GOOD = ("OK", "EXPECTEDFAIL")


def read_cases(path):
    """For each program that reports cases: how many passed, failed and were skipped."""
    cases = {}
    # `project.test` for a test with cases; the others share the suite `project`.
    for suite in xml.parse(path).getroot().iter("testsuite"):
        counts = [0, 0, 0]
        for case in suite.iter("testcase"):
            is_bad = case.find("failure") is not None or case.find("error") is not None
            counts[1 if is_bad else 2 if case.find("skipped") is not None else 0] += 1
        _, dot, name = suite.get("name").partition(".")
        if dot:
            cases[name] = counts
    return cases


def count_test(test, cases):
    """Passed, failed and skipped of one test."""
    result = test["result"]
    if result == "INTERRUPT":
        return [0, 0, 0]
    if result in GOOD and not cases:
        return [1, 0, 0]
    if result == "EXPECTEDFAIL":
        return [1, 0, 0]
    if result == "SKIP":
        return cases or [0, 0, 1]
    if not cases:
        return [0, 1, 0]
    passed, failed, skipped = cases
    # Every case may have passed before the program crashed or ran out of time.
    return [passed, failed or int(result not in GOOD), skipped]


def describe(test):
    """A test that failed, with what its TAP output says about the failures: meson leaves it out."""
    said = [line for line in (test["stdout"] or "").splitlines() if line.startswith(("not ok", "#", "Bail out!"))]
    return "\n    ".join([f"{test['name']} ({test['result'].lower()})"] + said[:50])


def skips(test):
    """The skipped cases of a test: pairs of the case's name and the reason that the test printed."""
    lines = (test["stdout"] or "").splitlines()
    named = [re.match(r"(?:ok|not ok) \d+(?: - )?(.*?) *# SKIP\S* *(.*)", line, re.I) for line in lines]
    name = test["name"].rpartition(" / ")[2]
    found = [(f"{name}, {match[1]}", match[2] or "no reason given") for match in named if match]
    if found or test["result"] != "SKIP":
        return found
    plan = [match[1] for match in (re.match(r"1\.\.0 *# SKIP\S* *(.*)", line, re.I) for line in lines) if match]
    words = plan or lines[-1:] or (test.get("stderr") or "").splitlines()[-1:]
    reason = re.sub(r"^(\w+\.py: )?(skipped:? )?", "", "".join(words[:1]).strip())
    return [(name, reason or "no reason given")]


def by_reason(skipped):
    """One line for each reason, the most frequent reason first; it names at most three of the cases."""
    cases = {}
    for name, reason in skipped:
        cases.setdefault(reason, []).append(name)
    return [f"{len(names)} x {reason} ({', '.join(names[:3])}{', ...' if names[3:] else ''})"
            for reason, names in sorted(cases.items(), key=lambda item: -len(item[1]))]


def tally(logs):
    """Passed, failed and skipped of a run, descriptions of failed tests, and the skipped cases with their reasons."""
    total, bad, skipped = [0, 0, 0], [], []
    if not (logs / "testlog.json").exists():
        return total, bad, skipped
    junit = logs / "testlog.junit.xml"
    cases = read_cases(junit) if junit.exists() else {}
    for line in (logs / "testlog.json").read_text().splitlines():
        test = json.loads(line)
        counts = count_test(test, cases.get(test["name"]))
        total = [a + b for a, b in zip(total, counts)]
        if counts[1]:
            bad.append(describe(test))
        skipped += skips(test)
    return total, bad, skipped


def slowest(logs, count):
    log = logs / "testlog.json"
    tests = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    tests.sort(key=lambda test: test["duration"], reverse=True)
    return [f"{test['duration']:6.1f} s  {test['name'].rpartition(' / ')[2]}" for test in tests[:count]]


def main(folder, status, *options):
    logs = pathlib.Path(folder, "meson-logs")
    total, bad, skipped = tally(logs)
    if options:
        print("interrupted: tests that had not finished are not counted")
    elif int(status) != 0 and total[1] == 0:
        print(f"meson test returned status {status}, but no test failed")
        total[1] = 1
    for line in slowest(logs, 10):
        print(f"slow: {line}")
    for text in bad:
        print(f"failed: {text}")
    for line in by_reason(skipped):
        print(f"skipped: {line}")
    if sum(total) == 0:
        print("no test ran")
    print("{} passed, {} failed, {} skipped".format(*total))
    return 0 if total[1] == 0 and total[0] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
