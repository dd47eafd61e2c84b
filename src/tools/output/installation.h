/* SPDX-License-Identifier: MIT */
/*
 * Paths of the installation: the libraries of a build folder, of a wheel (xseg/lib) or of the system are next to the
 * libxseg.so that the tool has loaded.
 *
 * Locking: none.
 */
#ifndef TOOLS_INSTALLATION_H
#define TOOLS_INSTALLATION_H

#include <stdbool.h>
#include <stddef.h>

/* Get the path of the library that contains a symbol; "": unknown. */
const char *installation_file_of(const void *symbol);

/* Write the path of a file next to libxseg.so, which need not exist.  Returns false if the path is unknown or too long. */
bool installation_path(const char *file, char *path, size_t bytes);

#endif
