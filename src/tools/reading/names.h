/* SPDX-License-Identifier: MIT */
/*
 * Names of code: which function, file and line an offset in a file belongs to, by the file's symbols and its debug
 * information.
 *
 * libdw reads them.  A tool that was built without it knows no names; what the library recorded is all there is then.
 * A file counts only if it is the one that was recorded: its build id is compared.  One that has changed or gone since
 * gives no names.  Debug information that was installed apart from its file is found by build id in the system's folder
 * for it; nothing is fetched from a network.
 *
 * Locking: none; one thread at a time.
 */
#ifndef TOOLS_NAMES_H
#define TOOLS_NAMES_H

#include <stdbool.h>
#include <stdint.h>

/* Where a call stands.  Texts belong to the names, and end with them. */
struct name {
    const char *function;     /* NULL: the file has no symbol for it */
    uint64_t function_offset; /* of the return address */
    const char *file;         /* of the source; NULL: without debug information */
    int line;
};

struct names;

/* Whether this tool was built with libdw. */
bool names_are_known(void);

/* Returns NULL without host memory. */
struct names *names_open(void);
void names_close(struct names *names);

/*
 * Find the call before a return address.
 *
 * path:     of the file
 * build_id: that it had when it was recorded, in hexadecimal digits; NULL: it had none
 * offset:   of the return address, in the file's addresses
 *
 * Returns: false, and nothing is written, if the file says nothing of it, or is not the file that was recorded
 */
bool names_find(struct names *names, const char *path, const char *build_id, uint64_t offset,
                struct name *out);

#endif
