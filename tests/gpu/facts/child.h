/* SPDX-License-Identifier: MIT */
/*
 * This program once more, in a process of its own: for what a fact must not do in the process that asks.
 *
 * Such a process is ended with the process that started it, and ends itself after CHILD_SECONDS.
 */
#ifndef XSEG_TESTS_GPU_FACTS_CHILD_H
#define XSEG_TESTS_GPU_FACTS_CHILD_H

#include <stddef.h>

#define CHILD_SECONDS 12u

/* The number under which it finds the descriptor that it was given. */
#define CHILD_FILE 100

struct child_end {
    char said[200]; /* on standard output; a zero follows */
    size_t bytes;
    int status; /* as waitpid() tells it */
};

/*
 * Run it with these arguments until it ends, and hear what it says.  A file of -1 is none.  What fails
 * ends the check.
 */
void child_run(const char *const *arguments, int file, struct child_end *end);

/* To be called first in such a process.  It leaves no core file either. */
void child_begin(unsigned seconds);

/* --- What it does there.  Returns: an exit status. --- */

int use_shared(void);
int touch_late(const char *what);

#endif
