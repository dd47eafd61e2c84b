/* SPDX-License-Identifier: MIT */
/*
 * The hot calls of xseg as a subject, inline; see subject.h.
 */
#ifndef BENCHMARKS_SUBJECT_XSEG_H
#define BENCHMARKS_SUBJECT_XSEG_H

#include "xseg/xseg.h"

/* What the inline calls need; the rest is in subject_xseg.c. */
struct subject_xseg {
    struct xseg_allocator *allocator;
    xseg_stream streams[SUBJECT_STREAMS];
};
extern struct subject_xseg subject_xseg;

/* Ends the programme. */
_Noreturn void subject_fail(const char *what);

static inline void *subject_alloc(size_t bytes, unsigned stream)
{
    void *pointer;

    if (xseg_alloc(subject_xseg.allocator, 0, bytes, subject_xseg.streams[stream], &pointer) !=
        XSEG_OK)
        subject_fail("xseg_alloc");
    return pointer;
}

static inline void subject_free(void *pointer)
{
    if (xseg_free(subject_xseg.allocator, pointer) != XSEG_OK)
        subject_fail("xseg_free");
}

#endif
