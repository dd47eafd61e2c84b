/* SPDX-License-Identifier: MIT */
/* What the tool of injection.c counts. */
#ifndef TESTS_SUPPORT_INJECTION_H
#define TESTS_SUPPORT_INJECTION_H

#include <stdint.h>

/* Ranges of one name. */
struct injection_count {
    char name[32];
    unsigned begun, ended;
    uint64_t bytes; /* of the last one */
};

struct injection_count injection_read(const char *name);

/* Ranges that are open in this thread, and calls that are wrong. */
unsigned injection_others(void);

#endif
