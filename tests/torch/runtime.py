# SPDX-License-Identifier: MIT
"""Small programs on every allocator, in both modes: what PyTorch does with a device works on the runtime for tests.

runtime.py DRIVER
"""
import os
import pathlib
import sys

import backends

CASES = backends.HERE / "cases.py"
# Name: the simulated machine that it wants.
WANTED = {
    "streams": {},
    "events": {"XSEG_SIM_COSTS": "none"},
    "contents": {"XSEG_SIM_BYTES": "1"},
    "shortage": {},
    "listeners": {},
    "graphs": {"XSEG_SIM_BYTES": "1"},
    "recorded": {},
    "conditional": {},
    "pools": {},
    "compiled": {},
    "training": {},
    "devices": {"XSEG_SIM_DEVICES": "2", "XSEG_SIM_BYTES": "1"},
    "sharing": {"XSEG_SIM_BYTES": "1"},
    "loading": {"XSEG_SIM_BYTES": "1"},
    "forked": {},
}


def main():
    """Some processes at a time; with --only NAME... these programs alone."""
    driver = pathlib.Path(sys.argv[1])
    backends.require(driver)
    # torch.compile and optimizers import it.
    backends.PRELOADED.append("torch._dynamo.backends.cudagraphs")
    names = sys.argv[3:] or list(WANTED)
    waiting = [(backend, name, mode) for backend in backends.BACKENDS for name in names for mode in ("True", "False")]
    failed, running, count = [], [], len(waiting)
    while waiting or running:
        while waiting and len(running) < min(4, os.cpu_count() or 1):
            backend, name, mode = waiting.pop(0)
            process = backends.start(driver, backend, CASES, name,
                                     PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{mode}", **WANTED[name])
            running.append((backend, name, mode, process))
        backend, name, mode, process = running.pop(0)
        try:
            backends.finish(process, backend)
        except AssertionError as error:
            failed.append(f"{name}, expandable_segments:{mode}: {error}")
    print("\n".join(failed))
    print(f"{count} runs on {', '.join(backends.BACKENDS)}; {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
