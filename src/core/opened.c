/* SPDX-License-Identifier: MIT */
#include "src/core/opened.h"

#include <stdatomic.h>

#include "src/base/check.h"

#if XSEG_CHECKS > 0
static void log_checks(const struct xseg_log *log)
{
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&is_logged))
        xseg_log_line(log, XSEG_LOG_WARNING,
                      "this libxseg checks itself (level %d) and is slow: build it with "
                      "--buildtype=release for use",
                      XSEG_CHECKS);
}
#endif

void xseg_opened_log(const struct xseg_log *log)
{
#if XSEG_CHECKS > 0
    log_checks(log);
#else
    (void)log;
#endif
}
