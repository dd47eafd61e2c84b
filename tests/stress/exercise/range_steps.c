/* SPDX-License-Identifier: MIT */
/* Steps about elastic ranges: a range is created, used, and destroyed, while no other operation is active. */
#include <string.h>

#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"

#define GRANULES 12u

struct ranged {
    struct xseg_range *range;
    struct stream *stream;
    uint64_t page;
    unsigned holds[GRANULES];
};

static bool is_any_capturing(const struct world *world)
{
    for (unsigned i = 0; i < world->options.threads; i++)
        if (world->worker[i].capture.tag != NULL)
            return true;
    return false;
}

static bool reserve(struct worker *worker, struct ranged *ranged)
{
    struct xseg_range_options options = {sizeof(options)};
    const int device = any_device(worker);
    const uint64_t epoch = fault_epoch();

    options.page_bytes = chance(worker, 3) ? 4 * MIB : 0;
    options.limit_bytes = chance(worker, 4) ? 16 * MIB : 0;
    ranged->page = options.page_bytes == 0 ? 2 * MIB : options.page_bytes;
    ranged->stream = any_stream(worker, device);
    const xseg_status status = CALL(xseg_range_reserve, worker->world->allocator, device,
                                    GRANULES * ranged->page, &options, &ranged->range);
    failure_note(worker->number, "range of device %d: %d", device, status);
    CHECK(status == XSEG_OK || status == XSEG_ERR_UNSUPPORTED || !fault_was_none(epoch));
    return status == XSEG_OK;
}

/* One operation on a range; a rejected operation has an error message and no effect. */
static void use(struct worker *worker, struct ranged *ranged)
{
    struct xseg_range *range = ranged->range;
    const unsigned first = (unsigned)below(worker, GRANULES);
    const unsigned count = 1 + (unsigned)below(worker, GRANULES - first);
    const uint64_t offset = first * ranged->page, bytes = count * ranged->page;
    const xseg_stream stream = ranged->stream->handle;

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
        (void)CALL(xseg_range_prepare, range, 2 * ranged->page);
        break;
    case 6:
        (void)CALL(xseg_range_set_quota, range, below(worker, 4) * ranged->page);
        break;
    default:
        (void)CALL(xseg_range_alias, range, offset, ranged->page, range,
                   below(worker, GRANULES) * ranged->page);
        if (CALL(xseg_range_hold, range, offset, ranged->page) == XSEG_OK)
            ranged->holds[first]++;
        break;
    }
}

/* Release everything, which must succeed without faults. */
static void end(struct worker *worker, struct ranged *ranged)
{
    const xseg_stream stream = ranged->stream->handle;
    struct xseg_range_info info = {sizeof(info)};

    fault_lift();
    for (unsigned at = 0; at < GRANULES; at++) {
        const uint64_t offset = at * ranged->page;

        (void)CALL(xseg_range_decommit, ranged->range, offset, ranged->page, stream);
        for (; ranged->holds[at] != 0; ranged->holds[at]--)
            CHECK_OK(CALL(xseg_range_unhold, ranged->range, offset, ranged->page, stream));
    }
    CHECK_OK(CALL(xseg_range_query, ranged->range, &info));
    CHECK(info.committed_bytes == 0 && info.physical_bytes <= info.pending_unmap_bytes);
    CHECK_OK(CALL(xseg_range_release, ranged->range));
    failure_note(worker->number, "range ended");
}

void step_range(struct worker *worker)
{
    struct ranged ranged;

    memset(&ranged, 0, sizeof(ranged));
    if (is_any_capturing(worker->world) || !reserve(worker, &ranged))
        return;
    for (unsigned i = 0; i < 12; i++)
        use(worker, &ranged);
    end(worker, &ranged);
}
