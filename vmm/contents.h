/* SPDX-License-Identifier: MIT */
/*
 * Contents: a copy of device memory on the host or in a file, for pages that are evicted.
 *
 *     device   [ run ........ ]     [ run ... ]    [ run .......... ]
 *     copy     [ ...................................................]
 *              offset 0         contiguous
 *
 * A copy on the host is in pinned buffers of at most 1 GiB, so that it runs at the speed of the
 * bus.  A copy in a file uses one pinned buffer of 64 MiB.  The file is sparse: blocks of zeros are
 * not written, and a load fills their device memory with zeros instead of copying them.
 *
 * Copies are queued on a stream of the caller.  They are complete once the stream was synchronized;
 * the file is written and read within the calls.
 *
 * The file is created exclusively, and later found through a descriptor of its directory, so a
 * chdir() or a rename of a directory does not redirect it.  A close removes the file only if its
 * name still leads to the same inode.
 *
 * Locking: a copy belongs to one pool in transition, so save, load and wait need no lock.  The
 * caller holds the device memory lock for a close and for the release of a buffer, because they can
 * add records to `unreleased`.  So a failed open or acquire frees no buffer.
 */
#ifndef XSEG_VMM_CONTENTS_H
#define XSEG_VMM_CONTENTS_H

#include "vmm/unreleased.h"
#include "xseg/pool.h"

struct xseg_contents {
    struct xseg_context *context;
    struct xseg_unreleased_list *unreleased;
    xseg_stream stream;
    enum xseg_keep keep;
    uint64_t bytes;
    void **buffer; /* [buffers], pinned; with a file at most one */
    size_t buffers;
    uint64_t buffer_bytes;
    char *path;       /* of the file, as passed by the caller, for messages */
    const char *name; /* last component of the path */
    int directory;    /* descriptor of the directory that contains the file */
    int file;
};

/*
 * Create an empty copy of `bytes` bytes.  The caller closes the copy, also after a failure.
 *
 * keep:   not XSEG_KEEP_NOTHING.
 * path:   of a file that does not exist; copied.
 * stream: for the copies.
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE with the path and the system's reason;
 *          XSEG_ERR_DRIVER
 * Cost:    one cuMemHostAlloc per GiB; one for a file
 */
xseg_status xseg_contents_open(struct xseg_contents *contents,
                               struct xseg_unreleased_list *unreleased, xseg_stream stream,
                               enum xseg_keep keep, const char *path, uint64_t bytes);

/* Free the copy, and remove the file unless it was moved or replaced. */
void xseg_contents_close(struct xseg_contents *contents);

/*
 * Copy device memory to an offset, or back.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER; with a file XSEG_ERR_FILE, XSEG_ERR_HOST_MEMORY
 * Cost:    one copy per buffer; with a file also one synchronization per buffer, and a load makes
 *          one copy per extent with data and one fill per buffer with a block of zeros
 */
xseg_status xseg_contents_save(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                               uint64_t bytes);
xseg_status xseg_contents_load(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                               uint64_t bytes);

/* Wait for the copies.  Returns: XSEG_OK, XSEG_ERR_DRIVER */
xseg_status xseg_contents_wait(struct xseg_contents *contents);

/*
 * Release the buffer of a file between a save and the first load, and acquire one again.  Without a
 * file these functions have no effect.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER
 */
void xseg_contents_release_buffer(struct xseg_contents *contents);
xseg_status xseg_contents_acquire_buffer(struct xseg_contents *contents);

#endif
