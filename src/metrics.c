/* SPDX-License-Identifier: MIT */
#include "xseg/metrics.h"

#include "src/core/metrics/metrics_text.h"
#include "src/entry.h"

xseg_status xseg_metrics(struct xseg_allocator *allocator, char *text, size_t bytes, size_t *needed)
{
    size_t whole = 0;

    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(text != NULL || bytes == 0, "text is NULL, bytes %zu", bytes);
    const xseg_status status = xseg_metrics_text_write(allocator, text, bytes, &whole);
    if (status == XSEG_OK && needed != NULL)
        *needed = whole;
    return status;
}

xseg_status xseg_metrics_write(struct xseg_allocator *allocator, const char *path)
{
    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(path != NULL && path[0] != '\0', "path is NULL or empty");
    return xseg_metrics_file_write(allocator, path);
}
