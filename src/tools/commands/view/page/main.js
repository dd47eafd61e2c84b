// SPDX-License-Identifier: MIT
// The page: reads the data, creates a pane for each file, and handles the keyboard.
const Main = (() => {
  const panes = [];
  const times = {}; // in ms, for benchmarks/view.py
  let active = 0;
  const element = (id) => document.getElementById(id);

  // Show the view of a pane in all panes.
  function changed(pane) {
    for (const other of panes) {
      if (other !== pane) other.view.set(pane.view.from, pane.view.to);
      other.drawSoon();
    }
  }

  function start() {
    const begin = performance.now();
    for (let number = 0; element(`summary-${number}`); number++) {
      const summary = element(`summary-${number}`);
      const columns = element(`columns-${number}`);
      const model = Model.read(JSON.parse(summary.textContent), columns.textContent);
      summary.remove();
      columns.remove();
      panes.push(new Pane.Pane(number, model, element("panes"), changed));
    }
    for (const pane of panes) pane.drawTimeline();
    times.first = performance.now();
    times.reading = times.first - begin;
    document.documentElement.dataset.ready = "first";
    setTimeout(() => showErrors(finish), 0);
  }

  function finish() {
    for (const pane of panes) pane.finish();
    listKinds();
    times.all = performance.now();
    document.documentElement.dataset.ready = "all";
  }

  function setAxis(byTime) {
    for (const pane of panes) {
      pane.view.byTime = byTime && pane.model.hasTime;
      pane.view.set(0, 1);
      pane.drawSoon();
    }
    element("axis").value = byTime ? "time" : "event";
  }

  // Show the kinds of groups that a file has.
  function listKinds() {
    const kinds = new Set(panes.flatMap((pane) => Sites.kindsOf(pane.model)));
    for (const option of element("group").options) option.hidden = !kinds.has(option.value);
  }

  function setGroups(kind) {
    for (const pane of panes) pane.regroup(kind);
    search();
  }

  function setWhole() {
    for (const pane of panes) { pane.view.set(0, 1); pane.drawSoon(); }
  }

  function search() {
    const found = panes.map((pane) => pane.setSearch(element("search").value)).filter((result) => result !== null);
    const count = found.reduce((sum, result) => sum + result.count, 0);
    const bytes = found.reduce((sum, result) => sum + result.bytes, 0);
    element("found").textContent = found.length === 0 ? "" : `${Text.count(count)} blocks, ${Text.bytes(bytes)}`;
  }

  function goToFound(step) {
    const pane = panes[active];
    const life = pane.search ? Search.next(pane, pane.search, pane.cursor, step) : -1;
    if (life < 0) return;
    pane.show(pane.model.lives.allocatedAt[life]);
    pane.choose(life);
  }

  function setHelp(isShown) {
    element("help").hidden = !isShown;
    element("help-button").setAttribute("aria-expanded", String(isShown));
  }

  const KEYS = {
    ArrowLeft: (pane, event) => pane.show(pane.cursor - (event.shiftKey ? 100 : 1)),
    ArrowRight: (pane, event) => pane.show(pane.cursor + (event.shiftKey ? 100 : 1)),
    Home: (pane) => pane.show(0),
    End: (pane) => pane.show(pane.model.n),
    p: (pane) => pane.show(pane.memory.peakBetween(pane.view.moment(pane.view.from), pane.view.moment(pane.view.to)).moment),
    "+": (pane) => zoomAtCursor(pane, 0.7),
    "=": (pane) => zoomAtCursor(pane, 0.7),
    "-": (pane) => zoomAtCursor(pane, 1 / 0.7),
    a: (pane) => { pane.view.pan(-0.1); changed(pane); },
    d: (pane) => { pane.view.pan(0.1); changed(pane); },
    0: () => setWhole(),
    t: (pane) => setAxis(!pane.view.byTime),
    "/": () => element("search").focus(),
    "?": () => setHelp(element("help").hidden),
    Escape: (pane) => { element("search").value = ""; search(); pane.clear(); },
  };

  function zoomAtCursor(pane, factor) {
    const { from, to } = pane.view;
    const around = (pane.view.share(pane.cursor) - from) / (to - from);
    pane.view.zoom(factor, around >= 0 && around <= 1 ? around : 0.5);
    changed(pane);
  }

  function press(event) {
    const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping && event.key === "Enter") { event.preventDefault(); goToFound(event.shiftKey ? -1 : 1); return; }
    if (isTyping && event.key !== "Escape") return;
    if (!Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    if (isTyping) event.target.blur();
    KEYS[event.key](panes[active], event);
  }

  function listen() {
    document.addEventListener("keydown", press);
    element("panes").addEventListener("focusin", (event) => {
      const at = panes.findIndex((pane) => pane.root.contains(event.target));
      if (at >= 0) active = at;
    });
    element("search").addEventListener("input", search);
    element("axis").addEventListener("change", (event) => setAxis(event.target.value === "time"));
    element("group").addEventListener("change", (event) => setGroups(event.target.value));
    element("whole").addEventListener("click", setWhole);
    element("help-button").addEventListener("click", () => setHelp(element("help").hidden));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const pane of panes) {
        pane.setTheme();
        pane.drawSoon();
      }
    });
  }

  // Call a function, and show its error on the page.
  function showErrors(act) {
    try {
      act();
    } catch (error) {
      element("panes").textContent = `The page cannot be displayed: ${error.message}`;
      document.documentElement.dataset.ready = "failed";
      throw error;
    }
  }

  listen();
  showErrors(start);
  return { panes, times, changed };
})();
