/* SPDX-License-Identifier: MIT */
/*
 * Dma-buf descriptors of mapped memory, as xseg/registration.h says, and the pins that some of them have.
 *
 * Locking: GROWTH of the device while descriptors are made; REGISTRATIONS guards the list of those that pin.
 */
#ifndef XSEG_CORE_DMABUF_H
#define XSEG_CORE_DMABUF_H

#include "src/core/registration/registrations.h"

/* A descriptor of a range, with room for the next. */
struct xseg_dmabuf_list {
    struct xseg_dmabuf *dmabuf; /* [count]; the caller's to free */
    size_t count;
};

/*
 * Get descriptors for a range, by address.  No lock is held.
 *
 * one: as one descriptor or not at all
 * Returns: as xseg_dmabuf_each(); on an error *out has none
 */
xseg_status xseg_dmabuf_get(struct xseg_registrations *all, uint64_t address, uint64_t bytes,
                            unsigned flags, bool one, struct xseg_dmabuf_list *out);

/* As xseg_dmabuf_close().  No lock is held. */
xseg_status xseg_dmabuf_put(struct xseg_registrations *all, int fd);

/* Close descriptors that nobody was given, and take their pins back.  No lock is held. */
void xseg_dmabuf_put_all(struct xseg_registrations *all, const struct xseg_dmabuf *dmabuf,
                         size_t count, unsigned flags);

#endif
