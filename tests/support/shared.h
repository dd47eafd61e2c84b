/* SPDX-License-Identifier: MIT */
/* A name for a machine that processes share, which nobody else has, even on a /dev/shm of several systems. */
#ifndef XSEG_TESTS_SHARED_H
#define XSEG_TESTS_SHARED_H

#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* False where processes cannot share memory by name: then nothing can be tried. */
static inline bool name_shared_machine(char *name, size_t bytes)
{
    struct timespec now = {0};

    if (access("/dev/shm", W_OK | X_OK) != 0) {
        print_message("# this system has no /dev/shm: nothing was tried\n");
        return false;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(name, bytes, "test-%d-%lld-%ld", (int)getpid(), (long long)now.tv_sec,
                   now.tv_nsec);
    return true;
}

#endif
