/* SPDX-License-Identifier: MIT */
/* Counters of the NVTX injection library in injection.c. */
#ifndef XSEG_TESTS_INJECTION_H
#define XSEG_TESTS_INJECTION_H

#include <stdint.h>

/* Ranges with one name. */
struct injection_count {
    char name[32];
    unsigned begun, ended;
    uint64_t bytes; /* of the last one */
};

struct injection_count injection_read(const char *name);

/* Open ranges of this thread, plus invalid calls. */
unsigned injection_errors(void);

#endif
