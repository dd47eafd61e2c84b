# SPDX-License-Identifier: MIT
"""Summarizes `meson test`: slow tests, failures, reasons for skipped tests, and the totals.

tally.py FOLDER STATUS [--interrupted]

Each case of a TAP program counts as one test.  The exit status is 1 after a failure, or if no test ran."""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

SUCCESSES = ("OK", "EXPECTEDFAIL")


def read_cases(path):
    """For each program that reports cases: the numbers of passed, failed and skipped cases."""
    cases = {}
    # The JUnit suite of a test with cases is `project.test`; other tests are in the suite `project`.
    for suite in xml.parse(path).getroot().iter("testsuite"):
        counts = [0, 0, 0]
        for case in suite.iter("testcase"):
            has_failed = case.find("failure") is not None or case.find("error") is not None
            counts[1 if has_failed else 2 if case.find("skipped") is not None else 0] += 1
        _, dot, name = suite.get("name").partition(".")
        if dot:
            cases[name] = counts
    return cases


def count_test(test, cases):
    """The numbers of passed, failed and skipped cases of a test."""
    result = test["result"]
    if result == "INTERRUPT":
        return [0, 0, 0]
    if result in SUCCESSES and not cases:
        return [1, 0, 0]
    if result == "EXPECTEDFAIL":
        return [1, 0, 0]
    if result == "SKIP":
        return cases or [0, 0, 1]
    if not cases:
        return [0, 1, 0]
    passed, failed, skipped = cases
    # JUnit does not count a crash after the last case and a timeout.
    return [passed, failed or int(result not in SUCCESSES), skipped]


def describe(test):
    """The name of a failed test, and the lines of its TAP output about failures, which meson does not print."""
    lines = [line for line in (test["stdout"] or "").splitlines() if line.startswith(("not ok", "#", "Bail out!"))]
    return "\n    ".join([f"{test['name']} ({test['result'].lower()})"] + lines[:50])


def skipped_cases(test):
    """The skipped cases of a test: pairs of a name and the reason that the test printed."""
    lines = (test["stdout"] or "").splitlines()
    matches = [re.match(r"(?:ok|not ok) \d+(?: - )?(.*?) *# SKIP\S* *(.*)", line, re.I) for line in lines]
    name = test["name"].rpartition(" / ")[2]
    cases = [(f"{name}, {match[1]}", match[2] or "no reason") for match in matches if match]
    if cases or test["result"] != "SKIP":
        return cases
    plan = [match[1] for match in (re.match(r"1\.\.0 *# SKIP\S* *(.*)", line, re.I) for line in lines) if match]
    message = plan or lines[-1:] or (test.get("stderr") or "").splitlines()[-1:]
    reason = re.sub(r"^(\w+\.py: )?(skipped:? )?", "", "".join(message[:1]).strip())
    return [(name, reason or "no reason")]


def group_by_reason(skipped):
    """One line for each reason, the most frequent reason first; it names at most three of the cases."""
    cases = {}
    for name, reason in skipped:
        cases.setdefault(reason, []).append(name)
    return [f"{len(names)} x {reason} ({', '.join(names[:3])}{', ...' if names[3:] else ''})"
            for reason, names in sorted(cases.items(), key=lambda item: -len(item[1]))]


def tally(logs):
    """The numbers of passed, failed and skipped cases, descriptions of failed tests, and skipped cases with their reasons."""
    totals, failures, skipped = [0, 0, 0], [], []
    if not (logs / "testlog.json").exists():
        return totals, failures, skipped
    junit = logs / "testlog.junit.xml"
    cases = read_cases(junit) if junit.exists() else {}
    for line in (logs / "testlog.json").read_text().splitlines():
        test = json.loads(line)
        counts = count_test(test, cases.get(test["name"]))
        totals = [total + count for total, count in zip(totals, counts)]
        if counts[1]:
            failures.append(describe(test))
        skipped += skipped_cases(test)
    return totals, failures, skipped


def slowest(logs, count):
    log = logs / "testlog.json"
    tests = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    tests.sort(key=lambda test: test["duration"], reverse=True)
    return [f"{test['duration']:6.1f} s  {test['name'].rpartition(' / ')[2]}" for test in tests[:count]]


def main(folder, status, *options):
    logs = pathlib.Path(folder, "meson-logs")
    totals, failures, skipped = tally(logs)
    if options:
        print("interrupted: unfinished tests are not counted")
    elif int(status) != 0 and totals[1] == 0:
        print(f"meson test returned status {status}, but no test failed")
        totals[1] = 1
    for line in slowest(logs, 10):
        print(f"slow: {line}")
    for description in failures:
        print(f"failed: {description}")
    for line in group_by_reason(skipped):
        print(f"skipped: {line}")
    if sum(totals) == 0:
        print("no test ran")
    print("{} passed, {} failed, {} skipped".format(*totals))
    return 0 if totals[1] == 0 and totals[0] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
