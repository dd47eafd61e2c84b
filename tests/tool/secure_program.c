/* SPDX-License-Identifier: MIT */
/*
 * A program that tests/tool/secure_execution.py makes set-user-ID: secure_program DRIVER.  It opens an allocator with the
 * configuration of the environment, and prints whether the kernel marks the process as secure (AT_SECURE), the source
 * of the configuration, and each warning.
 */
#include <stdio.h>
#include <sys/auxv.h>

#include "xseg/xseg.h"

static void print_warning(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    if (level == XSEG_LOG_WARNING)
        (void)printf("warning %s\n", line);
}

int main(int argc, char **argv)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    char message[512] = "";

    (void)printf("secure %lu\n", getauxval(AT_SECURE));
    options.driver = argc > 1 ? argv[1] : NULL;
    options.log = print_warning;
    if (xseg_open(NULL, &options, &allocator) != XSEG_OK) {
        (void)xseg_error_message(message, sizeof(message));
        (void)printf("error %s\n", message);
        return 1;
    }
    (void)printf("source %s\n", xseg_config_source(allocator));
    return xseg_close(allocator) != XSEG_OK;
}
