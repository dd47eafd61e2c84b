/* SPDX-License-Identifier: MIT */
#include "src/tools/main/version.h"

#include "src/tools/commit.h"
#include "src/tools/reading/symbols.h"
#include "xseg/version.h"

void version_print(FILE *out)
{
    char checks[32] = "without self-checks";

    if (XSEG_CHECKS > 0)
        (void)snprintf(checks, sizeof(checks), "self-checks of level %d", XSEG_CHECKS);
    (void)fprintf(out, "xseg %s (%s build, %s, %s libdw, commit %s)\n", XSEG_VERSION_TEXT,
                  TOOLS_BUILD_TYPE, checks, symbols_available() ? "with" : "without", TOOLS_COMMIT);
}
