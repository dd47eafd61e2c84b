/* SPDX-License-Identifier: MIT */
#include "src/base/environment.h"

#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/string_util.h"

#define PREFIX "XSEG_"

enum { WARNINGS_MAX = 8 }; /* further variables are only counted */

static const char *const variables[] = {
#define X(name, reader, description) name,
    XSEG_ENVIRONMENT(X)
#undef X
};

static bool is_known(const char *name, size_t length)
{
    for (size_t i = 0; i < XSEG_COUNT_OF(variables); i++)
        if (strlen(variables[i]) == length && memcmp(variables[i], name, length) == 0)
            return true;
    return false;
}

static void warn_unknown(const struct xseg_log *log, const char *name, size_t length)
{
    struct xseg_closest_match closest;

    xseg_closest_match_init(&closest, name, length);
    for (size_t i = 0; i < XSEG_COUNT_OF(variables); i++)
        xseg_closest_match_consider(&closest, variables[i]);
    if (closest.name != NULL)
        xseg_log_line(log, XSEG_LOG_WARNING,
                      "environment: unknown variable, " PREFIX "%.*s; did you mean " PREFIX "%s?",
                      (int)length, name, closest.name);
    else
        xseg_log_line(log, XSEG_LOG_WARNING,
                      "environment: unknown variable, " PREFIX
                      "%.*s; see docs/environment.md for all names",
                      (int)length, name);
}

void xseg_environment_check(const struct xseg_log *log)
{
    unsigned warnings = 0;

    /* In a set-user-ID process the environment is untrusted. */
    if (getauxval(AT_SECURE) != 0)
        return;
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        const char *name = *variable + strlen(PREFIX);

        if (strncmp(*variable, PREFIX, strlen(PREFIX)) != 0)
            continue;
        const size_t length = xseg_min(strcspn(name, "="), 256);
        if (!is_known(name, length) && ++warnings <= WARNINGS_MAX)
            warn_unknown(log, name, length);
    }
    if (warnings > WARNINGS_MAX)
        xseg_log_line(log, XSEG_LOG_WARNING,
                      "environment: more unknown variables, %u with the prefix " PREFIX
                      "; see docs/environment.md for all names",
                      warnings - WARNINGS_MAX);
}
