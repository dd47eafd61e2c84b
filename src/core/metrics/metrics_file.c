/* SPDX-License-Identifier: MIT */
#include "src/core/metrics/metrics_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/replacement.h"
#include "src/core/metrics/metrics_text.h"

static xseg_status fail(const char *path, int error)
{
    return xseg_fail(XSEG_ERR_FILE, "the metrics %s cannot be written: %s", path, strerror(error));
}

/* The page of all figures, for the caller to free, and its length. */
static xseg_status make_page(struct xseg_allocator *allocator, char **out, size_t *length)
{
    struct xseg_figures figures;
    char *page = NULL;
    size_t needed = 0;
    xseg_status status = xseg_figures_take(allocator, &figures);

    if (status == XSEG_OK)
        status = xseg_metrics_text_write(&figures, NULL, 0, &needed);
    if (status == XSEG_OK && (page = malloc(needed)) == NULL)
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for %zu bytes of metrics", needed);
    if (status == XSEG_OK)
        status = xseg_metrics_text_write(&figures, page, needed, &needed);
    xseg_figures_end(&figures);
    if (status != XSEG_OK)
        free(page);
    *out = status == XSEG_OK ? page : NULL;
    *length = needed - (needed > 0);
    return status;
}

/* Write all bytes.  Returns 0, or the errno of what failed. */
static int write_all(int file, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t some = write(file, bytes, count);

        if (some < 0 && errno != EINTR)
            return errno;
        if (some <= 0)
            continue;
        bytes += some;
        count -= (size_t)some;
    }
    return 0;
}

xseg_status xseg_metrics_file_write(struct xseg_allocator *allocator, const char *path)
{
    struct xseg_replacement place;
    char *page = NULL;
    size_t length = 0;
    const xseg_status status = make_page(allocator, &page, &length);

    if (status != XSEG_OK)
        return status;
    int error = xseg_replacement_begin(&place, path);
    if (error == 0) {
        error = write_all(place.file, page, length);
        const int ended = xseg_replacement_end(&place, error == 0);

        error = error == 0 ? ended : error;
    }
    free(page);
    return error == 0 ? XSEG_OK : fail(path, error);
}
