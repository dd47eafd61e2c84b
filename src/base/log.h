/* SPDX-License-Identifier: MIT */
/*
 * Log lines to the caller's sink.  Levels by how often the event happens: an error or a warning as
 * it comes, info once per allocator or device.  Never called with a lock held.  Bytes that are not
 * printable ASCII are shown as \xNN.
 */
#ifndef XSEG_BASE_LOG_H
#define XSEG_BASE_LOG_H

#include "xseg/allocator.h"

struct xseg_log {
    void (*sink)(void *context, enum xseg_log_level level, const char *line);
    void *context;
};

/* A NULL sink writes warnings and errors to standard error. */
void xseg_log_line(const struct xseg_log *log, enum xseg_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
