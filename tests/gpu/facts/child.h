/* SPDX-License-Identifier: MIT */
/*
 * A child process of this program: for parts of a fact that must not run in the process that verifies facts.
 *
 * The child ends with its parent, and at the latest after CHILD_SECONDS.
 */
#ifndef XSEG_TESTS_GPU_FACTS_CHILD_H
#define XSEG_TESTS_GPU_FACTS_CHILD_H

#include <stddef.h>

#define CHILD_SECONDS 12u

/* The descriptor in the child for the file of child_run(). */
#define CHILD_FD 100

struct child_result {
    char output[200]; /* standard output; zero-terminated */
    size_t bytes;
    int status; /* from waitpid() */
};

/* Runs the program with these arguments and a file descriptor (-1: none), and reads its output.  A failure ends the check. */
void child_run(const char *const *arguments, int fd, struct child_result *result);

/* Must be the first call in the child.  Disables core files as well. */
void child_begin(unsigned seconds);

/* --- Functions that a child runs.  They return an exit status. --- */

int use_shared(void);
int access_late(const char *memory);

#endif
