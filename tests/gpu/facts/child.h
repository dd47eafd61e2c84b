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

/* The descriptor that the child inherits. */
#define CHILD_FILE 100

struct child_end {
    char output[200]; /* standard output; zero-terminated */
    size_t bytes;
    int status; /* from waitpid() */
};

/* Run the program with these arguments and a file (-1: none), and read its output; a failure ends the check. */
void child_run(const char *const *arguments, int file, struct child_end *end);

/* Must be called first in such a process. Disables core files as well. */
void child_begin(unsigned seconds);

/* --- The work of a child.  Returns an exit status. --- */

int use_shared(void);
int access_late(const char *memory);

#endif
