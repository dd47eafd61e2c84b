/* SPDX-License-Identifier: MIT */
/*
 * Sparse bytes: copies and fills of real bytes that leave untouched what holds nothing but zeros.
 *
 * Device memory is a sparse file and pinned host memory is mapped lazily, so a page that was never
 * written takes no memory.  A copy finds such pages in its source and makes them again in its
 * destination, instead of writing zeros.  So copies of tens of GiB with little in them are quick,
 * and what they make is as sparse as what they read.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_SPARSE_H
#define XSEG_SIM_SPARSE_H

#include <stdint.h>

/** Copy; both sides can be reached.  The ranges may overlap. */
void sim_sparse_copy(uint64_t to, uint64_t from, uint64_t bytes);

/** Make all of it zero. */
void sim_sparse_clear(uint64_t to, uint64_t bytes);

#endif
