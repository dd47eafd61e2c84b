/* SPDX-License-Identifier: MIT */
/*
 * All registrations of an allocator: an interval tree by address, and a hash table by ID.  A call is
 * O(log n) in the number of registrations that it does not name.
 *
 * One observer of the library's own, which is there from the first registration on, hears what memory leaves or came
 * (notify.h), and brings it to the registrations that it concerns.
 *
 * Locking: REGISTRATIONS guards the table and everything in it.
 */
#ifndef XSEG_CORE_REGISTRATIONS_H
#define XSEG_CORE_REGISTRATIONS_H

#include "src/core/register/registration.h"

struct xseg_registrations {
    struct xseg_allocator *allocator;
    struct xseg_registration_table desk;
    struct xseg_intervals ranges;     /* all registrations, by address */
    struct xseg_registration **by_id; /* [buckets], a power of two: lists of registrations by ID */
    size_t count, buckets;
    uint64_t last_id;
    atomic_uint_fast64_t changes; /* registrations that began or ended */
    atomic_bool observes;         /* the observer was added; read without the lock as well */
    struct xseg_dmabuf_pin *
        *pin; /* [pin_capacity]: by descriptor; NULL: the descriptor has no pin */
    size_t pin_capacity;
};

void xseg_registrations_init(struct xseg_registrations *all, struct xseg_allocator *allocator);

/* Free the table; no registration is left in it. */
void xseg_registrations_fini(struct xseg_registrations *all);

/* As xseg_register() and xseg_unregister() of the public header.  No lock is held. */
xseg_status xseg_registrations_add(struct xseg_registrations *all, uint64_t address, uint64_t bytes,
                                   const struct xseg_registrar *registrar, uint64_t *id);
xseg_status xseg_registrations_remove(struct xseg_registrations *all, uint64_t id);

/* Whether nothing is registered: XSEG_OK, XSEG_ERR_BUSY.  No lock is held. */
xseg_status xseg_registrations_check_none(struct xseg_registrations *all);

/* Bytes of the runs of a device; what overlaps counts for each registration.  No lock is taken before the first one. */
uint64_t xseg_registrations_bytes(struct xseg_registrations *all, int device);

/* Bytes of the runs of one pool of a device, as users see it; NULL: of the default pool. */
uint64_t xseg_registrations_pool_bytes(struct xseg_registrations *all, int device,
                                       const struct xseg_pool *pool);

/* How many of the bytes [begin, end) are in runs; what overlaps counts for each registration. */
uint64_t xseg_registrations_over(struct xseg_registrations *all, uint64_t begin, uint64_t end);

/* Whether a registration that pins has a run with some of the bytes [begin, end). */
bool xseg_registrations_pin(struct xseg_registrations *all, uint64_t begin, uint64_t end);

#endif
