/* SPDX-License-Identifier: MIT */
/*
 * What every door does first: check the handle, and refuse in a forked child.
 *
 * The doors check arguments, find the device, and call the floor below; nothing else.
 */
#ifndef XSEG_DOOR_H
#define XSEG_DOOR_H

#include "src/base/error.h"
#include "src/core/allocator.h"
#include "xseg/trim.h"

static inline xseg_status xseg_door_forked(void)
{
    return xseg_fail(XSEG_ERR_FORKED,
                     "this allocator belongs to the parent process, and a driver that has been "
                     "started does not work in a forked child: fork before the first xseg_open(), "
                     "or start the child by exec (in Python: the start method \"spawn\")");
}

/* Returns from the door unless the allocator can be used by this process. */
#define XSEG_DOOR(allocator) XSEG_DOOR_OF(allocator, __func__)

/* XSEG_DOOR() for a part of a door, which gives the name that the user called. */
#define XSEG_DOOR_OF(allocator, name)                                               \
    do {                                                                            \
        if (__builtin_expect((allocator) == NULL, 0))                               \
            return xseg_fail(XSEG_ERR_ARGUMENT, "%s: the allocator is NULL", name); \
        if (xseg_fork_is_child(&(allocator)->fork))                                 \
            return xseg_door_forked();                                              \
    } while (0)

/* The same for a door that is given a pool. */
#define XSEG_DOOR_POOL(pool)                                                       \
    do {                                                                           \
        if (__builtin_expect((pool) == NULL, 0))                                   \
            return xseg_fail(XSEG_ERR_ARGUMENT, "%s: the pool is NULL", __func__); \
        if (xseg_fork_is_child((pool)->body->device->fork))                        \
            return xseg_door_forked();                                             \
    } while (0)

/* What a door says of a pool that has ended. */
static inline xseg_status xseg_door_over(const char *door)
{
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "%s: nobody holds the pool any more, and it has no blocks: it is over", door);
}

/* Returns from the door if an argument is not as it must be. */
#define XSEG_DOOR_REQUIRE(cond, ...)                          \
    do {                                                      \
        if (__builtin_expect(!(cond), 0))                     \
            return xseg_fail(XSEG_ERR_ARGUMENT, __VA_ARGS__); \
    } while (0)

/*
 * Structures start with their size, which tells what the caller's header knew.  One that comes in
 * must have a size that was published; one that goes out is filled in as far as the caller knows it.
 */
#define XSEG_DOOR_PUBLISHED(given, type) ((given)->struct_bytes == sizeof(type))
/* One from a caller that knows the structure as it was before `member` came to its end. */
#define XSEG_DOOR_PUBLISHED_BEFORE(given, type, member) \
    ((given)->struct_bytes == offsetof(type, member))
#define XSEG_DOOR_KNOWS(given, type) \
    ((given)->struct_bytes >= sizeof(size_t) && (given)->struct_bytes <= sizeof(type))

/*
 * A door that has to be short ends in a call of one of these, and each of them in a call of the next: with
 * what the door was given, or what it led to.  What the compiler makes of that are jumps, and none saves
 * registers for another.  Each begins a cache line: where linking puts them moves traces by 5 % else.
 */
#define XSEG_DOOR_NEXT static __attribute__((noinline, aligned(64))) xseg_status

#endif
