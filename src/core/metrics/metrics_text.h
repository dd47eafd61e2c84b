/* SPDX-License-Identifier: MIT */
/*
 * Metrics in Prometheus's text format 0.0.4.
 *
 * Terms:
 *   family  metrics of one name: their type and help, then one line for each row of figures that has it
 *   label   of a line: the device, the pool by its number and its name, or the driver call
 *
 * A family without a line is left out.  Names of pools are the only text of others: what is not UTF-8 in them, and
 * control characters but the newline, become question marks.
 *
 * https://prometheus.io/docs/instrumenting/exposition_formats
 */
#ifndef XSEG_CORE_METRICS_TEXT_H
#define XSEG_CORE_METRICS_TEXT_H

#include "src/core/inspect/figures.h"

/*
 * Write the page.
 *
 * text:   NULL if bytes is 0; always terminated, and "" if the page does not fit
 * needed: bytes that the page takes, terminator included
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_metrics_text_write(const struct xseg_figures *figures, char *text, size_t bytes,
                                    size_t *needed);

#endif
