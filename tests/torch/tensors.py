# SPDX-License-Identifier: MIT
"""Functions that the programs of this suite share, on any allocator."""
import ctypes

import torch

MIB = 1 << 20
# Work with this duration runs until a stream waits for it.
OPEN = (1 << 64) - 1


def byte_tensor(mib, device="cuda"):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


def fill(tensor, value):
    """Copies a tensor from the host, because simulated kernels do not compute values."""
    return tensor.copy_(torch.full(tensor.shape, value, dtype=tensor.dtype))


def holds(tensor, value):
    return bool((tensor.cpu() == value).all())


def expect(is_true, message):
    """An assertion that is also checked with `python -O`."""
    if not is_true:
        raise AssertionError(message)


def expect_error(kind, words, function, *arguments):
    """The call raises an error of this class whose message contains a string or several strings."""
    try:
        function(*arguments)
    except kind as error:
        expect(all(word in str(error) for word in ([words] if isinstance(words, str) else words)), error)
    else:
        raise AssertionError(f"expected an error that contains {words}")


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
