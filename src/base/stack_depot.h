/* SPDX-License-Identifier: MIT */
/*
 * The stack depot: stores each distinct call stack once, identified by an ID, with the location of each frame.
 *
 * Events and blocks record a stack as a 32-bit ID.  A stack that is in the depot is found lock-free by a hash of its frames,
 * in about 40 ns.  A new stack is inserted under a lock, together with the module and offset of each frame that was not
 * seen before (modules.h).  Locations remain known after the module is unloaded, so the symbolizer can resolve frames later
 * (symbolizer.h).  Records are in one intern store (intern.h): they never move and are never removed, so a reader may use
 * them until the depot is destroyed.
 *
 *   ID           1, 2, 3, ... in the order of insertion; 0: no stack.  A list of handles per power of two finds a stack by ID.
 *   mapping set  the mappings of modules that contain the frames of a stack.  Sets are interned: most stacks of a program
 *                share a few sets.
 *
 * After a library is unloaded, other code can be loaded at the same addresses.  So a mapping set is *unloaded* if one of its
 * mappings is.  A stack with an unloaded set is not found any more: the same addresses get a new stack with a new ID.  If
 * the module is loaded again at the same address, the set is valid again.
 *
 * Limits: mappings are refreshed when a stack is inserted.  Between an unload and the next insertion, a stack with exactly
 * the addresses of an old stack gets the ID of the old one.  The same holds for stacks with frames outside of all modules.
 *
 * Invariants:
 *   DEPOT-1  stack n has the ID n, for all n up to their number.
 *   DEPOT-2  each stack whose mapping set is loaded, or a stack with the same frames and another set, is found by its frames.
 *   DEPOT-3  each frame of a stack has a record, in a mapping of the stack's set or in none.
 *   DEPOT-4  a mapping set is unloaded if and only if one of its mappings is.
 *
 * Locking: DEPOT, a leaf, covers insertion; dl_iterate_phdr() is called under it, and neither the heap nor a function of the
 * program is called under the loader's lock.  Reading is lock-free.  A forked child can find and read stacks, but inserts
 * none, because another thread may have held the lock during the fork.
 */
#ifndef XSEG_BASE_STACK_DEPOT_H
#define XSEG_BASE_STACK_DEPOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/check.h"
#include "src/base/host_memory.h"
#include "src/base/intern.h"
#include "src/base/modules.h"
#include "src/base/mutex.h"
#include "src/base/string_util.h"

/* The default size of a depot, and the limits of its size. */
#define XSEG_STACK_DEPOT_BYTES     ((size_t)64 << 20)
#define XSEG_STACK_DEPOT_MIN_BYTES ((size_t)128 << 10)
#define XSEG_STACK_DEPOT_MAX_BYTES XSEG_BUMP_MAX_BYTES

/* List k has the handles of XSEG_STACK_DEPOT_FIRST << k stacks. */
#define XSEG_STACK_DEPOT_FIRST 256u
#define XSEG_STACK_DEPOT_LISTS 24u

struct xseg_stack_depot {
    struct xseg_mutex lock;       /* DEPOT */
    struct xseg_fork_guard guard; /* a forked child inserts nothing */
    struct xseg_bump memory;      /* of all records */
    struct xseg_modules modules;
    struct xseg_frames frames;
    struct xseg_intern_table stacks, sets;
    _Atomic(uint32_t *) list[XSEG_STACK_DEPOT_LISTS]; /* handles of stacks, by ID */
    atomic_uint_fast32_t count;                       /* of stacks */
    atomic_uint_fast64_t lost;
    atomic_uint_least32_t resolved_count; /* the symbolizer has resolved the IDs 1 to this value */
    uint64_t changes_at_update; /* the value of modules.changes when the sets were updated */
    struct xseg_stack_mapping_set *new_set; /* buffer for the set of the stack that is inserted */
};

/* A stack of the depot. */
struct xseg_stack_view {
    void *const *frames; /* innermost first */
    uint32_t count;
    bool is_truncated; /* the captured stack had more frames, outside these */
};

/*
 * max_bytes: maximum size, 0: XSEG_STACK_DEPOT_BYTES; clamped to the limits above.  This size is reserved as addresses, and
 *            committed on demand.
 *
 * Returns: false if out of host memory
 */
bool xseg_stack_depot_init(struct xseg_stack_depot *depot, size_t max_bytes);
void xseg_stack_depot_fini(struct xseg_stack_depot *depot);

/*
 * Find or insert a stack.
 *
 * frames, captured: the results of xseg_stack_capture().  A truncated stack differs from a complete stack with the same
 *                   frames.  Only the innermost XSEG_STACK_FRAMES_MAX frames are stored.
 *
 * Locks: any lock outside DEPOT may be held, such as ARENA.
 * Threads: any.
 * Cost: about 40 ns for a stack of 32 frames that exists; some microseconds for a new one.
 *
 * Returns: the ID; 0 for a stack without frames.  0, counted as lost, if the stack is new and the depot is full, the host is
 * out of memory, or the process is a forked child
 */
uint32_t xseg_stack_depot_add(struct xseg_stack_depot *depot, void *const *frames,
                              uint32_t captured);

/* Read a stack.  Threads: any, lock-free.  Returns false if there is no such stack. */
bool xseg_stack_depot_get(const struct xseg_stack_depot *depot, uint32_t id,
                          struct xseg_stack_view *out);

/* Read frame `index` of a stack, 0 is the innermost.  Threads: any, lock-free.  Returns false if there is no such frame. */
bool xseg_stack_depot_frame(const struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                            struct xseg_stack_frame *out);

/*
 * Record the source of a frame, unless it has one.  No effect if there is no such frame, the frame is in no module, the depot
 * is full, or the process is a forked child.
 *
 * Locks: DEPOT.  Threads: any.
 */
void xseg_stack_depot_set_source(struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                                 const struct xseg_stack_source *source);

/*
 * Append frames of a stack as module and offset, `liba.so+0x12 < program+0x34`; as an address if a frame is in no module.
 *
 * skip: number of innermost frames to leave out
 * max: maximum number of frames
 *
 * Threads: any, lock-free.
 */
void xseg_stack_depot_describe(const struct xseg_stack_depot *depot, uint32_t id, unsigned skip,
                               unsigned max, struct xseg_strbuf *text);

/* The host bytes in use, the number of stacks, and the number of failed insertions.  Threads: any, lock-free. */
size_t xseg_stack_depot_bytes(const struct xseg_stack_depot *depot);
uint32_t xseg_stack_depot_count(const struct xseg_stack_depot *depot);
uint64_t xseg_stack_depot_lost(const struct xseg_stack_depot *depot);

/* Verify all invariants; locks DEPOT. */
bool xseg_stack_depot_audit(struct xseg_stack_depot *depot, struct xseg_violation *violation);

#endif
