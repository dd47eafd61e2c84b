# SPDX-License-Identifier: MIT
"""Tests of the page of `xseg view` in Chromium, driven by Selenium, without a network: view_page.py TOOL SOURCE_ROOT.

The tests compare values and structure, not pixels.  They are skipped without chromium, chromedriver or the Python package
selenium (Debian: chromium chromium-driver python3-selenium).
"""
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import time
import unittest

from folder_case import FolderCase

EXIT_SKIPPED = 77
SYSTEM_PYTHON = "/usr/bin/python3"  # has Debian's packages
TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    if os.path.exists(SYSTEM_PYTHON) and os.path.realpath(SYSTEM_PYTHON) != os.path.realpath(sys.executable):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    print("chromium, chromedriver or selenium is not installed; run .ci/setup chromium chromium-driver python3-selenium")
    sys.exit(EXIT_SKIPPED)
if not BROWSER or not DRIVER:
    print("chromium, chromedriver or selenium is not installed; run .ci/setup chromium chromium-driver python3-selenium")
    sys.exit(EXIT_SKIPPED)
sys.path.insert(0, str(ROOT / "tests/support"))
import view_program  # pylint: disable=wrong-import-position

STATES = """
const pane = Main.panes[0], states = [];
for (let m = 0; m <= pane.model.n; m++) {
  const state = pane.finder.at(m);
  states.push({allocated: state.allocated, pending: state.pending, reserved: state.reserved, cached: state.cached,
               stranded: state.fragmented, blocks: state.lives.length});
}
return states;
"""
SERIES = """
const {memory, model} = Main.panes[0];
return Array.from({length: model.n + 1}, (_, m) => (
  (values) => [Series.active(values, 0), values[Sites.PENDING], values[Series.RESERVED]])(memory.at(m)));
"""
COLUMNS = """
const [from, to, width] = arguments, {memory, view} = Main.panes[0];
view.set(from, to);
const edges = view.edges(width), columns = memory.columns(edges);
return Array.from({length: width}, (_, c) => [edges[c], edges[c + 1], Series.active(columns, c * Series.VALUES),
                                               columns[c * Series.VALUES + Series.RESERVED]]);
"""
PAGES = """
const [width, height] = arguments, {map, view} = Main.panes[0];
view.set(0, 1);
const edges = view.edges(width), grids = map.grids(edges, width, height);
const total = (grid, c) => Math.round(
  Array.from({length: height}, (_, row) => grid.cells[row * (width + 1) + c]).reduce((a, b) => a + b));
return Array.from({length: width}, (_, c) => ({
  moment: edges[c], mapped: total(grids.mapped, c), allocated: total(grids.allocated, c), pending: total(grids.pending, c),
  held: total(grids.used, c)}));
"""


