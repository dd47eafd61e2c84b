/* SPDX-License-Identifier: MIT */
#include "xseg/metrics.h"

#include "src/core/metrics/metrics_file.h"
#include "src/core/metrics/metrics_text.h"
#include "src/entry.h"

static bool is_format(enum xseg_metrics_format format)
{
    return format == XSEG_METRICS_PROMETHEUS || format == XSEG_METRICS_OPENMETRICS;
}

xseg_status xseg_metrics(struct xseg_allocator *allocator, enum xseg_metrics_format format,
                         char *text, size_t bytes, size_t *needed)
{
    struct xseg_figures figures;
    size_t whole = 0;

    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(is_format(format),
                       "xseg_metrics: %u is no format: give one of XSEG_METRICS_",
                       (unsigned)format);
    XSEG_ENTRY_REQUIRE(text != NULL || bytes == 0, "xseg_metrics: text is NULL");
    xseg_status status = xseg_figures_take(allocator, &figures);
    if (status == XSEG_OK)
        status = xseg_metrics_text_write(&figures, format, text, bytes, &whole);
    xseg_figures_end(&figures);
    if (status == XSEG_OK && needed != NULL)
        *needed = whole;
    return status;
}

const char *xseg_metrics_content_type(enum xseg_metrics_format format)
{
    if (!is_format(format))
        return "";
    return format == XSEG_METRICS_PROMETHEUS
               ? "text/plain; version=0.0.4; charset=utf-8"
               : "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

xseg_status xseg_metrics_write(struct xseg_allocator *allocator, const char *path)
{
    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(path != NULL && path[0] != '\0',
                       "xseg_metrics_write: there is no path: name a file");
    return xseg_metrics_file_write(allocator, path);
}
