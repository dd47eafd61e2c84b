/* SPDX-License-Identifier: MIT */
/* A program of a user: allocates, queries and frees a block, and prints the version of the headers. */
#include <stdio.h>
#include <string.h>

#include <xseg/xseg.h>

static int fail(const char *operation)
{
    char message[512] = "";

    (void)xseg_error_message(message, sizeof(message));
    (void)fprintf(stderr, "%s: %s\n", operation, message);
    return 1;
}

int main(void)
{
    struct xseg_allocator *allocator = NULL;
    struct xseg_block_info info = {sizeof(info)};
    void *block = NULL;

    if (xseg_open("expandable_segments:True", NULL, &allocator) != XSEG_OK)
        return fail("xseg_open");
    if (xseg_alloc(allocator, 0, (size_t)3 << 20, NULL, &block) != XSEG_OK)
        return fail("xseg_alloc");
    if (xseg_block_query(allocator, block, &info) != XSEG_OK || info.bytes != (size_t)3 << 20)
        return fail("xseg_block_query");
    if (!info.is_expandable)
        return fail("xseg_block_query: block is not expandable");
    if (xseg_close(allocator) != XSEG_ERR_BUSY)
        return fail("xseg_close with an allocated block");
    if (xseg_free(allocator, block) != XSEG_OK)
        return fail("xseg_free");
    if (xseg_close(allocator) != XSEG_OK)
        return fail("xseg_close");
    if (strcmp(xseg_status_name(XSEG_OK), "success") != 0)
        return fail("xseg_status_name");
    return puts(XSEG_VERSION_TEXT) < 0;
}
