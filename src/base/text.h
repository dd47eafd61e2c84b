/* SPDX-License-Identifier: MIT */
/*
 * A bounded text builder: writes into the caller's buffer, cuts what does not fit, never allocates.
 * The buffer is always terminated; `length` goes on counting what would have been written.
 */
#ifndef XSEG_BASE_TEXT_H
#define XSEG_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct xseg_text {
    char *buffer;
    size_t bytes;  /* size of buffer; may be 0 */
    size_t length; /* of the whole text, without its terminator */
};

void xseg_text_init(struct xseg_text *text, char *buffer, size_t bytes);
void xseg_text_add(struct xseg_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void xseg_text_add_list(struct xseg_text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Show what has been added from `from` on with its bytes that are not printable ASCII as \xNN, since
 * text of others may be in it. */
void xseg_text_escape(struct xseg_text *text, size_t from);

/* A number of bytes in MiB, "81920.00 MiB", for sentences whose numbers are compared.  A number that is not 0
 * but would round to 0 is written in bytes. */
void xseg_text_add_mib(struct xseg_text *text, uint64_t bytes);

#endif
