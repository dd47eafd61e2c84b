/* SPDX-License-Identifier: MIT */
/*
 * Entry points: the public functions.  An entry point checks its arguments, finds the device, and
 * calls the core.
 *
 * Each entry point begins with a macro of this file, which sets the operation of error messages,
 * rejects calls in a forked child, runs deferred housekeeping, and gathers the context of the
 * events that the call can cause.  Calls of the fast path, and calls that only read statistics, run
 * no housekeeping.  A source implements the public header of its name; allocator.c also implements
 * observer.h and status.h, and share.c register.h and budget.h.
 */
#ifndef XSEG_ENTRY_H
#define XSEG_ENTRY_H

#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "xseg/reclaim.h"

/* Sets the operation of error messages, and returns from the entry point if the allocator is NULL
 * or belongs to the parent process.  The entry point itself gathers the context. */
#define XSEG_ENTRY_CHECK(allocator)                                            \
    XSEG_OPERATION(__func__);                                                  \
    do {                                                                       \
        const xseg_status xseg_entry_status = xseg_allocator_check(allocator); \
        if (__builtin_expect(xseg_entry_status != XSEG_OK, 0))                 \
            return xseg_entry_status;                                          \
    } while (0)

/* As XSEG_ENTRY_CHECK(); also runs housekeeping, and gathers the context of a call without a user
 * value. */
#define XSEG_ENTRY(allocator)                   \
    XSEG_ENTRY_CHECK(allocator);                \
    do {                                        \
        xseg_housekeeping_run(allocator);       \
        xseg_allocator_gather(allocator, NULL); \
    } while (0)

/* As XSEG_ENTRY(), for the allocator of a pool. */
#define XSEG_ENTRY_POOL(pool)                                    \
    XSEG_OPERATION(__func__);                                    \
    do {                                                         \
        if (__builtin_expect((pool) == NULL, 0))                 \
            return xseg_fail(XSEG_ERR_ARGUMENT, "pool is NULL"); \
        if (xseg_fork_guard_is_child((pool)->device->fork))      \
            return xseg_allocator_fail_forked();                 \
        xseg_housekeeping_run((pool)->device->allocator);        \
        xseg_allocator_gather((pool)->device->allocator, NULL);  \
    } while (0)

/* Returns XSEG_ERR_ARGUMENT from the entry point unless a condition holds. */
#define XSEG_ENTRY_REQUIRE(cond, ...)                         \
    do {                                                      \
        if (__builtin_expect(!(cond), 0))                     \
            return xseg_fail(XSEG_ERR_ARGUMENT, __VA_ARGS__); \
    } while (0)

/*
 * A public structure starts with its size, which identifies the version of the caller's header.
 * Members are added at the end, and zero in a new member selects the behavior of the versions
 * without it.
 *   - A member that an older caller lacks has its default in arguments and is not written in
 *     results.
 *   - A member that only a newer caller has must be zero in arguments and stays unchanged in
 *     results.
 */
enum { XSEG_ENTRY_STRUCT_MAX = 4096 }; /* a larger size is invalid */

static inline bool xseg_entry_is_readable(const void *arg, size_t known, size_t min)
{
    const size_t bytes = *(const size_t *)arg;

    if (__builtin_expect(bytes == known, 1))
        return true;
    if (bytes < min || bytes > XSEG_ENTRY_STRUCT_MAX || bytes % sizeof(size_t) != 0)
        return false;
    for (size_t i = known; i < bytes; i++)
        if (((const char *)arg)[i] != 0)
            return false;
    return true;
}

static inline void xseg_entry_copy_in(void *copy, size_t known, const void *arg)
{
    memcpy(copy, arg, xseg_min(*(const size_t *)arg, known));
    *(size_t *)copy = known;
}

static inline void xseg_entry_copy_out(void *out, size_t known, const void *result)
{
    const size_t bytes = xseg_min(*(const size_t *)out, known);

    memcpy((char *)out + sizeof(size_t), (const char *)result + sizeof(size_t),
           bytes - sizeof(size_t));
}

