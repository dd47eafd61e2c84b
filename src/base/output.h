/* SPDX-License-Identifier: MIT */
/*
 * A file that is written front to back through a buffer, and whose end may be taken back and written again.
 *
 * The first error is kept, and nothing is written after it, so that a caller may look at the error once, at
 * the end.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef XSEG_BASE_OUTPUT_H
#define XSEG_BASE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XSEG_OUTPUT_BUFFER ((size_t)64 << 10)

struct xseg_output {
    int file;        /* descriptor; the caller's */
    int error;       /* errno of what failed first; 0: nothing did */
    uint64_t origin; /* of the file when the output began */
    uint64_t sent;   /* bytes that are in the file, or were dropped behind an error */
    size_t filled;   /* bytes in the buffer */
    unsigned char buffer[XSEG_OUTPUT_BUFFER];
};

/* Begin at the file's place; of a file that has no places at 0. */
void xseg_output_init(struct xseg_output *output, int file);

/* Bytes that were written so far. */
static inline uint64_t xseg_output_place(const struct xseg_output *output)
{
    return output->sent + output->filled;
}

void xseg_output_write(struct xseg_output *output, const void *bytes, size_t count);

static inline void xseg_output_byte(struct xseg_output *output, unsigned char byte)
{
    if (__builtin_expect(output->filled == XSEG_OUTPUT_BUFFER, 0))
        xseg_output_write(output, &byte, 1);
    else
        output->buffer[output->filled++] = byte;
}

/* Send what is in the buffer.  Returns false if anything failed so far. */
bool xseg_output_flush(struct xseg_output *output);

/* Take back everything behind a place.  Returns false, and the file is as it was, if it has no places. */
bool xseg_output_rewind(struct xseg_output *output, uint64_t place);

#endif
