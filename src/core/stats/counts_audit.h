/* SPDX-License-Identifier: MIT */
/* The audit of counts: COUNT-2, about arenas at rest. */
#ifndef XSEG_CORE_COUNTS_AUDIT_H
#define XSEG_CORE_COUNTS_AUDIT_H

#include "src/core/stats/counts.h"

/* Audits of COUNT-2: of an arena whose lock is held; of the sums of a device. */
bool xseg_counts_audit(const struct xseg_counts *counts, struct xseg_violation *violation);
bool xseg_totals_audit(struct xseg_totals *totals, struct xseg_violation *violation);

#endif
