# SPDX-License-Identifier: MIT
"""Tests of `xseg view` and of the data of its page, without a browser: view.py TOOL SOURCE_ROOT."""
import os
import json
import pickle
import sys
import unittest

from folder_case import ROOT, SNAPSHOTS, ToolCase

sys.path.insert(0, str(ROOT / "tests/support"))
import view_program  # pylint: disable=wrong-import-position

FILES = sorted(SNAPSHOTS.glob("*.pickle.zst"))


class ViewTest(ToolCase):
    def setUp(self):
        super().setUp()
        self.message = ""  # standard error of the last call of page()

    def view(self, *arguments, status=0, **options):
        return self.tool("view", *arguments, status=status, cwd=self.folder, **options).stderr

    def page(self, snapshot, *options, status=0):
        self.message = self.view(self.file(snapshot, "snapshot.pickle"), "-o", "page.html", *options, status=status)
        return self.read_page()

    def read_page(self):
        return (self.folder / "page.html").read_text(encoding="utf-8")

    def test_lifetimes_match_the_program_at_every_event(self):
        for seed, skipped in ((1, 0), (2, 150), (3, 400)):
            with self.subTest(seed=seed):
                program = view_program.Program(seed, 600, skipped)
                model = view_program.Model(self.page(program.snapshot()))
                self.assertTrue(model.is_complete)
                self.assertEqual(model.summary["unmatched"], 0)
                self.assertEqual(model.times, [entry["time_us"] for entry in program.trace])
                for span in model.spans:
                    page = view_program.PAGE if span["address"] < view_program.LARGE_BASE else view_program.LARGE
                    self.assertEqual(span["page"], 0 if span["address"] >= view_program.BASE + (1 << 40) else page)
                for moment, state in enumerate(program.states):
                    expected = {key: state[key] for key in ("allocated", "pending", "reserved", "blocks")}
                    self.assertEqual(model.amounts(moment), expected, f"moment {moment}")

    def test_smaller_blocks_beyond_the_limit_are_summed(self):
        for seed, skipped in ((20, 0), (21, 200)):
            program = view_program.Program(seed, 900, skipped)
            complete = view_program.Model(self.page(program.snapshot()))
            aggregated = view_program.Model(self.page(program.snapshot(), "--blocks", 30))
            self.assertIn(f"snapshot.pickle: the page is aggregated: it has the 30 blocks with the largest product of size and "
                          f"lifetime, and the sum of {len(complete.lives) - 30} others; --blocks sets the number", self.message)
            self.assertTrue(aggregated.is_complete)
            self.assertEqual(len(aggregated.lives), 30)
            self.assertEqual(aggregated.summary["summed"], len(complete.lives) - 30)
            self.assertEqual(aggregated.summary["recorded"], len(program.trace))
            weights = sorted((life["bytes"] * (life["freed_at"] - life["allocated_at"]) for life in complete.lives), reverse=True)
            separate_blocks = {(life["address"], life["bytes"], life["stack"]) for life in aggregated.lives}
            self.assertLessEqual(separate_blocks, {(life["address"], life["bytes"], life["stack"]) for life in complete.lives
                                                   if life["bytes"] * (life["freed_at"] - life["allocated_at"]) >= weights[29]})
            # Between two events of separate blocks these do not change, so the sums are upper bounds of all states.
            allocated_bytes = [aggregated.amounts(moment)["allocated"] + aggregated.amounts(moment)["pending"]
                               + aggregated.summed[moment]
                               for moment in range(aggregated.end)]
            states = program.states
            self.assertEqual(max(allocated_bytes), max(state["allocated"] + state["pending"] for state in states))
            self.assertEqual(max(aggregated.amounts(moment)["reserved"] for moment in range(aggregated.end)),
                             max(state["reserved"] for state in states))
            self.assertEqual([aggregated.amounts(moment)["reserved"] for moment in (0, aggregated.end - 1)],
                             [states[index]["reserved"] for index in (0, -1)])

    def test_block_has_the_stack_of_its_allocation(self):
        program = view_program.Program(4, 300)
        model = view_program.Model(self.page(program.snapshot()))
        strings = model.summary["texts"]
        for life in model.lives:
            frames = [{"name": strings[model.frames[0][frame]], "filename": strings[model.frames[1][frame]],
                       "line": model.frames[2][frame]} for frame in model.stacks[life["stack"]]]
            self.assertEqual(frames, program.trace[life["allocated_at"] - 1]["frames"])

    def test_block_has_the_same_site_as_in_blame(self):
        python = {"name": "run", "filename": "/lib/python3.11/threading.py", "line": 3}
        torch_python = {"name": "linear", "filename": "/v/lib/python3.11/site-packages/torch/f.py", "line": 4}
        user_frame = {"name": "f", "filename": "/v/lib/python3.11/site-packages/other/g.py", "line": 5}
        torch_native = {"name": "at::empty", "filename": "/v/libtorch_cpu.so", "line": 256}
        foreign_native = {"name": "decode", "filename": "/v/libdecode.so", "line": 512}
        node = {"name": "torch::autograd::generated::MmBackward0::apply(int)", "filename": "/v/libtorch_cpu.so", "line": 8}
        for stack in ([torch_native, torch_python, user_frame, python], [torch_native, torch_python, python],
                      [torch_native, foreign_native, torch_native], [torch_native], [torch_native, node, torch_native]):
            snapshot = view_program.Program(4, 5).snapshot()
            snapshot["device_traces"][0] = [entry | {"frames": stack} for entry in snapshot["device_traces"][0]]
            model = view_program.Model(self.page(snapshot))
            self.assertTrue(model.is_complete)
            stack_index = next(life["stack"] for life in model.lives if life["stack"])
            report = json.loads(self.tool("blame", "--json", self.folder / "snapshot.pickle").stdout)
            names = [site["site"] for site in report["sites"]]
            self.assertEqual(model.summary["sites"][model.sites[stack_index]],
                             next(name for name in names if not name.startswith("(")))
            self.assertEqual(model.sites[0], 0)

    def test_pytorch_snapshots_can_be_opened(self):
        for path in FILES:
            with self.subTest(path=path.name):
                self.view(path, "-o", "page.html")
                model = view_program.Model(self.read_page())
                self.assertTrue(model.is_complete)
                self.assertGreater(len(model.lives), 0)
        self.assertGreater(len(FILES), 0)

    def test_page_requests_no_resources(self):
        page = self.page(view_program.Program(5, 50).snapshot())
        self.assertNotRegex(page, r"https?:|//[a-z]+\.|<link[^>]*href=\"(?!data:)|\bsrc=|@import|url\(|fetch\(|XMLHttp")
        self.assertIn("default-src 'none'", page)

    def test_strings_of_a_snapshot_are_escaped(self):
        snapshot = view_program.Program(6, 50).snapshot()
        snapshot["device_traces"][0][0]["user_metadata"] = "</script><script>alert(1)</script><!--"
        page = self.page(snapshot)
        self.assertNotIn("alert(1)</script", page)
        self.assertIn("</script><script>alert(1)</script><!--", view_program.Model(page).summary["texts"])

    def test_two_files_share_a_page(self):
        for seed in (7, 8):
            self.file(view_program.Program(seed, 80).snapshot(), f"{seed}.pickle")
        self.view("7.pickle", "8.pickle", "-o", "page.html")
        page = self.read_page()
        self.assertEqual([view_program.Model(page, index).summary["name"] for index in (0, 1)], ["7.pickle", "8.pickle"])

    def test_page_can_be_written_to_standard_output(self):
        with open(self.file(view_program.Program(9, 20).snapshot()), "rb") as file:
            page = self.tool("view", "-", "-o", "-", stdin=file).stdout
        self.assertEqual(view_program.Model(page).summary["name"], "standard input")

    def test_page_without_history_shows_the_final_state(self):
        program = view_program.Program(10, 200)
        self.file(program.snapshot() | {"device_traces": [[]]}, "a.pickle")
        self.assertIn("_record_memory_history", self.view("a.pickle", "-o", "page.html"))
        model, end = view_program.Model(self.read_page()), program.states[-1]
        self.assertEqual(model.amounts(0), {key: end[key] for key in ("allocated", "pending", "reserved", "blocks")})

    def test_inconsistent_history_can_be_opened(self):
        snapshot = view_program.Program(11, 300).snapshot()
        trace = snapshot["device_traces"][0]
        alloc_index = next(i for i, entry in enumerate(trace) if entry["action"] == "alloc")
        trace.insert(alloc_index + 1, dict(trace[alloc_index]))
        free_index = next(i for i, entry in enumerate(trace) if entry["action"] == "free_completed")
        trace.insert(free_index + 1, dict(trace[free_index]))
        model = view_program.Model(self.page(snapshot, status=1))
        self.assertTrue(model.is_complete)
        self.assertEqual(model.summary["unmatched"], 2)
        self.assertRegex(self.message, "snapshot.pickle: no segment of the file contains 1 allocated block of .*, which the "
                                       "report omits")

    def test_bad_files_are_rejected_without_a_page(self):
        pickled, huge = pickle.dumps(view_program.Program(12, 50).snapshot(), 4), view_program.Program(12, 50).snapshot()
        huge["device_traces"][0][-1]["size"] = 1 << 50
        for contents, message in ((pickled[:len(pickled) // 2], "byte"), (b"hello", "text file"),
                                  (pickle.dumps({"a": 1}), "no memory snapshot"),
                                  (pickle.dumps({"segments": [], "device_traces": []}), "no entries or segments"),
                                  (pickle.dumps(huge), "a block or segment has 1,024.00 TiB; a page shows at most 16.00 TiB")):
            self.assertIn(message, self.view(self.file(contents, "bad"), "-o", "page.html", status=2))
            self.assertEqual(sorted(os.listdir(self.folder)), ["bad"])
        self.assertIn("cannot be opened", self.view("missing", "-o", "page.html", status=2))
        self.file(pickled, "good")
        self.assertIn("device 7", self.view("good", "--device", 7, "-o", "page.html", status=2))
        self.assertIn("cannot be written", self.view("good", "-o", "missing/page.html", status=2))
        self.assertIn("--output", self.view("good", status=2))
        self.assertIn("view", self.view("good", "good", "good", "-o", "page.html", status=2))

    def test_existing_page_remains_if_a_file_is_bad(self):
        self.file("before", "page.html")
        self.view(self.file(b"hello"), "-o", "page.html", status=2)
        self.assertEqual(self.read_page(), "before")

    def test_full_disk_is_reported(self):
        path = self.file(view_program.Program(13, 20).snapshot())
        with open("/dev/full", "wb") as full:
            self.assertIn("cannot be written", self.view(path, "-o", "-", status=2, stdout=full))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
