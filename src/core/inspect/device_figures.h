/* SPDX-License-Identifier: MIT */
/*
 * The figures of one device by which a scheduler chooses where work goes: struct xseg_device_figures of xseg/stats.h.
 *
 * They are read while everything runs, without the driver, so they may be of slightly different moments.  Sums that belong
 * together are made of the same numbers: physical_bytes is never less than reserved_bytes or idle_bytes.
 *
 * Locking: takes TABLE for each pool; no lock that an allocation takes.
 */
#ifndef XSEG_CORE_DEVICE_FIGURES_H
#define XSEG_CORE_DEVICE_FIGURES_H

#include "src/core/device/allocator.h"

/*
 * Read the figures of a device; of one that is not open there are its number and zeros.
 *
 * now:  the time by the allocator's clock
 * Cost: a few words read of each arena
 */
void xseg_device_figures_read(struct xseg_allocator *allocator, int ordinal, uint64_t now,
                              struct xseg_device_figures *out);

#endif
