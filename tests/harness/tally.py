# SPDX-License-Identifier: MIT
"""Counts what a run of `meson test` found, names the ten slowest tests, and ends with the line that scripts read.

tally.py BUILD_FOLDER STATUS; STATUS is the exit status of `meson test`.

A TAP program counts as its cases, any other test as one.  The cases are in the JUnit file, but
neither crashes behind the last case nor timeouts are; those are in the log by test.  Exits with 1
after any failure, or if nothing ran.
"""
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
    said = [line for line in (test["stdout"] or "").splitlines()
            if line.startswith(("not ok", "#", "Bail out!"))]
    return "\n    ".join([f"{test['name']} ({test['result'].lower()})"] + said[:50])


def skips(test):
    """What a test skipped, and why by its own words: a line for each."""
    lines = (test["stdout"] or "").splitlines()
    named = [re.match(r"(?:ok|not ok) \d+(?: - )?(.*?) *# SKIP\S* *(.*)", line, re.I) for line in lines]
    name = test["name"].rpartition(" / ")[2]
    found = [f"{name}, {match[1]}: {match[2] or 'no reason given'}" for match in named if match]
    if found or test["result"] != "SKIP":
        return found
    plan = [match[1] for match in (re.match(r"1\.\.0 *# SKIP\S* *(.*)", line, re.I) for line in lines)
            if match]
    words = plan or lines[-1:] or (test.get("stderr") or "").splitlines()[-1:]
    return [f"{name}: {''.join(words[:1]).strip() or 'no reason given'}"]


def tally(logs):
    """Passed, failed and skipped of a run, texts about tests that failed, and what was skipped."""
    total, bad, left_out = [0, 0, 0], [], []
    if not (logs / "testlog.json").exists():
        return total, bad, left_out
    cases = read_cases(logs / "testlog.junit.xml")
    for line in (logs / "testlog.json").read_text().splitlines():
        test = json.loads(line)
        counts = count_test(test, cases.get(test["name"]))
        total = [a + b for a, b in zip(total, counts)]
        if counts[1]:
            bad.append(describe(test))
        left_out += skips(test)
    return total, bad, left_out


def slowest(logs, count):
    """The tests that took longest: a line for each."""
    log = logs / "testlog.json"
    tests = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    tests.sort(key=lambda test: test["duration"], reverse=True)
    return [f"{test['duration']:6.1f} s  {test['name'].rpartition(' / ')[2]}" for test in tests[:count]]


def main(folder, status):
    """Print the tally; returns the exit status."""
    logs = pathlib.Path(folder, "meson-logs")
    total, bad, left_out = tally(logs)
    if int(status) != 0 and total[1] == 0:
        print(f"meson test ended with status {status}, though no test did")
        total[1] = 1
    for line in slowest(logs, 10):
        print(f"slow: {line}")
    for text in bad:
        print(f"failed: {text}")
    for text in left_out:
        print(f"skipped: {text}")
    if sum(total) == 0:
        print("no test ran")
    print("{} passed, {} failed, {} skipped".format(*total))
    return 0 if total[1] == 0 and total[0] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
