/* SPDX-License-Identifier: MIT */
#include "xseg/status.h"

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
    struct xseg_strbuf message;

    xseg_strbuf_init(&message, text, bytes);
    xseg_fail_print(&message);
    return message.length;
}
