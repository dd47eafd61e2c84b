/* SPDX-License-Identifier: MIT */
/*
 * Symbolization of return addresses: function, source file and line of an offset in a file, from the file's symbols
 * and debug information.
 *
 * libdw reads the files.  Without libdw at build time nothing is found, and reports show the recorded frames.
 * A file is used only if its build ID equals the recorded one.  Separate debug information is found by build ID in
 * the system's folder for it; nothing is fetched from a network.
 *
 * Locking: none; one thread at a time.
 */
#ifndef TOOLS_SYMBOLS_H
#define TOOLS_SYMBOLS_H

#include <stdbool.h>
#include <stdint.h>

/* The location of a call.  Strings are valid until symbols_close(). */
struct symbol {
    const char *function;     /* NULL: no symbol */
    uint64_t function_offset; /* of the return address in the function */
    const char *file;         /* source file; NULL: no debug information */
    int line;
};

struct symbols;

/* Get whether the tool was built with libdw. */
bool symbols_available(void);

/* Returns NULL if out of host memory. */
struct symbols *symbols_open(void);
void symbols_close(struct symbols *symbols);

/*
 * Find the call before a return address.
 *
 * path:     of the file.
 * build_id: recorded build ID, in hexadecimal; NULL: the file had none.
 * offset:   of the return address in the file.
 *
 * Returns: false, with *out unchanged, if nothing is found or the file is not the recorded file
 */
bool symbols_find(struct symbols *symbols, const char *path, const char *build_id, uint64_t offset,
                  struct symbol *out);

#endif
