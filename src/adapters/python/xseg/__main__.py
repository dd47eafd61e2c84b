# SPDX-License-Identifier: MIT
"""python -m xseg: runs the command xseg of the wheel or of the system package, and `doctor` in this Python."""
import os
import sys
from typing import NoReturn

from xseg._library import HERE


def main() -> NoReturn:
    """Replace this process by the command, with the same arguments.  The checks of `doctor` are in Python."""
    if sys.argv[1:] == ["doctor"]:
        from xseg import _doctor  # pylint: disable=import-outside-toplevel
        sys.exit(_doctor.main())
    own = HERE / "bin/xseg"
    command = own if own.exists() else HERE.parents[3] / "bin/xseg"  # that is /usr/bin/xseg
    if not command.exists():
        sys.exit(f"xseg: command not found, {own}; install the wheel of xseg, or run the command of a build folder")
    try:
        os.execv(command, ["xseg", *sys.argv[1:]])
    except OSError as refusal:
        sys.exit(f"xseg: cannot run the command, {refusal}")


if __name__ == "__main__":
    main()
