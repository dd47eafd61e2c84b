# SPDX-License-Identifier: MIT
"""The commands on the pages of the tool print what the pages show: outputs.py TOOL SOURCE_ROOT [SANITIZER | --write].

--write replaces the outputs in the pages, except for shortened ones.  With a sanitizer the test is skipped, because
hundreds of replays take minutes.
"""
import contextlib
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

import advise_ranks
import compare
from compare import json_keys
from folder_case import SELF_CHECKS, ROOT, SNAPSHOTS
from page_blocks import pages, wrapped

TOOL = os.path.abspath(sys.argv[1])
# Blocks that begin with a command `$ xseg ...` and contain its output, and blocks of commands without outputs.  tool/top
# and tool/run test the commands `top` and `run`.
OUTPUT = re.compile(r"^```\n\$ xseg (?!top|run)(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
COMMANDS = re.compile(r"^```\n((?:xseg (?!run).*\n)+)```$", re.MULTILINE)
MEASURED = re.compile(r"(time per event, measured) .*")
MIB = 1 << 20


def without_times(text):
    return MEASURED.sub(r"\1", text)


@contextlib.contextmanager
def files_of(page):
    """A folder with the files that the commands of a page name; `page` is its path."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path in [*SNAPSHOTS.glob("*.pickle.zst"), ROOT / "benchmarks/traces/llama_finetune.xtrace.zst"]:
            (folder / path.name).symlink_to(path)
        for link, target in (("job.pickle", "train.pickle.zst"), ("before.pickle", "early.pickle.zst"),
                             ("after.pickle", "late.pickle.zst"), ("trace.xtrace.zst", "llama_finetune.xtrace.zst")):
            (folder / link).symlink_to(target)
        (folder / "snapshots").mkdir()
        for rank in range(8):
            if page.name == "replay.md":
                contents = advise_ranks.rank_of_job(**({"growth_per_step": 46 * MIB} if rank == 5 else {}))
            else:
                contents = compare.job("fragmented" if rank == 5 else "", compare.BASE + (rank << 32)).snapshot()
            (folder / f"snapshots/oom-rank{rank}-pid{4711 + rank}-1.pickle").write_bytes(pickle.dumps(contents, 4))
        for trace in re.findall(r"^```\n(xtrace 1\n.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            (folder / "serve.xtrace").write_text(trace, encoding="utf-8")
        yield folder


def run(command, folder):
    """The output of a command, and its messages."""
    completed = subprocess.run([TOOL, *command.split()], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               check=False, env={**os.environ, "NO_COLOR": "1"})
    # Like diff, `compare` reports a difference by its status.
    if completed.returncode != (1 if command.startswith("compare ") else 0):
        raise AssertionError(f"xseg {command}: status {completed.returncode}: {completed.stderr}")
    return completed.stdout, SELF_CHECKS.sub("", completed.stderr)


class Outputs(unittest.TestCase):
    maxDiff = None

    def test_outputs_of_the_pages_are_current(self):
        outputs = blocks = 0
        for page in pages(ROOT):
            text = page.read_text(encoding="utf-8")
            if not OUTPUT.search(text) and not COMMANDS.search(text):
                continue
            with files_of(page) as folder:
                for command, body in OUTPUT.findall(text):
                    outputs += 1
                    output, messages = map(wrapped, run(command, folder))
                    with self.subTest(page=page.name, command=command):
                        if "...\n" in body:
                            first, last = body.split("...\n")
                            self.assertTrue(any(text.startswith(first) for text in (messages + output, output)),
                                            messages + output)
                            self.assertTrue(output.endswith(last), output)
                        else:
                            self.assertEqual(without_times(body), without_times(output),
                                             f"run python3 tests/tool/outputs.py {sys.argv[1]} {sys.argv[2]} --write")
                for block in COMMANDS.findall(text):
                    blocks += 1
                    for line in block.splitlines():
                        # The simulator replaces the GPU.
                        run(line.replace(" --driver cuda", "").removeprefix("xseg "), folder)
        self.assertEqual((outputs, blocks), (11, 3))

    def test_table_of_probe_is_current(self):
        """Rows of the report are wider than a page, so the page has some of them in a table."""
        text = (ROOT / "docs/top.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| (cu\w+) \| (.*) \|$", text, re.MULTILINE)
        self.assertGreater(len(rows), 3)
        with files_of(ROOT / "docs/top.md") as folder:
            report = [" ".join(line.split()) for line in run("probe --costs consumer", folder)[0].splitlines()]
        for name, cells in rows:
            self.assertIn(f"{name} {cells.replace(' | ', ' ')}", report)


class Keys(unittest.TestCase):
    """The tables of docs/replay.md have the keys of the JSON outputs."""
    PAGE = ROOT / "docs/replay.md"

    def read(self, folder, *commands):
        return [json.loads(run(command, folder)[0]) for command in commands]

    def test_keys_of_replay_are_documented(self):
        with files_of(self.PAGE) as folder:
            outputs = self.read(folder, "replay --json short.pickle.zst",
                                "replay --json --config garbage_collection_threshold:0.8 ring.pickle.zst")
            (explained,) = self.read(folder, "replay --json --explain job.pickle")
        self.assertEqual(json_keys.paths(outputs, maps=["driver_calls"]), json_keys.documented(self.PAGE, "JSON of replay"))
        text = self.PAGE.read_text(encoding="utf-8").partition("`--explain` adds `explained`")[2].partition("\n\n")[0]
        self.assertEqual(set(explained["explained"]), set(re.findall(r"`(\w+)`", text)) - {"single_page"})

    def test_trace_of_the_page_has_the_documented_peak(self):
        trace, = re.findall(r"^```\n(xtrace 1\n.*?)^```$", self.PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        with files_of(self.PAGE) as folder:
            (folder / "example.xtrace").write_text(trace, encoding="utf-8")
            (report,) = self.read(folder, "replay --json example.xtrace")
        self.assertEqual((report["events"], report["peak_requested"]), (3, 21 * MIB))

    def test_keys_of_the_history_are_documented(self):
        with files_of(self.PAGE) as folder:
            lines = run("replay --history - --config history:all,block_user:True job.pickle", folder)[0].splitlines()
        events = [json.loads(line) for line in lines[:-1]]
        self.assertEqual(set().union(*events), json_keys.documented(self.PAGE, "The history"))
        self.assertEqual(set(json.loads(lines[-1])), {"events", "lost", "stacks", "stacks_lost"})

    def test_keys_of_advise_are_documented(self):
        with files_of(self.PAGE) as folder:
            (report,) = self.read(folder, "advise --json short.pickle.zst")
            (ranks,) = self.read(folder, "advise --json snapshots")
        self.assertEqual(json_keys.paths(report), json_keys.documented(self.PAGE, "One file"))
        self.assertEqual(set(ranks) | {f"ranks.{key}" for key in ranks["ranks"][0]}, json_keys.documented(self.PAGE, "A folder"))


def write(page):
    with files_of(page) as folder:
        def replace(match):
            block, command, body = match[0], match[1], match[2]
            if "...\n" in body:
                return block
            output = wrapped(run(command, folder)[0])
            return block if without_times(body) == without_times(output) else f"```\n$ xseg {command}\n{output}```"

        page.write_text(OUTPUT.sub(replace, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[3:] == ["--write"]:
        for path in pages(ROOT):
            write(path)
        sys.exit()
    if sys.argv[3:] not in ([], ["none"]):
        print("skipped with a sanitizer")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
