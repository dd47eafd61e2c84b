# SPDX-License-Identifier: MIT
"""`xseg advise --pytorch` omits exactly the keys that PyTorch's allocator does not have: keys.py DRIVER."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import backends

HERE = pathlib.Path(__file__).resolve()
# Values of keys whose default cannot be written in a settings string.
VALUES = {"max_split_size_mb": "64", "expandable_segments_reserve": "0.5",
          "soft_limit_mb": "20000", "hard_limit_mb": "20000"}


def program(*keys):
    """Prints the names of the keys that PyTorch rejects as unknown."""
    import torch  # pylint: disable=import-outside-toplevel,import-error

    torch.cuda.init()
    for key in keys:
        try:
            torch.cuda.memory._set_allocator_settings(key)  # pylint: disable=protected-access
        except (RuntimeError, ValueError) as error:
            if "Unrecognized key" in str(error):
                print("unknown", key.partition(":")[0])


class Keys(unittest.TestCase):
    def test_keys_that_pytorch_rejects_are_omitted(self):
        tool = pathlib.Path(sys.argv[1]).parent / "xseg"
        known = json.loads(subprocess.run([tool, "config", "--json"], capture_output=True, check=True).stdout)["keys"]
        keys = [key["name"] + ":" + VALUES.get(key["name"], key["default"]) for key in known]
        output = backends.finish(backends.start(sys.argv[1], "native", HERE, "program", *keys), "native").splitlines()
        unknown = [line.split()[1] for line in output if line.startswith("unknown ")]
        self.assertIn("page_size", unknown)
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as trace:
            trace.write("xtrace 1\nc " + ",".join(keys) + "\na 1 512 0\nf 1\n")
            trace.flush()
            advice = json.loads(subprocess.run([tool, "advise", "--pytorch", "--json", trace.name], capture_output=True,
                                               check=True).stdout)
        self.assertEqual(advice["omitted"], ",".join(key for key in keys if key.partition(":")[0] in unknown))
        self.assertEqual(advice["current"]["config"], ",".join(key for key in keys if key.partition(":")[0] not in unknown))


if __name__ == "__main__":
    if sys.argv[1] == "program":
        program(*sys.argv[2:])
        sys.exit()
    backends.require(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
