/* SPDX-License-Identifier: MIT */
/* Steps about elastic ranges: a range is created, used, and destroyed, while no other operation is active. */
#include <string.h>

#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"

#define GRANULES 12u

struct test_range {
    struct xseg_range *range;
    struct stream *stream;
    uint64_t page_bytes;
    unsigned holds[GRANULES];
};

static bool is_any_capturing(const struct world *world)
{
    for (unsigned i = 0; i < world->options.threads; i++)
        if (world->worker[i].capture.pool != NULL)
            return true;
    return false;
}

static bool reserve_range(struct worker *worker, struct test_range *test_range)
{
    struct xseg_range_options options = {sizeof(options)};
    const int device = any_device(worker);
    const uint64_t epoch = fault_epoch();

    options.page_bytes = chance(worker, 3) ? 4 * MIB : 0;
    options.limit_bytes = chance(worker, 4) ? 16 * MIB : 0;
    test_range->page_bytes = options.page_bytes == 0 ? 2 * MIB : options.page_bytes;
    test_range->stream = any_stream(worker, device);
    const xseg_status status =
        CALL(xseg_range_reserve, worker->world->allocator, device,
             GRANULES * test_range->page_bytes, &options, &test_range->range);
    failure_record(worker->number, "range of device %d: %d", device, status);
    CHECK(status == XSEG_OK || status == XSEG_ERR_UNSUPPORTED || !fault_was_none(epoch));
    return status == XSEG_OK;
}

/* One operation on a range; a rejected operation has an error message and no effect. */
static void use_range(struct worker *worker, struct test_range *test_range)
{
    struct xseg_range *range = test_range->range;
    const unsigned first = (unsigned)below(worker, GRANULES);
    const unsigned count = 1 + (unsigned)below(worker, GRANULES - first);
    const uint64_t offset = first * test_range->page_bytes, bytes = count * test_range->page_bytes;
    const xseg_stream stream = test_range->stream->handle;

    switch (below(worker, 8)) {
    case 0:
    case 1:
    case 2:
        (void)CALL(xseg_range_commit, range, offset, bytes, stream);
        break;
    case 3:
    case 4:
        (void)CALL(xseg_range_decommit, range, offset, bytes, stream);
        break;
    case 5:
        (void)CALL(xseg_range_prepare, range, 2 * test_range->page_bytes);
        break;
    case 6:
        (void)CALL(xseg_range_set_quota, range, below(worker, 4) * test_range->page_bytes);
        break;
    default:
        (void)CALL(xseg_range_alias, range, offset, test_range->page_bytes, range,
                   below(worker, GRANULES) * test_range->page_bytes);
        if (CALL(xseg_range_hold, range, offset, test_range->page_bytes) == XSEG_OK)
            test_range->holds[first]++;
        break;
    }
}

/* Release everything, which must succeed without faults. */
static void release_range(struct worker *worker, struct test_range *test_range)
{
    const xseg_stream stream = test_range->stream->handle;
    struct xseg_range_info info = {sizeof(info)};

    fault_lift();
    for (unsigned granule = 0; granule < GRANULES; granule++) {
        const uint64_t offset = granule * test_range->page_bytes;

        (void)CALL(xseg_range_decommit, test_range->range, offset, test_range->page_bytes, stream);
        for (; test_range->holds[granule] != 0; test_range->holds[granule]--)
            CHECK_OK(
                CALL(xseg_range_unhold, test_range->range, offset, test_range->page_bytes, stream));
    }
    CHECK_OK(CALL(xseg_range_query, test_range->range, &info));
    CHECK(info.committed_bytes == 0 && info.physical_bytes <= info.pending_unmap_bytes);
    CHECK_OK(CALL(xseg_range_release, test_range->range));
    failure_record(worker->number, "range ended");
}

void step_range(struct worker *worker)
{
    struct test_range test_range;

    memset(&test_range, 0, sizeof(test_range));
    if (is_any_capturing(worker->world) || !reserve_range(worker, &test_range))
        return;
    for (unsigned i = 0; i < 12; i++)
        use_range(worker, &test_range);
    release_range(worker, &test_range);
}