/* Whether a structure of the caller can be read; the first version of the header ends with the
 * member `last`. */
#define XSEG_ENTRY_IS_READABLE(arg, type, last) \
    xseg_entry_is_readable((arg), sizeof(type), offsetof(type, last) + sizeof(((type *)NULL)->last))
/* Returns from the entry point if the name of a pool is too long. */
#define XSEG_ENTRY_NAME(name)                                                                     \
    XSEG_ENTRY_REQUIRE((name) == NULL ||                                                          \
                           strnlen((name), XSEG_POOL_NAME_MAX + 1) <= XSEG_POOL_NAME_MAX,         \
                       "name is too long, \"%.*s...\"; use at most %d bytes", XSEG_POOL_NAME_MAX, \
                       (name), XSEG_POOL_NAME_MAX)

/* Returns from the entry point if an address range is empty or wraps around. */
#define XSEG_ENTRY_MEMORY(address, bytes)                                    \
    do {                                                                     \
        XSEG_ENTRY_REQUIRE((address) != NULL, #address " is NULL");          \
        XSEG_ENTRY_REQUIRE((bytes) != 0, "bytes is 0");                      \
        XSEG_ENTRY_REQUIRE((bytes) <= UINTPTR_MAX - (uintptr_t)(address),    \
                           "bytes exceeds the address space, %zu", (bytes)); \
    } while (0)

/* Returns from the entry point if a structure in an argument cannot be read; NULL is accepted. */
#define XSEG_ENTRY_IN(arg, type, last)                                                    \
    XSEG_ENTRY_REQUIRE((arg) == NULL || XSEG_ENTRY_IS_READABLE((arg), type, last),        \
                       #arg "->struct_size is unknown, %zu; set it to sizeof(" #type ")", \
                       (arg)->struct_size)
/* Returns from the entry point if the structure of a result is NULL or has an unknown size. */
#define XSEG_ENTRY_OUT(out)                                                                   \
    do {                                                                                      \
        XSEG_ENTRY_REQUIRE((out) != NULL, #out " is NULL");                                   \
        XSEG_ENTRY_REQUIRE(XSEG_ENTRY_CAN_COPY_OUT(out),                                      \
                           #out "->struct_size is unknown, %zu; set it to sizeof(*" #out ")", \
                           (out)->struct_size);                                               \
    } while (0)
/* Copies a structure of the caller into a structure that has the defaults. */
#define XSEG_ENTRY_COPY_IN(copy, arg) \
    xseg_entry_copy_in((copy), sizeof(*(copy)), 1 ? (arg) : (copy))
/* Whether the structure of a result has a valid size, and copy a result up to that size. */
#define XSEG_ENTRY_CAN_COPY_OUT(out)                                                        \
    ((out)->struct_size >= sizeof(size_t) && (out)->struct_size <= XSEG_ENTRY_STRUCT_MAX && \
     (out)->struct_size % sizeof(size_t) == 0)
#define XSEG_ENTRY_COPY_OUT(out, result) \
    xseg_entry_copy_out((out), sizeof(*(result)), 1 ? (result) : (out))

/* --- Scopes (reclaim.c). --- */

/* The pool and the stream that a scope selects on one device. */
struct xseg_selection {
    const struct xseg_pool *pool;           /* NULL: any */
    const struct xseg_known_stream *stream; /* NULL: any */
};

/* Validate and copy the scope of the caller; NULL selects all memory.  Returns: XSEG_OK,
 * XSEG_ERR_ARGUMENT */
xseg_status xseg_scope_check(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                             struct xseg_scope *out);

/* The device of an ordinal; NULL if the device is not open or not selected. */
struct xseg_device *xseg_scope_device(struct xseg_allocator *allocator,
                                      const struct xseg_scope *scope, int ordinal);

/* Find the selected pool and stream on a device.  Returns: XSEG_OK; XSEG_ERR_DRIVER: the stream
 * does not exist; XSEG_ERR_HOST_MEMORY */
xseg_status xseg_scope_select(struct xseg_device *device, const struct xseg_scope *scope,
                              struct xseg_selection *out);

#endif
