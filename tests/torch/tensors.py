# SPDX-License-Identifier: MIT
"""Functions that the programs of this suite share, on any allocator."""
import ctypes

import torch

MIB = 1 << 20
# The duration of simulated work that runs until a thread waits for it, or until xseg_sim_finish().
FOREVER = (1 << 64) - 1


def byte_tensor(mib, device="cuda"):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


def fill(tensor, value):
    """Copies a tensor from the host, because simulated kernels do not compute values."""
    return tensor.copy_(torch.full(tensor.shape, value, dtype=tensor.dtype))


def holds(tensor, value):
    """Whether all elements of a tensor have this value."""
    return bool((tensor.cpu() == value).all())


def expect(is_true, message):
    """An assertion that is also checked with `python -O`."""
    if not is_true:
        raise AssertionError(message)


def expect_error(error_class, texts, function, *arguments):
    """The call raises an error of this class whose message contains a string or several strings."""
    try:
        function(*arguments)
    except error_class as error:
        expect(all(text in str(error) for text in ([texts] if isinstance(texts, str) else texts)), error)
    else:
        raise AssertionError(f"expected an error that contains {texts}")


def current(name, device=0):
    return torch.cuda.memory_stats(device)[f"{name}.all.current"]


def used_bytes():
    """Used memory of the device, as the driver reports it."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def simulator():
    """The simulated driver, which is the driver of this process."""
    library = ctypes.CDLL("libcuda.so.1")
    library.xseg_sim_launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.xseg_sim_launch_on.argtypes = [ctypes.c_void_p] + [ctypes.c_uint64] * 3
    library.xseg_sim_finish.argtypes = [ctypes.c_void_p]
    return library
