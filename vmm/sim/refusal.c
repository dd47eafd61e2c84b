/* SPDX-License-Identifier: MIT */
#include "vmm/sim/refusal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char sentence[512];

xseg_status sim_refuse(xseg_status status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    return status;
}

size_t xseg_sim_error_text(char *text, size_t bytes)
{
    if (bytes > 0)
        (void)snprintf(text, bytes, "%s", sentence);
    return strlen(sentence);
}
