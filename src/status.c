/* SPDX-License-Identifier: MIT */
#include "xseg/status.h"

#include <string.h>

#include "src/base/error.h"

const char *xseg_status_name(xseg_status status)
{
    switch (status) {
#define X(name, number, text) \
    case XSEG_##name:         \
        return text;
        XSEG_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

size_t xseg_error_message(char *text, size_t bytes)
{
    const struct xseg_text *error = xseg_fail_text();

    if (bytes > 0) {
        const size_t held = error->length < error->bytes ? error->length : error->bytes;
        const size_t copied = held < bytes ? held : bytes - 1;

        if (copied > 0)
            memcpy(text, error->buffer, copied);
        text[copied] = '\0';
    }
    return error->length;
}
