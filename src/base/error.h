/* SPDX-License-Identifier: MIT */
/*
 * The calling thread's error text: the sentence that goes with a status.
 *
 * Lives in thread-local storage, so that it can be written while out of memory and read without a
 * lock.  Only failures write it; a later failure replaces it.  Bytes that are not printable ASCII, which
 * only text of others has, are shown as \xNN.
 */
#ifndef XSEG_BASE_ERROR_H
#define XSEG_BASE_ERROR_H

#include "src/base/text.h"
#include "xseg/status.h"

/*
 * Note why a call fails, and give its status back: `return xseg_fail(XSEG_ERR_..., "...")`.
 * Every failure is noted here, so this is the place for a breakpoint.
 */
xseg_status xseg_fail(xseg_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Add to the sentence of the failure just noted. */
void xseg_fail_add(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The text, kept while functions are called that may fail and write another one. */
struct xseg_fail_kept {
    char text[1024];
};

/* Keep the text, and restore it: it is empty if it was. */
void xseg_fail_keep(struct xseg_fail_kept *kept);
void xseg_fail_restore(const struct xseg_fail_kept *kept);

/* The text; its builder counts the whole length. */
const struct xseg_text *xseg_fail_text(void);

#endif
