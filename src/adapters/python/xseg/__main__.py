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
    wheel_command = HERE / "bin/xseg"
    command = wheel_command if wheel_command.exists() else HERE.parents[3] / "bin/xseg"  # that is /usr/bin/xseg
    if not command.exists():
        sys.exit(f"xseg: command not found, {wheel_command}; install the wheel of xseg, or run the command of a build folder")
    try:
        os.execv(command, ["xseg", *sys.argv[1:]])
    except OSError as failure:
        sys.exit(f"xseg: cannot run the command, {failure}")


if __name__ == "__main__":
    main()
