# SPDX-License-Identifier: MIT
"""Small programs on every allocator, in both modes: the operations of PyTorch on a device work with the runtime for tests.

runtime.py DRIVER
"""
import sys

import backends

CASES = backends.HERE / "cases.py"
# Variables of the simulator, by program.
VARIABLES = {
    "streams": {}, "events": {"XSEG_SIM_COSTS": "none"}, "contents": {"XSEG_SIM_BYTES": "1"}, "out_of_memory": {},
    "listeners": {}, "graphs": {"XSEG_SIM_BYTES": "1"}, "recorded": {}, "conditional": {}, "pools": {}, "compiled": {},
    "training": {},
    "devices": {"XSEG_SIM_DEVICES": "2", "XSEG_SIM_BYTES": "1"}, "sharing": {"XSEG_SIM_BYTES": "1"},
    "loading": {"XSEG_SIM_BYTES": "1"}, "forked": {},
}


if __name__ == "__main__":
    # torch.compile and optimizers import this module.
    backends.PRELOADED.append("torch._dynamo.backends.cudagraphs")
    sys.exit(backends.run_all(sys.argv[1], CASES, [
        (f"{name}, expandable_segments:{mode}", [name],
         {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{mode}", **VARIABLES[name]})
        for name in sys.argv[3:] or VARIABLES for mode in ("True", "False")]))
