/* SPDX-License-Identifier: MIT */
/* A unique name for a simulated device that processes share, also if several containers share /dev/shm. */
#ifndef XSEG_TESTS_SIM_SHARED_H
#define XSEG_TESTS_SIM_SHARED_H

#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Returns false if the host has no named shared memory. */
static inline bool sim_shared_name(char *name, size_t bytes)
{
    struct timespec now = {0};

    if (access("/dev/shm", W_OK | X_OK) != 0) {
        print_message("# skipped: this host has no /dev/shm\n");
        return false;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(name, bytes, "test-%d-%lld-%ld", (int)getpid(), (long long)now.tv_sec,
                   now.tv_nsec);
    return true;
}

#endif
