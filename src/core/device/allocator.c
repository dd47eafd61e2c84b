/* SPDX-License-Identifier: MIT */
#include "src/core/device/allocator.h"

#include <inttypes.h>

#include "src/base/check.h"
#include "src/base/error.h"

xseg_status xseg_allocator_fail_forked(void)
{
    return xseg_fail(XSEG_ERR_FORKED,
                     "allocator belongs to the parent process, and CUDA does not work in a forked "
                     "child; fork before the first xseg_open(), or start the child by exec (in "
                     "Python, use the start method \"spawn\")");
}

xseg_status xseg_allocator_fail_foreign(uint64_t address)
{
    return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                     "address is not in memory of this allocator, %#" PRIx64, address);
}

xseg_status xseg_allocator_check(const struct xseg_allocator *allocator)
{
    if (__builtin_expect(allocator == NULL, 0))
        return xseg_fail(XSEG_ERR_ARGUMENT, "allocator is NULL");
    return xseg_fork_guard_is_child(&allocator->fork) ? xseg_allocator_fail_forked() : XSEG_OK;
}
