# SPDX-License-Identifier: MIT
"""Measures the page of `xseg view` in Chromium without a GPU, for a snapshot of a training job of N events.

view.py TOOL [--events N] [--blocks N] [--picture FILE [--dark]] [--keep FOLDER]

Prints the size of the page, the time of the first picture, the time of frames while panning and zooming and of a state (median
and maximum of 40), the memory of the page's process, and the number of DOM nodes.  A frame ends when its pixels can be read back.
Requires the packages of tests/tool/view_page.py.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import job

MEASURE = """
const pane = Main.panes[0], measured = {};
const canvases = [pane.timeline, pane.pages, pane.stateMap];
const flush = () => { for (const canvas of canvases) canvas.getContext("2d").getImageData(0, 0, 1, 1); };
const measure = (name, act) => {
  const times = [];
  for (let i = 0; i < 40; i++) { const start = performance.now(); act(i); flush(); times.push(performance.now() - start); }
  times.sort((a, b) => a - b);
  measured[name] = [times[20], times[39]];
};
measure("pan", (i) => { pane.view.set(0.1 + i * 0.005, 0.7 + i * 0.005); pane.draw(); });
measure("zoom", (i) => { pane.view.set(0.3 - i * 0.007, 0.4 + i * 0.015); pane.draw(); });
measure("state", (i) => { pane.cursor = Math.floor(pane.model.n * i / 40); pane.state = null; pane.drawState(); });
measure("pages at rest", (i) => { pane.view.set(i * 0.001, 0.9 + i * 0.001); pane.drawPages(); });
return [Main.times.first, measured, document.getElementsByTagName("*").length];
"""


def browse(page, dark):
    """Open a page in Chromium, and wait until it is complete."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1270"):
        options.add_argument(argument)
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    browser.set_script_timeout(300)
    if dark:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    browser.get(page.resolve().as_uri())
    while browser.execute_script("return document.documentElement.dataset.ready") != "all":
        time.sleep(0.1)
    return browser


def resident():
    """The resident bytes of the largest renderer process."""
    largest = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            if b"--type=renderer" in (status.parent / "cmdline").read_bytes():
                line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
                largest = max(largest, int(line.split()[1]) << 10)
        except (OSError, StopIteration):
            continue
    return largest


def main():
    """Create the snapshot and the page, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool")
    parser.add_argument("--events", type=int, default=1000000)
    parser.add_argument("--blocks", type=int, default=1000000)
    parser.add_argument("--picture")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--keep")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(arguments.keep or folder)
        if not (folder / "job.pickle").exists():
            job.write(folder / "job.pickle", arguments.events)
        start = time.monotonic()
        command = [os.path.abspath(arguments.tool), "view", "job.pickle", "--blocks", str(arguments.blocks), "-o", "job.html"]
        subprocess.run(command, check=True, cwd=folder)
        print(f"xseg view       {time.monotonic() - start:.2f} s")
        print(f"page            {(folder / 'job.html').stat().st_size / 1e6:.1f} MB")
        browser = browse(folder / "job.html", arguments.dark)
        try:
            if arguments.picture:
                browser.execute_script("const pane = Main.panes[0]; pane.goTo(Math.floor(pane.model.n * 0.55)); "
                                       "pane.choose(pane.findLargest(0));")
                time.sleep(0.5)
                browser.save_screenshot(arguments.picture)
                return
            print(f"resident memory {resident() / 1e6:.0f} MB")
            first, measured, nodes = browser.execute_script(MEASURE)
            print(f"first picture   {first:.0f} ms")
            for name, (median, highest) in measured.items():
                print(f"{name:15} {median:.1f} ms, at most {highest:.1f}")
            print(f"nodes           {nodes}")
        finally:
            browser.quit()


if __name__ == "__main__":
    sys.exit(main())
