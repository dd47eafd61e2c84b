/* SPDX-License-Identifier: MIT */
#include "src/core/instance/opened.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/stack.h"
#include "src/base/string_util.h"
#include "src/core/history/store.h"

#if XSEG_CHECKS > 0
static void log_checks(const struct xseg_log *log)
{
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&is_logged))
        xseg_log_line(
            log, XSEG_LOG_WARNING,
            "self-checks: enabled at level %d and slow; build with --buildtype=release for "
            "production",
            XSEG_CHECKS);
}
#endif

/* Log the variables that secure_getenv() hides from a process that has more rights than its user. */
static void log_ignored_variables(const struct xseg_log *log)
{
    static const char *const variable[] = {
        "XSEG_DRIVER",
        "XSEG_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    };
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;
    char names[128];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, names, sizeof(names));
    for (unsigned i = 0; i < XSEG_COUNT_OF(variable); i++)
        if (getenv(variable[i]) != NULL && secure_getenv(variable[i]) == NULL)
            xseg_strbuf_printf(&text, "%s%s", text.length > 0 ? ", " : "", variable[i]);
    if (text.length > 0 && !atomic_flag_test_and_set(&is_logged))
        xseg_log_line(log, XSEG_LOG_WARNING,
                      "environment: ignored in a set-user-ID process, %s; pass the values to "
                      "xseg_open()",
                      names);
}

void xseg_opened_log(const struct xseg_log *log)
{
#if XSEG_CHECKS > 0
    log_checks(log);
#endif
    log_ignored_variables(log);
}

void xseg_opened_log_stacks(const struct xseg_log *log, uint64_t settings)
{
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;

    if (xseg_history_settings_capture(settings) && !xseg_stack_prepare() &&
        !atomic_flag_test_and_set(&is_logged))
        xseg_log_line(
            log, XSEG_LOG_WARNING,
            "history_stacks: libunwind cannot be loaded, so call stacks are about 25 times "
            "slower; install libunwind.so.8 (Debian: libunwind8)");
}
