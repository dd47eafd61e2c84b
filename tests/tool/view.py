# SPDX-License-Identifier: MIT
"""`xseg view` as a user runs it, and the data of its page, without a browser: view.py TOOL SOURCE_ROOT."""
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
        self.said = ""  # by the last page()

    def view(self, *arguments, status=0, **more):
        return self.tool("view", *arguments, status=status, cwd=self.folder, **more).stderr

    def page(self, snapshot, *options, status=0):
        self.said = self.view(self.file(snapshot, "snapshot.pickle"), "-o", "page.html", *options, status=status)
        return self.written()

    def written(self):
        return (self.folder / "page.html").read_text(encoding="utf-8")

    def test_lifetimes_match_the_program_at_every_event(self):
        for seed, early in ((1, 0), (2, 150), (3, 400)):
            with self.subTest(seed=seed):
                program = view_program.Program(seed, 600, early)
                model = view_program.Model(self.page(program.snapshot()))
                self.assertTrue(model.whole)
                self.assertEqual(model.facts["unmatched"], 0)
                self.assertEqual(model.times, [entry["time_us"] for entry in program.trace])
                for span in model.spans:
                    page = view_program.PAGE if span["address"] < view_program.LARGE_BASE else view_program.LARGE
                    self.assertEqual(span["page"], 0 if span["address"] >= view_program.BASE + (1 << 40) else page)
                for moment, state in enumerate(program.states):
                    expected = {key: state[key] for key in ("live", "pending", "reserved", "blocks")}
                    self.assertEqual(model.figures(moment), expected, f"moment {moment}")

    def test_of_too_many_blocks_the_smaller_are_summed(self):
        for seed, early in ((20, 0), (21, 200)):
            program = view_program.Program(seed, 900, early)
            whole = view_program.Model(self.page(program.snapshot()))
            small = view_program.Model(self.page(program.snapshot(), "--blocks", 30))
            self.assertIn(f"snapshot.pickle: the page is aggregated: it has the 30 blocks with the largest product of size and "
                          f"lifetime, and the sum of {len(whole.lives) - 30} others; --blocks sets the number", self.said)
            self.assertTrue(small.whole)
            self.assertEqual(len(small.lives), 30)
            self.assertEqual(small.facts["summed"], len(whole.lives) - 30)
            self.assertEqual(small.facts["recorded"], len(program.trace))
            weights = sorted((life["bytes"] * (life["died"] - life["born"]) for life in whole.lives), reverse=True)
            stays = {(life["address"], life["bytes"], life["stack"]) for life in small.lives}
            self.assertLessEqual(stays, {(life["address"], life["bytes"], life["stack"]) for life in whole.lives
                                         if life["bytes"] * (life["died"] - life["born"]) >= weights[29]})
            # Between two events that stay, what stays does not change: each state of the whole is at most what is said.
            used = [small.figures(moment)["live"] + small.figures(moment)["pending"] + small.summed[moment]
                    for moment in range(small.end)]
            states = program.states
            self.assertEqual(max(used), max(state["live"] + state["pending"] for state in states))
            self.assertEqual(max(small.figures(moment)["reserved"] for moment in range(small.end)),
                             max(state["reserved"] for state in states))
            self.assertEqual([small.figures(moment)["reserved"] for moment in (0, small.end - 1)],
                             [states[at]["reserved"] for at in (0, -1)])

    def test_the_stack_of_a_block_is_its_own(self):
        program = view_program.Program(4, 300)
        model = view_program.Model(self.page(program.snapshot()))
        texts = model.facts["texts"]
        for life in model.lives:
            frames = [{"name": texts[model.frames[0][f]], "filename": texts[model.frames[1][f]], "line": model.frames[2][f]}
                      for f in model.stacks[life["stack"]]]
            self.assertEqual(frames, program.trace[life["born"] - 1]["frames"])

    def test_the_site_of_a_block_is_the_one_that_blame_names(self):
        python = {"name": "run", "filename": "/lib/python3.11/threading.py", "line": 3}
        torch = {"name": "linear", "filename": "/v/lib/python3.11/site-packages/torch/f.py", "line": 4}
        mine = {"name": "f", "filename": "/v/lib/python3.11/site-packages/other/g.py", "line": 5}
        ours = {"name": "at::empty", "filename": "/v/libtorch_cpu.so", "line": 256}
        theirs = {"name": "decode", "filename": "/v/libdecode.so", "line": 512}
        node = {"name": "torch::autograd::generated::MmBackward0::apply(int)", "filename": "/v/libtorch_cpu.so", "line": 8}
        for stack in ([ours, torch, mine, python], [ours, torch, python], [ours, theirs, ours], [ours], [ours, node, ours]):
            snapshot = view_program.Program(4, 5).snapshot()
            snapshot["device_traces"][0] = [entry | {"frames": stack} for entry in snapshot["device_traces"][0]]
            model = view_program.Model(self.page(snapshot))
            self.assertTrue(model.whole)
            number = next(life["stack"] for life in model.lives if life["stack"])
            blamed = json.loads(self.tool("blame", "--json", self.folder / "snapshot.pickle").stdout)
            names = [site["site"] for site in blamed["sites"]]
            self.assertEqual(model.facts["sites"][model.sites[number]], next(name for name in names if not name.startswith("(")))
            self.assertEqual(model.sites[0], 0)

    def test_snapshots_of_pytorchs_format_open(self):
        for path in FILES:
            with self.subTest(path=path.name):
                self.view(path, "-o", "page.html")
                model = view_program.Model(self.written())
                self.assertTrue(model.whole)
                self.assertGreater(len(model.lives), 0)
        self.assertGreater(len(FILES), 0)

    def test_a_page_asks_for_nothing(self):
        page = self.page(view_program.Program(5, 50).snapshot())
        self.assertNotRegex(page, r"https?:|//[a-z]+\.|<link[^>]*href=\"(?!data:)|\bsrc=|@import|url\(|fetch\(|XMLHttp")
        self.assertIn("default-src 'none'", page)

    def test_texts_of_a_snapshot_are_no_markup(self):
        snapshot = view_program.Program(6, 50).snapshot()
        snapshot["device_traces"][0][0]["user_metadata"] = "</script><script>alert(1)</script><!--"
        page = self.page(snapshot)
        self.assertNotIn("alert(1)</script", page)
        self.assertIn("</script><script>alert(1)</script><!--", view_program.Model(page).facts["texts"])

    def test_two_files_are_on_one_page(self):
        for number in (7, 8):
            self.file(view_program.Program(number, 80).snapshot(), f"{number}.pickle")
        self.view("7.pickle", "8.pickle", "-o", "page.html")
        page = self.written()
        self.assertEqual([view_program.Model(page, number).facts["name"] for number in (0, 1)], ["7.pickle", "8.pickle"])

    def test_a_page_goes_to_standard_output(self):
        with open(self.file(view_program.Program(9, 20).snapshot()), "rb") as file:
            page = self.tool("view", "-", "-o", "-", stdin=file).stdout
        self.assertEqual(view_program.Model(page).facts["name"], "standard input")

    def test_without_a_history_it_shows_the_end(self):
        program = view_program.Program(10, 200)
        self.file(program.snapshot() | {"device_traces": [[]]}, "a.pickle")
        self.assertIn("_record_memory_history", self.view("a.pickle", "-o", "page.html"))
        model = view_program.Model(self.written())
        end = program.states[-1]
        self.assertEqual(model.figures(0), {key: end[key] for key in ("live", "pending", "reserved", "blocks")})

    def test_a_history_that_contradicts_its_segments_opens(self):
        snapshot = view_program.Program(11, 300).snapshot()
        trace = snapshot["device_traces"][0]
        alloc = next(i for i, entry in enumerate(trace) if entry["action"] == "alloc")
        trace.insert(alloc + 1, dict(trace[alloc]))
        done = next(i for i, entry in enumerate(trace) if entry["action"] == "free_completed")
        trace.insert(done + 1, dict(trace[done]))
        model = view_program.Model(self.page(snapshot, status=1))
        self.assertTrue(model.whole)
        self.assertEqual(model.facts["unmatched"], 2)
        self.assertRegex(self.said, "snapshot.pickle: no segment of the file contains 1 allocated block of .*, which the report omits")

    def test_bad_files_are_refused_and_leave_no_page(self):
        whole, huge = pickle.dumps(view_program.Program(12, 50).snapshot(), 4), view_program.Program(12, 50).snapshot()
        huge["device_traces"][0][-1]["size"] = 1 << 50
        for contents, says in ((whole[:len(whole) // 2], "byte"), (b"hello", "text file"), (pickle.dumps({"a": 1}), "no memory snapshot"),
                               (pickle.dumps({"segments": [], "device_traces": []}), "neither entries nor segments"),
                               (pickle.dumps(huge), "a block or segment has 1,024.00 TiB; a page shows at most 16.00 TiB")):
            self.assertIn(says, self.view(self.file(contents, "bad"), "-o", "page.html", status=2))
            self.assertEqual(sorted(os.listdir(self.folder)), ["bad"])
        self.assertIn("cannot be opened", self.view("missing", "-o", "page.html", status=2))
        self.file(whole, "good")
        self.assertIn("device 7", self.view("good", "--device", 7, "-o", "page.html", status=2))
        self.assertIn("cannot be written", self.view("good", "-o", "missing/page.html", status=2))
        self.assertIn("--output", self.view("good", status=2))
        self.assertIn("view", self.view("good", "good", "good", "-o", "page.html", status=2))

    def test_a_page_that_was_there_stays_when_a_file_is_bad(self):
        self.file("before", "page.html")
        self.view(self.file(b"hello"), "-o", "page.html", status=2)
        self.assertEqual(self.written(), "before")

    def test_full_disk_is_reported(self):
        path = self.file(view_program.Program(13, 20).snapshot())
        with open("/dev/full", "wb") as full:
            self.assertIn("cannot be written", self.view(path, "-o", "-", status=2, stdout=full))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
