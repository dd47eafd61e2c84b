/* SPDX-License-Identifier: MIT */
#include "src/core/pools/share_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/config/size.h"

/* Upper bounds: of a device's addresses, and of a process's descriptors (fs.nr_open). */
#define BYTES_MAX (UINT64_C(1) << 47)
#define PAGES_MAX (UINT64_C(1) << 20)

/* The smallest page that any device maps; current devices map 2 MiB. */
#define PAGE_LEAST UINT64_C(4096)

_Static_assert(sizeof(struct xseg_share_header) % sizeof(uint64_t) == 0,
               "the table of pages follows it");
_Static_assert(PAGES_MAX < SIZE_MAX / (sizeof(uint64_t) + XSEG_SHARE_FABRIC_BYTES) &&
                   PAGE_LEAST % XSEG_SIZE_QUANTUM == 0,
               "sums fit");

/* Bytes of a header with what stands behind it. */
static uint64_t bytes_of(uint32_t kind, uint64_t pages)
{
    const uint64_t of_page =
        sizeof(uint64_t) + (kind == XSEG_SHARE_FABRIC ? XSEG_SHARE_FABRIC_BYTES : 0);

    return sizeof(struct xseg_share_header) + pages * of_page;
}

xseg_status xseg_share_check_count(const struct xseg_share_header *header, size_t fd_count)
{
    if (fd_count == (header->kind == XSEG_SHARE_FD ? header->page_count : 0))
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_ARGUMENT, "the share has pages: %" PRIu64 ", and descriptors: %zu%s",
                     header->page_count, fd_count,
                     header->kind == XSEG_SHARE_FD ? "" : ", where it is to have none");
}

bool xseg_share_make(struct xseg_share *share, enum xseg_share_kind kind, uint64_t pages)
{
    const size_t bytes = (size_t)bytes_of(kind, pages);

    XSEG_ASSERT(pages != 0 && pages <= PAGES_MAX);
    *share = (struct xseg_share)XSEG_SHARE_INIT;
    share->header = calloc(1, bytes);
    if (kind == XSEG_SHARE_FABRIC) {
        share->header_bytes = share->header != NULL ? bytes : 0;
        return share->header != NULL;
    }
    int *file = malloc((size_t)pages * sizeof(*file));
    if (share->header == NULL || file == NULL) {
        free(file);
        xseg_share_free(share);
        return false;
    }
    for (size_t i = 0; i < pages; i++)
        file[i] = -1;
    share->header_bytes = bytes;
    share->fd = file;
    share->fd_count = (size_t)pages;
    return true;
}

void xseg_share_free(struct xseg_share *share)
{
    XSEG_ASSERT(share->fd_count == 0 || share->fd != NULL);
    for (size_t i = 0; i < share->fd_count; i++)
        if (share->fd[i] >= 0)
            (void)close(share->fd[i]);
    free(xseg_share_fds(share));
    free(xseg_share_head(share));
    *share = (struct xseg_share)XSEG_SHARE_INIT;
}

/* --- What a header says. --- */

/* Check what a header says of its block, as far as the page sizes are not needed. */
static xseg_status check_block(const struct xseg_share_header *header)
{
    if (header->block_bytes == 0 || header->block_bytes > BYTES_MAX ||
        header->requested_bytes > header->block_bytes)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "the share's block has %" PRIu64 " bytes, of which %" PRIu64
                         " were requested",
                         header->block_bytes, header->requested_bytes);
    if (header->block_offset % XSEG_SIZE_QUANTUM != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "the share's block starts at %" PRIu64
                         " of its first page: blocks are aligned to %" PRIu64 " bytes",
                         header->block_offset, XSEG_SIZE_QUANTUM);
    return XSEG_OK;
}

xseg_status xseg_share_check_fixed(const struct xseg_share_header *header)
{
    if (memcmp(header->magic, XSEG_SHARE_MAGIC, sizeof(header->magic)) != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT, "this is no header of a share: it does not begin with "
                                            "\"" XSEG_SHARE_MAGIC "\"");
    if (header->version != XSEG_SHARE_VERSION ||
        (header->kind != XSEG_SHARE_FD && header->kind != XSEG_SHARE_FABRIC))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "a share of version %" PRIu32 " and kind %" PRIu32
                         ": this library knows version %u and kinds %d and %d",
                         header->version, header->kind, XSEG_SHARE_VERSION, XSEG_SHARE_FD,
                         XSEG_SHARE_FABRIC);
    if (header->page_count == 0 || header->page_count > PAGES_MAX ||
        header->header_bytes != bytes_of(header->kind, header->page_count))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "a share of %" PRIu64 " pages with a header of %" PRIu64 " bytes",
                         header->page_count, header->header_bytes);
    const xseg_status status = check_block(header);
    if (status != XSEG_OK || header->page_count <= header->block_bytes / PAGE_LEAST + 2)
        return status;
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "a share of %" PRIu64 " pages for a block of %" PRIu64
                     " bytes, which does not lie on as many",
                     header->page_count, header->block_bytes);
}

/* Check that the block lies on the pages, and on each of them. */
static xseg_status check_table(const struct xseg_share_header *header)
{
    const uint64_t *table = (const uint64_t *)(const void *)(header + 1);
    const uint64_t last = table[header->page_count - 1];
    uint64_t all = 0;

    for (uint64_t i = 0; i < header->page_count; i++) {
        if (table[i] == 0 || table[i] > BYTES_MAX || table[i] % PAGE_LEAST != 0 || all > BYTES_MAX)
            return xseg_fail(XSEG_ERR_ARGUMENT,
                             "page %" PRIu64 " of the share has %" PRIu64 " bytes", i, table[i]);
        all += table[i];
    }
    XSEG_ASSERT(all >= last);
    if (header->block_offset < table[0] && header->block_bytes <= all - header->block_offset &&
        header->block_offset + header->block_bytes > all - last)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "the share's block of %" PRIu64 " bytes at %" PRIu64
                     " does not lie on its %" PRIu64 " pages of %" PRIu64 " bytes",
                     header->block_bytes, header->block_offset, header->page_count, all);
}

xseg_status xseg_share_check(const struct xseg_share_header *header)
{
    const xseg_status status = xseg_share_check_fixed(header);

    return status == XSEG_OK ? check_table(header) : status;
}

xseg_status xseg_share_copy(const void *header, size_t bytes, struct xseg_share_header **out)
{
    struct xseg_share_header fixed;

    if (header == NULL || bytes < sizeof(fixed))
        return xseg_fail(XSEG_ERR_ARGUMENT, "a header of %zu bytes: %zu are the least", bytes,
                         sizeof(fixed) + sizeof(uint64_t));
    memcpy(&fixed, header, sizeof(fixed));
    xseg_status status = xseg_share_check_fixed(&fixed);
    if (status != XSEG_OK)
        return status;
    if (bytes < fixed.header_bytes)
        return xseg_fail(XSEG_ERR_ARGUMENT, "%zu of the %" PRIu64 " bytes of a header", bytes,
                         fixed.header_bytes);
    struct xseg_share_header *copy = malloc((size_t)fixed.header_bytes);
    if (copy == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a header of %" PRIu64 " bytes",
                         fixed.header_bytes);
    memcpy(copy, &fixed, sizeof(fixed));
    memcpy(copy + 1, (const char *)header + sizeof(fixed),
           (size_t)fixed.header_bytes - sizeof(fixed));
    status = check_table(copy);
    XSEG_ASSERT(copy->header_bytes <= bytes);
    if (status == XSEG_OK)
        *out = copy;
    else
        free(copy);
    return status;
}
