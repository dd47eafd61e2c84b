/* SPDX-License-Identifier: MIT */
/*
 * Dma-buf descriptors of mapped memory, as xseg/register.h says, and the pins that some of them have.
 *
 * Locking: the device memory lock of the device while descriptors are made; REGISTRATIONS guards the list of those that pin.
 */
#ifndef XSEG_CORE_DMABUF_H
#define XSEG_CORE_DMABUF_H

#include "src/core/register/registrations.h"

/* As xseg_dmabuf_open().  No lock is held. */
xseg_status xseg_dmabuf_acquire(struct xseg_registrations *all, uint64_t address, uint64_t bytes,
                                unsigned flags, int *fd, uint64_t *offset);

/* As xseg_dmabuf_close().  No lock is held. */
xseg_status xseg_dmabuf_release(struct xseg_registrations *all, int fd);

#endif
