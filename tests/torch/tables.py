# SPDX-License-Identifier: MIT
"""The seed's tables on the memory of CUDA graphs, each on every allocator, to the last printed digit.

tables.py DRIVER
"""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "data/torch"))

import backends  # noqa: E402
import seed_tables  # noqa: E402

TABLES = backends.ROOT / "tests/data/torch/seed_tables.py"


def main():
    """Two processes at a time."""
    driver = pathlib.Path(sys.argv[1])
    backends.require(driver)
    waiting = [(backend, name, text) for backend in backends.BACKENDS for name, (_, text, _) in seed_tables.CASES.items()]
    failed, running = [], []
    while waiting or running:
        while waiting and len(running) < min(4, os.cpu_count() or 1):
            backend, name, text = waiting.pop(0)
            # Without a string xseg grows in place; the tables were printed by an allocator that did not.
            process = backends.start(driver, backend, TABLES, name,
                                     PYTORCH_CUDA_ALLOC_CONF=text or "expandable_segments:False")
            running.append((backend, name, process))
        backend, name, process = running.pop(0)
        try:
            backends.finish(process, backend)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
    print("\n".join(failed))
    print(f"{len(seed_tables.CASES)} tables on {', '.join(backends.BACKENDS)}; {len(failed)} disagree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
