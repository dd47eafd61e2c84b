/* SPDX-License-Identifier: MIT */
/*
 * The free log: a ring of a device's last frees, each with its thread and call stack.
 *
 * The log exists while the key free_history is not 0.  It is read when an address is freed a second
 * time, or turns out to have been written to after its free.
 *
 * Terms:
 *   number   frees are numbered from 1 on in the order in which they are noted
 *
 * Invariants:
 *   FREELOG-1  free n, while it is remembered, is entry n % capacity of the ring.
 *
 * Locking: FREE_LOG, a leaf.  Stacks are walked and printed without the lock.
 */
#ifndef XSEG_CORE_FREE_LOG_H
#define XSEG_CORE_FREE_LOG_H

#include <stdatomic.h>
#include <sys/types.h>

#include "src/base/check.h"
#include "src/base/lock.h"
#include "src/base/text.h"

#define XSEG_FREE_LOG_FRAMES 16u

struct xseg_free_entry {
    uint64_t number;         /* 0: none, or taken back */
    uint64_t address, bytes; /* of the block */
    pid_t thread;
    uint32_t depth;
    void *frame[XSEG_FREE_LOG_FRAMES]; /* innermost first */
};

struct xseg_free_log {
    struct xseg_lock lock; /* FREE_LOG */
    struct xseg_free_entry *ring;
    atomic_uint_fast32_t capacity; /* may be read without the lock */
    uint64_t count;                /* frees noted so far */
};

void xseg_free_log_init(struct xseg_free_log *log);
void xseg_free_log_fini(struct xseg_free_log *log);

/*
 * Note that the calling thread frees a block.  If the capacity changes, the last frees that fit are
 * kept.  No lock of a rank from FREE_LOG on is held.
 *
 * capacity: not 0
 * Returns: the free's number; 0 without host memory, and nothing is noted
 */
uint64_t xseg_free_log_note(struct xseg_free_log *log, uint32_t capacity, uint64_t address,
                            uint64_t bytes);

/* Take a note back: the free of this number did not happen. */
void xseg_free_log_withdraw(struct xseg_free_log *log, uint64_t number);

/* Find the last free of a block that contains `address`, and the number of frees noted since. */
bool xseg_free_log_find(struct xseg_free_log *log, uint64_t address, struct xseg_free_entry *out,
                        uint64_t *since);

/*
 * Describe when, by which thread and from where an address was last freed; `lead` is printed first.
 *
 * Returns: false, and nothing is written, if no such free is remembered
 */
bool xseg_free_log_describe(struct xseg_free_log *log, uint64_t address, const char *lead,
                            struct xseg_text *text);

/* Host bytes held. */
static inline size_t xseg_free_log_bytes(const struct xseg_free_log *log)
{
    return atomic_load_explicit(&log->capacity, memory_order_relaxed) *
           sizeof(struct xseg_free_entry);
}

bool xseg_free_log_audit(const struct xseg_free_log *log, struct xseg_finding *finding);

#endif
