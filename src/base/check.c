/* SPDX-License-Identifier: MIT */
#include "src/base/check.h"

#include <stdlib.h>

_Noreturn void xseg_die(const char *file, int line, const char *what, const char *detail)
{
    (void)fprintf(stderr, "xseg: %s:%d: check failed: %s %s\n", file, line, what, detail);
    abort();
}
