/* SPDX-License-Identifier: MIT */
/* Raw handles of an exported block, for the exporter and the importer. */
#ifndef XSEG_TESTS_EXPORTED_HANDLES_H
#define XSEG_TESTS_EXPORTED_HANDLES_H

#include <unistd.h>

#include "xseg/share.h"

#define EXPORTED_MAX 512u

struct exported_handles {
    enum xseg_handle_type type;
    size_t count;
    uint64_t offset; /* of the block in the run */
    struct xseg_page_handle handle[EXPORTED_MAX];
};

/* Export a block by raw handles; on an error nothing is exported, and `out` is empty. */
static inline xseg_status export_handles(struct xseg_allocator *allocator, void *ptr,
                                         enum xseg_handle_type type, struct exported_handles *out)
{
    out->type = type;
    out->count = 0;
    const xseg_status status = xseg_export_handles(allocator, ptr, type, out->handle, EXPORTED_MAX,
                                                   &out->count, &out->offset);

    if (status != XSEG_OK)
        out->count = 0;
    return status;
}

/* Close the descriptors; the export stays open. */
static inline void export_handles_close(struct exported_handles *exported)
{
    for (size_t i = 0; exported->type == XSEG_HANDLE_FD && i < exported->count; i++)
        (void)close(exported->handle[i].fd);
    exported->count = 0;
}

/* Export a block, and close the handles. */
static inline xseg_status export_and_close_handles(struct xseg_allocator *allocator, void *ptr)
{
    struct exported_handles exported;
    const xseg_status status = export_handles(allocator, ptr, XSEG_HANDLE_FD, &exported);

    export_handles_close(&exported);
    return status;
}

/* Import on device 0; the address of the block, and of the run. */
static inline xseg_status import_handles(struct xseg_allocator *allocator,
                                         const struct exported_handles *exported, void **block,
                                         void **base)
{
    const xseg_status status =
        xseg_import_handles(allocator, 0, exported->type, exported->handle, exported->count, base);

    if (status == XSEG_OK && block != NULL)
        *block = (char *)*base + exported->offset;
    return status;
}

#endif
