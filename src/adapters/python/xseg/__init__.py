# SPDX-License-Identifier: MIT
"""xseg: a GPU memory allocator with expandable segments.

    import xseg

    with xseg.open("expandable_segments:True") as allocator:
        with allocator.allocate(100 << 20) as block:    # device 0, 100 MiB, default stream
            array = cupy.asarray(block)                 # or torch.from_dlpack(block)
            ...
        allocator.trim()                                # releases idle pages to the driver

The import compiles nothing and needs no driver; open() loads the driver.  The public headers, in the directory that
xseg._library.include() returns, document statuses, threads and costs of the functions.  Arguments and members of results
have the names of the headers.

The modules xseg.torch, xseg.numba, xseg.cupy and xseg.rmm connect other libraries to xseg.
"""
from xseg._allocator import Allocator, budget_members, config_keys, open  # pylint: disable=redefined-builtin
from xseg._block import Block
from xseg._errors import (
    ArgumentError, BusyError, ConfigError, DeviceLostError, DriverError, Error, FileError, ForkedError, HostMemoryError,
    LimitError, NoAddressesError, NoDriverError, NoMemoryError, NotAllocatedError, PausedError, UnsupportedError,
)
from xseg._pool import Pool
from xseg._range import Range, RangeView
from xseg._records import (
    BlockInfo, BlockState, BudgetEntry, ConfigKey, DeviceStats, DriverCall, ExplainResult, Groups, Limits, RangeInfo, Reason,
    ReasonKind, Stat, Statistics, TrimResult,
)
from xseg._registration import Dmabuf, Registration
from xseg._structs import VERSION

__version__ = VERSION
__all__ = [
    "Allocator", "ArgumentError", "Block", "BlockInfo", "BlockState", "BudgetEntry", "BusyError", "ConfigError", "ConfigKey", "DeviceStats",
    "DeviceLostError", "Dmabuf", "DriverCall", "DriverError", "Error", "ExplainResult", "FileError", "ForkedError", "Groups",
    "HostMemoryError", "LimitError", "Limits", "NoAddressesError", "NoDriverError", "NoMemoryError", "NotAllocatedError",
    "PausedError", "Pool", "Range", "RangeInfo", "RangeView", "Reason", "ReasonKind", "Registration", "Stat", "Statistics",
    "TrimResult", "UnsupportedError", "budget_members", "config_keys", "open",
]
