/* SPDX-License-Identifier: MIT */
/* What was built: for `xseg --version` and for reports of mistakes. */
#ifndef TOOLS_VERSION_H
#define TOOLS_VERSION_H

#include <stdio.h>

/* Print one line: the version, and in brackets the build type, the level of self-checks, whether libdw names code, and
 * the commit. */
void version_print(FILE *out);

#endif
