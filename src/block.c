/* SPDX-License-Identifier: MIT */
/* The entry points of blocks, of xseg/allocator.h. */
#include "xseg/allocator.h"

#include "src/core/hit/hit_alloc.h"
#include "src/core/hit/hit_free.h"
#include "src/core/hit/hit_stream.h"
#include "src/core/inspect/allocator_describe.h"
#include "src/entry.h"

/* Fail for an argument that is NULL.  Out of line, so that the two short entry points save no registers for it. */
static __attribute__((noinline, cold)) xseg_status refuse_null(const char *name, const char *what)
{
    XSEG_OPERATION(name);
    return xseg_fail(XSEG_ERR_ARGUMENT, "%s is NULL", what);
}

xseg_status xseg_alloc(struct xseg_allocator *allocator, int device, size_t bytes,
                       xseg_stream stream, void **out)
{
    if (__builtin_expect(allocator == NULL || out == NULL, 0))
        return refuse_null("xseg_alloc", allocator == NULL ? "allocator" : "out");
    return xseg_hit_alloc(allocator, device, bytes, stream, out);
}

/* The request that a caller gave; members that its header does not have keep their defaults. */
static struct xseg_request request_of(const struct xseg_request *given)
{
    struct xseg_request request = XSEG_REQUEST_INIT;

    if (__builtin_expect(given->struct_size == sizeof(request), 1))
        return *given;
    XSEG_ENTRY_TAKE(&request, given);
    return request;
}

xseg_status xseg_alloc_with(struct xseg_allocator *allocator, const struct xseg_request *request,
                            void **out)
{
    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(request != NULL, "request is NULL");
    XSEG_ENTRY_IN(request, struct xseg_request, alignment);
    const struct xseg_request chosen = request_of(request);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    xseg_history_gather_for(&allocator->history, chosen.user);
    return xseg_hit_stream_request(allocator, &chosen, out);
}

xseg_status xseg_free(struct xseg_allocator *allocator, void *ptr)
{
    if (__builtin_expect(allocator == NULL, 0))
        return refuse_null("xseg_free", "allocator");
    return xseg_hit_free(allocator, ptr);
}

xseg_status xseg_block_query(struct xseg_allocator *allocator, const void *anywhere,
                             struct xseg_block_info *out)
{
    struct xseg_block_info info = XSEG_BLOCK_INFO_INIT;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_OUT(out);
    const xseg_status status = xseg_allocator_describe(allocator, anywhere, &info);
    if (status != XSEG_OK)
        return status;
    XSEG_ENTRY_FILL(out, &info);
    return XSEG_OK;
}
