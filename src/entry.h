/* SPDX-License-Identifier: MIT */
/*
 * What every entry point does first: check the handle, refuse in a forked child, run errands, and gather the
 * context of the events that the call may cause.  Three kinds run no errands: a hit; a scrape, which changes nothing; a
 * note that a stream uses a block, which may come with each hit.
 *
 * The entry points check arguments, find the device, and call the floor below; nothing else.
 */
#ifndef XSEG_ENTRY_H
#define XSEG_ENTRY_H

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "xseg/trim.h"

/* Returns from the entry point unless the allocator can be used by this process.  The entry point gathers. */
#define XSEG_ENTRY_CHECK(allocator)                                                      \
    do {                                                                                 \
        const xseg_status xseg_entry_status = xseg_allocator_check(allocator, __func__); \
        if (__builtin_expect(xseg_entry_status != XSEG_OK, 0))                           \
            return xseg_entry_status;                                                    \
    } while (0)

/* XSEG_ENTRY_CHECK(), runs errands, and gathers the context of a call without a word. */
#define XSEG_ENTRY(allocator)                       \
    do {                                            \
        XSEG_ENTRY_CHECK(allocator);                \
        xseg_allocator_run_errands(allocator);      \
        xseg_history_gather(&(allocator)->history); \
    } while (0)

/* Returns from the entry point unless the pool's allocator can be used by this process. */
#define XSEG_ENTRY_POOL(pool)                                                      \
    do {                                                                           \
        if (__builtin_expect((pool) == NULL, 0))                                   \
            return xseg_fail(XSEG_ERR_ARGUMENT, "%s: the pool is NULL", __func__); \
        if (xseg_fork_is_child((pool)->body->device->fork))                        \
            return xseg_allocator_fail_forked();                                   \
        xseg_allocator_run_errands((pool)->body->device->allocator);               \
        xseg_history_gather(&(pool)->body->device->allocator->history);            \
    } while (0)

/* Fail because the pool has ended. */
static inline xseg_status xseg_entry_over(const char *name)
{
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "%s: nobody holds the pool any more, and it has no blocks: it is over", name);
}

/* Returns from the entry point if an argument is not as it must be. */
#define XSEG_ENTRY_REQUIRE(cond, ...)                         \
    do {                                                      \
        if (__builtin_expect(!(cond), 0))                     \
            return xseg_fail(XSEG_ERR_ARGUMENT, __VA_ARGS__); \
    } while (0)

/*
 * A public structure starts with its size, which tells the version of the caller's header.  A structure that
 * the caller gives must have a size that was published; one that the library fills in is filled up to the
 * caller's size.
 */
#define XSEG_ENTRY_PUBLISHED(given, type) ((given)->struct_bytes == sizeof(type))
/* Whether the caller gave a structure as it was before `member` was added at its end. */
#define XSEG_ENTRY_PUBLISHED_BEFORE(given, type, member) \
    ((given)->struct_bytes == offsetof(type, member))
#define XSEG_ENTRY_KNOWS(given, type) \
    ((given)->struct_bytes >= sizeof(size_t) && (given)->struct_bytes <= sizeof(type))

#endif
