/* SPDX-License-Identifier: MIT */
/*
 * The stack depot: each distinct call stack once, under a number, with where its frames lie.
 *
 * A stack that is there already is found without a lock.  A new one is added under a lock, and so is the
 * module of each frame that was not seen before: it is known on after the module is unloaded, so that the frame
 * can be named later (symbolizer.h).  Nothing is ever moved or taken out, so what a reader was given stays until the end of the
 * depot.
 *
 * Terms:
 *   id       the number of a stack: 1, 2, 3 ... in the order in which stacks were added; 0 is no stack
 *   frame    a return address, and the record of where it lies: module and offset (frames.h)
 *   ground   the placements of modules on which the frames of a stack lie (modules.h).  It is gone once one
 *            of them is: the stack stays, but is not found any more, since other code may come to the
 *            same addresses.  If the same module comes to the same place again, the ground is back.
 *
 * What is not noticed: modules are looked at whenever a stack is added.  Between an unload and the next new
 * stack, one with exactly the addresses of an old stack is taken for it.  So is one whose frames lie in
 * memory of no module, such as code that was compiled at run time.
 *
 * Invariants:
 *   DEPOT-1  stack n has the id n, for all n up to their count.
 *   DEPOT-2  each stack whose ground is there is found by its frames, or another one on another ground is.
 *   DEPOT-3  each frame of a stack has a record, on a placement of the stack's ground or on none.
 *   DEPOT-4  a ground is gone if and only if one of its placements is.
 *
 * Locking: DEPOT, a leaf, for adding; the loader is asked under it (dl_iterate_phdr).  No host memory is
 * asked for under the loader's lock, and no function of the program is called.  Reading takes no lock.
 *
 * Forks: a child may read what the depot has, and find stacks.  It adds none, because another thread may
 * have held the lock at the moment of the fork.
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

/* What a depot may grow to if nothing else is said, and the least and most that may be said. */
#define XSEG_STACK_DEPOT_BYTES     ((size_t)64 << 20)
#define XSEG_STACK_DEPOT_MIN_BYTES ((size_t)128 << 10)
#define XSEG_STACK_DEPOT_MAX_BYTES XSEG_BUMP_MAX_BYTES

/* Lists of stacks by id: list k has XSEG_STACK_DEPOT_FIRST << k of them. */
#define XSEG_STACK_DEPOT_FIRST 256u
#define XSEG_STACK_DEPOT_LISTS 24u

struct xseg_stack_depot {
    struct xseg_mutex lock;       /* DEPOT */
    struct xseg_fork_guard guard; /* a child adds nothing */
    struct xseg_bump memory;      /* of everything below */
    struct xseg_modules modules;
    struct xseg_frames frames;
    struct xseg_intern_table stacks, grounds;
    _Atomic(uint32_t *) list[XSEG_STACK_DEPOT_LISTS]; /* handles of stacks, by id */
    atomic_uint_fast32_t count;                       /* of stacks */
    atomic_uint_fast64_t lost;
    atomic_uint_least32_t named; /* stacks up to this id have been named, see symbolizer.h */
    uint64_t changes_seen;       /* of modules.changes, by the grounds */
    struct xseg_stack_mapping_set *new_ground; /* room for the one of a stack that is being added */
};

/* A stack as it was added. */
struct xseg_stack_view {
    void *const *frames; /* innermost first */
    uint32_t count;
    bool was_cut; /* it had more frames, outside these */
};

/*
 * most_bytes: what the depot may grow to; 0 is XSEG_STACK_DEPOT_BYTES.  Sizes outside the bounds above
 *             become the nearest bound.  That many addresses are reserved; memory comes as it is
 *             needed.
 *
 * Returns: false without host memory; there is nothing to end then
 */
bool xseg_stack_depot_init(struct xseg_stack_depot *depot, size_t max_bytes);
void xseg_stack_depot_fini(struct xseg_stack_depot *depot);

/*
 * The id of a stack, which is added if it is new.
 *
 * frames, taken: as xseg_stack_capture() gave them.  Stacks of the same frames, one cut and the other not, are
 *                two.  Of more than XSEG_STACK_FRAMES_MAX frames the innermost are kept.
 *
 * Locks: may be called with any lock below DEPOT held, ARENA among them.
 * Threads: any.
 * Cost: some 40 ns for a stack of 32 frames that is there; some microseconds for one that is not.
 *
 * Returns: 0 if the stack has no frames, which is not counted.  0, and it is counted as lost, if it is
 * new and there is no room or no host memory for it, or this is a forked child
 */
uint32_t xseg_stack_depot_add(struct xseg_stack_depot *depot, void *const *frames, uint32_t taken);

/* The stack of an id.  Threads: any, no lock.  Returns: false, and nothing is written, if there is none */
bool xseg_stack_depot_get(const struct xseg_stack_depot *depot, uint32_t id,
                          struct xseg_stack_view *out);

/* Where the frame `index` of a stack lies, 0 the innermost.  Threads: any, no lock.  Returns: false, and
 * nothing is written, if there is no such stack or frame */
bool xseg_stack_depot_frame(const struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                            struct xseg_stack_frame *out);

/*
 * Note what somebody has found out about a frame (symbolizer.h).  Once it is noted it stays; nothing is
 * done if there is no such stack or frame, it lies in no module, there is no room, or this is a forked
 * child.
 *
 * Locks: DEPOT.  Threads: any.
 */
void xseg_stack_depot_set_source(struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                                 const struct xseg_stack_source *source);

/*
 * Print frames of a stack as module and offset, `liba.so+0x12 < program+0x34`, and as an address where a frame is in no
 * module.
 *
 * skip: this many of the innermost are left out
 * most: no more are printed
 *
 * Nothing is printed of an unknown id, or if no frame is left.  Threads: any, no lock.
 */
void xseg_stack_depot_describe(const struct xseg_stack_depot *depot, uint32_t id, unsigned skip,
                               unsigned max, struct xseg_strbuf *text);

/* Host bytes held; how many stacks there are; how many additions failed.  Threads: any, no lock. */
size_t xseg_stack_depot_bytes(const struct xseg_stack_depot *depot);
uint32_t xseg_stack_depot_count(const struct xseg_stack_depot *depot);
uint64_t xseg_stack_depot_lost(const struct xseg_stack_depot *depot);

/* Compares everything with everything; takes the lock. */
bool xseg_stack_depot_audit(struct xseg_stack_depot *depot, struct xseg_violation *violation);

#endif
