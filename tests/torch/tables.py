# SPDX-License-Identifier: MIT
"""The tables of NVIDIA's documentation about the memory of CUDA graphs are exact on every allocator.

tables.py DRIVER
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "data/torch"))

import backends  # noqa: E402
import seed_tables  # noqa: E402

TABLES = backends.ROOT / "tests/data/torch/seed_tables.py"


if __name__ == "__main__":
    # The tables are of an allocator without expandable segments, which are xseg's default.
    sys.exit(backends.run_all(sys.argv[1], TABLES, [
        (name, [name], {"PYTORCH_CUDA_ALLOC_CONF": text or "expandable_segments:False"})
        for name, (_, text, _) in seed_tables.CASES.items()]))
