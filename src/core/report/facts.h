/* SPDX-License-Identifier: MIT */
/*
 * The facts of a snapshot beside segments and traces: the settings as PyTorch names them, and why each page is not free.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef XSEG_CORE_SNAPSHOT_FACTS_H
#define XSEG_CORE_SNAPSHOT_FACTS_H

#include "src/base/pickle_writer.h"
#include "src/core/config/config.h"
#include "src/core/report/explain.h"

/* Write the configuration as PyTorch's `allocator_settings`.  Its string has the keys that differ from their defaults and
 * affect where memory is allocated and released, not those that only select what is recorded; and ignored keys as written. */
void xseg_snapshot_facts_write_settings(struct xseg_pickle_writer *pickle,
                                        const struct xseg_config *config);

/* Write the reasons of a device as a value: a list of [address, bytes, reason, live bytes, cached bytes,
 * registered bytes]. */
void xseg_snapshot_facts_write_pages(struct xseg_pickle_writer *pickle,
                                     const struct xseg_reason_list *reasons);

/* What live blocks of a device have beyond what was asked for, since each is one page alone (single_page); bytes. */
uint64_t xseg_snapshot_facts_single_page_rest(const struct xseg_reason_list *reasons);

#endif
