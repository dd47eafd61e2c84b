/* SPDX-License-Identifier: MIT */
/*
 * Contents: the bytes of device memory, saved elsewhere while its pages are evicted.
 *
 *     device   [ run ........ ]     [ run ... ]    [ run .......... ]
 *     kept     [ ...................................................]
 *              offset 0         one behind the other
 *
 * Contents are saved in pinned host memory, in pieces, so that a copy runs at the speed of the bus; or in a
 * file, through one pinned buffer.  The file is sparse: it has holes for zero bytes, and the device fills
 * memory of a hole with zeros instead of copying.
 *
 * Copies are work of a stream of their own.  They are complete once the stream has been waited for; a file is
 * written and read within the calls.
 *
 * Locking: the device memory lock of the device.
 */
#ifndef XSEG_VMM_CONTENTS_H
#define XSEG_VMM_CONTENTS_H

#include "vmm/unreleased.h"
#include "xseg/pool.h"

struct xseg_contents {
    struct xseg_context *context;
    struct xseg_unreleased_list
        *unreleased; /* for pinned memory that the driver does not take back */
    xseg_stream stream;
    enum xseg_keep keep;
    uint64_t bytes;
    void **piece; /* [pieces]; with a file there is one, the buffer */
    size_t pieces;
    uint64_t piece_bytes;
    char *path;       /* of the file, as it was given: for messages */
    const char *name; /* its last part */
    int folder;       /* where the name is looked up, wherever that folder is moved to */
    int file;
};

/*
 * Make room for `bytes` of contents.
 *
 * keep:   not XSEG_KEEP_NOTHING
 * path:   of a file that is not there yet; copied
 * stream: for the copies
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE naming the path and the system's reason;
 *          XSEG_ERR_DRIVER; then nothing is left behind
 * Cost:    one cuMemHostAlloc a GiB; one for a file
 */
xseg_status xseg_contents_open(struct xseg_contents *contents,
                               struct xseg_unreleased_list *unreleased, xseg_stream stream,
                               enum xseg_keep keep, const char *path, uint64_t bytes);

/* Free the saved contents.  The file is removed from the folder in which it was made, unless it has been
 * moved or its name belongs to another file by now. */
void xseg_contents_close(struct xseg_contents *contents);

/*
 * Copy device memory to an offset, or back.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER; XSEG_ERR_FILE, XSEG_ERR_HOST_MEMORY where there is a file
 * Cost:    one copy a piece; with a file, one copy and one wait a buffer, and on the way back one
 *          copy for each part of it that is no hole, and one fill if it has holes
 */
xseg_status xseg_contents_save(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                               uint64_t bytes);
xseg_status xseg_contents_load(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                               uint64_t bytes);

/* Wait for the copies.  Returns: XSEG_OK, XSEG_ERR_DRIVER */
xseg_status xseg_contents_wait(struct xseg_contents *contents);

/*
 * Give the buffer of a file back while nothing is copied, and get one again before the first load.  Nothing
 * happens where contents are saved in host memory.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER
 */
void xseg_contents_release_buffer(struct xseg_contents *contents);
xseg_status xseg_contents_acquire_buffer(struct xseg_contents *contents);

#endif
