/* SPDX-License-Identifier: MIT */
/* A folder for the files of a test program, and files that are replaced in it. */
#ifndef XSEG_TESTS_FOLDER_H
#define XSEG_TESTS_FOLDER_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/env.h"

static char folder[] = P_tmpdir "/xseg-test-XXXXXX";

static inline int folder_create(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

/* The folder must be empty. */
static inline int folder_remove(void **state)
{
    (void)state;
    return rmdir(folder);
}

/* The path of a file in the folder; valid until the second call after this one. */
static inline const char *folder_path(const char *name)
{
    static char paths[2][512];
    static unsigned next;
    char *path = paths[next++ % 2];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

/* In a child process: write a file, which succeeds, then limit the size of files (RLIMIT_FSIZE), and write it again,
 * which must fail and keep the file. */
static inline void folder_expect_atomic_write(const char *path, uint64_t max_bytes,
                                              xseg_status (*write_file)(const char *path))
{
    const struct rlimit size_limit = {max_bytes, max_bytes};
    struct stat before, after;
    char text[512];

    const int child = env_fork();
    if (child == 0) {
        (void)signal(SIGXFSZ, SIG_IGN);
        bool succeeds = write_file(path) == XSEG_OK && stat(path, &before) == 0 &&
                        (uint64_t)before.st_size > max_bytes &&
                        setrlimit(RLIMIT_FSIZE, &size_limit) == 0;
        succeeds = succeeds && write_file(path) == XSEG_ERR_FILE;
        (void)xseg_error_message(text, sizeof(text));
        succeeds = succeeds && strstr(text, strerror(EFBIG)) != NULL && stat(path, &after) == 0 &&
                   after.st_ino == before.st_ino && after.st_size == before.st_size;
        _exit(succeeds ? 0 : 1);
    }
    assert_int_equal(env_wait(child), 0);
}

#endif
