/* SPDX-License-Identifier: MIT */
/* Namespaces for one process, as in containers. */
#ifndef XSEG_TESTS_NAMESPACES_H
#define XSEG_TESTS_NAMESPACES_H

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Enter new namespaces; in a new user namespace the user ID is 0.  Returns false if the host denies it. */
static inline bool namespaces_enter(int flags)
{
    const unsigned user = geteuid(), group = getegid();
    bool succeeds = unshare(flags) == 0;

    for (unsigned i = 0; i < 3 && succeeds && (flags & CLONE_NEWUSER) != 0; i++) {
        static const char *const names[] = {"/proc/self/setgroups", "/proc/self/uid_map",
                                            "/proc/self/gid_map"};
        const int file = open(names[i], O_WRONLY | O_CLOEXEC);
        char map[64];

        (void)snprintf(map, sizeof(map), i == 0 ? "deny" : "0 %u 1", i == 1 ? user : group);
        succeeds = file >= 0 && write(file, map, strlen(map)) == (ssize_t)strlen(map);
        (void)close(file);
    }
    return succeeds;
}

/* Whether a child can call `enter`, flags exits with 77 on failure. */
static inline bool namespaces_can(void (*enter)(void))
{
    int status = 1;
    const pid_t child = fork();

    if (child == 0) {
        enter();
        _exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

#endif