class PageTest(FolderCase):
    @classmethod
    def setUpClass(cls):
        options = Options()
        options.binary_location = BROWSER
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000",
                         "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        cls.browser = webdriver.Chrome(service=Service(DRIVER), options=options)
        cls.addClassCleanup(cls.browser.quit)

    def requested_urls(self):
        """Returns the URLs that the browser has requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]

    def load(self, path):
        self.requested_urls()
        self.browser.get(path.as_uri())
        deadline = time.monotonic() + 60
        while (ready := self.run_script("return document.documentElement.dataset.ready")) != "all":
            self.assertNotEqual(ready, "failed", self.browser.get_log("browser"))
            self.assertLess(time.monotonic(), deadline, self.browser.get_log("browser"))
            time.sleep(0.02)

    def open(self, *snapshots, options=()):
        paths = []
        for index, snapshot in enumerate(snapshots):
            path = snapshot
            if isinstance(snapshot, dict):
                path = self.folder / f"{index}.pickle"
                path.write_bytes(pickle.dumps(snapshot, 4))
            paths.append(path)
        subprocess.run([TOOL, "view", *paths, "-o", self.folder / "page.html", *options], check=True, stderr=subprocess.DEVNULL)
        self.load(self.folder / "page.html")

    def tearDown(self):
        self.assertEqual([entry for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")], [])
        self.assertEqual(self.requested_urls(), [(self.folder / "page.html").as_uri()])

    def run_script(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def element(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def press(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()

    def cursor(self, pane=0):
        return self.run_script("return Main.panes[arguments[0]].cursor", pane)

    def test_state_matches_the_program_at_every_event(self):
        for seed, skipped in ((1, 0), (2, 200)):
            program = view_program.Program(seed, 700, skipped)
            self.open(program.snapshot())
            self.assertEqual(self.run_script(STATES), program.states)

    def test_series_match_the_program(self):
        program = view_program.Program(3, 1500, 300)
        self.open(program.snapshot())
        expected = [[state["allocated"] + state["pending"], state["pending"], state["reserved"]] for state in program.states]
        self.assertEqual(self.run_script(SERIES), expected)

    def test_column_has_the_peak_of_its_events(self):
        program = view_program.Program(4, 3000)
        self.open(program.snapshot())
        for from_, to, width in ((0, 1, 1), (0, 1, 3), (0, 1, 7), (0.1, 0.9, 100), (0.5, 0.52, 400)):
            columns = self.run_script(COLUMNS, from_, to, width)
            for first, last, active, reserved in columns:
                states = program.states[first:last + 1]
                self.assertEqual(active, max(state["allocated"] + state["pending"] for state in states), (first, last))
                self.assertEqual(reserved, max(state["reserved"] for state in states), (first, last))
            self.assertEqual(len(columns), width)

    def test_peaks_include_summed_blocks(self):
        program = view_program.Program(15, 2000)
        self.open(program.snapshot(), options=("--blocks", "60"))
        for width in (1, 5):
            columns = self.run_script(COLUMNS, 0, 1, width)
            for column_index, kind in ((2, lambda state: state["allocated"] + state["pending"]),
                                       (3, lambda state: state["reserved"])):
                self.assertEqual(max(column[column_index] for column in columns), max(map(kind, program.states)))
        self.assertIn("aggregated", self.element(".figures").text)

    def test_sums_of_pages_equal_those_of_the_program(self):
        for seed, skipped in ((5, 0), (6, 400)):
            program = view_program.Program(seed, 900, skipped)
            self.open(program.snapshot())
            for width, height in ((300, 40), (37, 160)):
                for column in self.run_script(PAGES, width, height):
                    state = program.states[column["moment"]]
                    blocks = state["reserved"] - state["cached"]
                    self.assertEqual(column["mapped"], state["reserved"])
                    self.assertEqual(column["allocated"] + column["pending"], blocks)
                    self.assertEqual(column["held"] - blocks, state["stranded"], column)

    def test_pytorch_snapshots_can_be_opened(self):
        for path in sorted((ROOT / "tests/data/snapshots").glob("*.pickle.zst")):
            self.open(path)
            states = self.run_script(STATES)
            self.assertGreater(len(states), 100)
            self.assertGreater(states[-1]["reserved"], 0)
            self.assertTrue(all(0 <= state["stranded"] <= state["cached"] for state in states))

    def test_click_shows_the_stack_of_the_block(self):
        self.open(view_program.Program(7, 500).snapshot())
        point = self.run_script("""
            const pane = Main.panes[0], p = pane.picture, c = Math.floor(p.inner / 2);
            const box = pane.timeline.getBoundingClientRect();
            let y = p.foot - 3;
            while (y > 0 && Timeline.hit(p, Timeline.LEFT + c, y).band < 0) y--;
            return [Timeline.LEFT + c - box.width / 2, y - box.height / 2, Timeline.hit(p, Timeline.LEFT + c, y).band];""")
        chain = ActionChains(self.browser).move_to_element_with_offset(self.element(".timeline"), int(point[0]), int(point[1]))
        chain.click().perform()
        self.assertRegex(self.element("pre").text, r"(?s)^block 0x.*\nsite +model\d\.py:\d+ layer\d\n.*\n\S*torch/nn\.py:\d+ "
                                                   r"inner\d\nmodel\d\.py:\d+ layer\d$")
        self.assertIn("active (allocated and pending)", self.element(".timeline ~ .figures").text)

    def test_search_finds_blocks_by_their_stack(self):
        program = view_program.Program(8, 800)
        alloc_moments = [index + 1 for index, entry in enumerate(program.trace)
                         if entry["action"] == "alloc" and entry["frames"][1]["name"] == "layer4"]
        self.open(program.snapshot())
        self.press(Keys.HOME, "/")
        self.press("LAYER4")
        self.assertTrue(self.element("#found").text.startswith(f"{len(alloc_moments)} blocks"), self.element("#found").text)
        for moment in alloc_moments[:3]:
            self.press(Keys.ENTER)
            self.assertEqual(self.cursor(), moment)
            self.assertIn("layer4", self.element("pre").text)
        ActionChains(self.browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
        self.assertEqual(self.cursor(), alloc_moments[1])
        self.press(Keys.ESCAPE)
        self.assertEqual(self.element("#found").text, "")

    def test_keys_move_the_cursor_and_the_view(self):
        program = view_program.Program(9, 400)
        end = len(program.trace)
        self.open(program.snapshot())
        self.assertEqual(self.cursor(), end)
        self.press(Keys.LEFT)
        self.assertEqual(self.cursor(), end - 1)
        self.press(Keys.HOME, Keys.RIGHT, Keys.RIGHT)
        self.assertEqual(self.cursor(), 2)
        self.press("p")
        peak = program.states[self.cursor()]
        self.assertEqual(peak["allocated"] + peak["pending"],
                         max(state["allocated"] + state["pending"] for state in program.states))
        self.press("+", "+")
        view = self.run_script("const v = Main.panes[0].view; return [v.from, v.to]")
        self.assertAlmostEqual(view[1] - view[0], 0.49)
        self.press("0", "t")
        self.assertEqual(self.element("#axis").get_attribute("value"), "time")
        self.assertEqual(self.run_script("const v = Main.panes[0].view; return [v.moment(0), v.moment(1)]")[1], end)

    def test_mouse_zooms_and_moves_the_view(self):
        self.open(view_program.Program(17, 600).snapshot())
        view = "const v = Main.panes[0].view; return [v.from, v.to]"
        timeline = self.element(".timeline")
        origin = ScrollOrigin.from_element(timeline)
        ActionChains(self.browser).scroll_from_origin(origin, 0, -300).perform()
        self.run_script("return new Promise((done) => setTimeout(done, 200))")
        zoomed = self.run_script(view)
        self.assertLess(zoomed[1] - zoomed[0], 0.9)
        ActionChains(self.browser).move_to_element(timeline).click_and_hold().move_by_offset(-60, 0).release().perform()
        moved = self.run_script(view)
        self.assertGreater(moved[0], zoomed[0])
        self.assertAlmostEqual(moved[1] - moved[0], zoomed[1] - zoomed[0])

    def test_blocks_are_grouped_by_the_chosen_label(self):
        program = view_program.Program(20, 400)
        snapshot = program.snapshot()
        begin, end = program.trace[0]["time_us"], program.trace[-1]["time_us"]
        step = (end - begin) // 4
        snapshot["external_annotations"] = [
            {"stage": stage, "name": f"ProfilerStep#{step_index}", "device": 0,
             "time_us": begin + (step_index + (stage == "END")) * step}
            for step_index in range(4) for stage in ("START", "END")]
        for entry in snapshot["device_traces"][0]:
            entry["compile_context"] = "Torch-Compiled Region: 0/0"
        self.open(snapshot)
        group = self.element("#group")
        visible_options = [option.get_attribute("value") for option in group.find_elements(By.TAG_NAME, "option")
                           if option.get_attribute("hidden") is None]
        self.assertEqual(visible_options, ["site", "region", "step"])
        series = self.run_script(SERIES)
        group.find_element(By.CSS_SELECTOR, "[value=step]").click()
        names = [button.text for button in self.browser.find_elements(By.CSS_SELECTOR, ".legend button")]
        self.assertLessEqual({f"ProfilerStep#{step_index}" for step_index in range(4)}, set(names))
        self.assertIn("allocated by step", self.element("h3").text)
        self.assertEqual(self.run_script(SERIES), series)
        self.run_script("const pane = Main.panes[0]; pane.choose(pane.model.lives.count - 1)")
        alloc_moment = self.run_script("const {lives} = Main.panes[0].model; return lives.allocatedAt[lives.count - 1]")
        step_index = min(3, (program.trace[alloc_moment - 1]["time_us"] - begin) // step)
        self.assertRegex(self.element("pre").text, rf"\nsite +ProfilerStep#{step_index}\n(.*\n)*region +Torch-Compiled Region: "
                                                   rf"0/0\nstep +ProfilerStep#{step_index}\n")
        self.element("#search").send_keys("ProfilerStep#2")
        self.assertRegex(self.element("#found").text, r"^[1-9]\d* blocks, ")
        group.find_element(By.CSS_SELECTOR, "[value=site]").click()
        self.assertIn("allocated by call site", self.element("h3").text)

    def test_view_of_two_files_is_shared(self):
        self.open(view_program.Program(10, 300).snapshot(), view_program.Program(11, 500).snapshot())
        self.assertEqual([node.text for node in self.browser.find_elements(By.TAG_NAME, "h2")],
                         [str(self.folder / "0.pickle"), str(self.folder / "1.pickle")])
        positions = [node.location for node in self.browser.find_elements(By.CSS_SELECTOR, ".pane")]
        self.assertEqual(positions[0]["y"], positions[1]["y"])
        self.press("+")
        views = self.run_script("return Main.panes.map((pane) => [pane.view.from, pane.view.to])")
        self.assertEqual(views[0], views[1])
        self.assertLess(views[0][1] - views[0][0], 1)

    def test_reasons_of_pages_are_shown_only_at_the_end(self):
        program = view_program.Program(16, 300)
        snapshot = program.snapshot()
        segment = max(snapshot["segments"], key=lambda segment_: segment_["total_size"])
        page = [segment["address"], view_program.PAGE, "pinned", 0, view_program.PAGE, view_program.PAGE // 2]
        snapshot["xseg"] = {"devices": [{"device": 0, "lost": 5, "left_out": 0, "pages": [page]}]}
        self.open(snapshot)
        self.assertIn("not released: 2.00 MiB (pinned)", self.element(".figures:has(+ .state)").text)
        self.assertEqual(self.run_script("return Main.panes[0].state.pinned.length"), 1)
        self.assertEqual(self.run_script("return Main.panes[0].state.registered.length"), 1)
        self.assertIn("registered 1.00 MiB", self.element(".figures:has(+ .state)").text)
        self.assertIn("registered pages, at the end of the recording", self.element("body").text)
        self.assertIn("5 older entries were overwritten or omitted", self.element(".figures").text)
        self.press(Keys.LEFT)
        self.run_script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.assertEqual(self.run_script("return Main.panes[0].state.pinned.length"), 0)

    def test_number_of_nodes_is_independent_of_the_file(self):
        snapshot = view_program.Program(12, 3000).snapshot()
        for index, entry in enumerate(snapshot["device_traces"][0]):
            if "frames" in entry:
                entry["frames"] = [{"name": f"site{index}", "filename": "many.py", "line": index}]
        self.open(snapshot, snapshot)
        self.press("/")
        self.press("site")
        self.assertLess(self.run_script("return document.getElementsByTagName('*').length"), 300)

    def test_ticks_are_round_numbers(self):
        self.open(view_program.Program(18, 3000).snapshot())
        steps = self.run_script("return [1, 3, 150, 700, 1024, 1500, 5e6, 3e9, 7e11, 2e13].map(Axis.roundUpBytes)")
        self.assertEqual(steps, [1, 5, 256, 1024, 1024, 2048, 5 << 20, 5 << 30, 1 << 40, 20 << 40])
        self.assertEqual(self.run_script("return Axis.byteTicks(11 * 2 ** 30, 6).map((tick) => tick.text)"),
                         ["0", "2 GiB", "4 GiB", "6 GiB", "8 GiB", "10 GiB"])
        self.assertEqual(self.run_script("return Axis.byteTicks(1300 * 2 ** 20, 6).map((tick) => tick.text)"),
                         ["0", "256 MiB", "512 MiB", "768 MiB", "1 GiB", "1.25 GiB"])
        for from_, to in ((0, 1), (0.3, 0.9), (0.5, 0.51)):
            for by_time in (False, True):
                ticks = self.run_script("""
                    const [from, to, byTime] = arguments, view = Main.panes[0].view;
                    view.byTime = byTime;
                    view.set(from, to);
                    return view.ticks(5).map((tick) => [tick.share * view.extent, tick.text,
                                                        tick.share >= view.from && tick.share <= view.to]);""",
                                        from_, to, by_time)
                self.assertIn(len(ticks), range(1, 7), ticks)
                self.assertTrue(all(tick[2] for tick in ticks), ticks)
                self.assertRegex(ticks[-1][1], r"^\d+(\.\d+)? (us|ms|s|min)$" if by_time else r"^\d+(,\d{3})*$")

    def test_each_color_has_one_meaning(self):
        self.open(view_program.Program(19, 300).snapshot())
        for scheme in ("light", "dark"):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                         {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            pixels, states = self.run_script("""
                const {bands} = Colors.timelinePixels();
                return [bands.map(({full}) => full.color + "/" + full.stripe),
                        Colors.statePixels().map(({color, stripe}) => color + "/" + stripe)];""")
            self.assertEqual(len(set(pixels)), len(pixels))
            self.assertEqual(len(set(states)), 5)
            # Both diagrams share only the colors of pending memory and of the allocated memory of other sites.
            self.assertEqual(set(pixels) & set(states), set(pixels[-2:]))
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_dark_and_light_schemes_differ(self):
        self.open(view_program.Program(13, 100).snapshot())
        colors = []
        for scheme in ("light", "dark"):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                         {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            self.run_script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            colors.append(self.run_script("return [getComputedStyle(document.body).backgroundColor, Colors.theme('reserved')]"))
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.assertNotEqual(colors[0][0], colors[1][0])
        self.assertNotEqual(colors[0][1], colors[1][1])

    def test_file_without_history_shows_the_final_state(self):
        program = view_program.Program(14, 300)
        self.open(program.snapshot() | {"device_traces": [[]]})
        self.assertEqual(self.run_script(STATES), [program.states[-1]])
        self.assertIn("no history was recorded", self.element(".figures").text)


class RequestTest(PageTest):
    """Verifies that the checks of the tests above detect a network request."""

    def tearDown(self):
        """The test expects a request and an error."""

    def test_network_request_is_detected(self):
        page = self.folder / "page.html"
        page.write_text('<html data-ready="all"><img src="http://example.invalid/x.png">', encoding="utf-8")
        self.load(page)
        self.assertIn("http://example.invalid/x.png", self.requested_urls())
        self.browser.get_log("browser")


if __name__ == "__main__":
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(PageTest))
    suite.addTest(RequestTest("test_network_request_is_detected"))
    sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
