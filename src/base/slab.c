/* SPDX-License-Identifier: MIT */
#include "src/base/slab.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/zeroed.h"

bool xseg_slab_init(struct xseg_slab *slab, size_t record_bytes, void *owner)
{
    XSEG_ASSERT(record_bytes >= sizeof(struct xseg_slab_idle));
    memset(slab, 0, sizeof(*slab));
    slab->record_bytes = record_bytes;
    slab->owner = owner;
    slab->directory = xseg_zeroed_take(XSEG_SLAB_SLABS * sizeof(*slab->directory));
    return slab->directory != NULL;
}

void xseg_slab_fini(struct xseg_slab *slab)
{
    for (uint32_t i = 0; i < slab->made / XSEG_SLAB_RECORDS; i++)
        free(slab->directory[i]);
    xseg_zeroed_give(slab->directory, XSEG_SLAB_SLABS * sizeof(*slab->directory));
    memset(slab, 0, sizeof(*slab));
}

void *xseg_slab_make_refill(const struct xseg_slab *slab)
{
    return malloc(XSEG_SLAB_RECORDS * slab->record_bytes);
}

bool xseg_slab_refill(struct xseg_slab *slab, void *refill)
{
    char *records = refill;

    if (slab->made / XSEG_SLAB_RECORDS >= XSEG_SLAB_SLABS) {
        free(refill);
        return false;
    }
    slab->directory[slab->made / XSEG_SLAB_RECORDS] = records;
    slab->made += XSEG_SLAB_RECORDS;
    for (uint32_t i = XSEG_SLAB_RECORDS; i-- > 0;) {
        struct xseg_slab_record *record = (void *)(records + i * slab->record_bytes);

        record->owner = slab->owner;
        xseg_slab_put(slab, record);
    }
    return true;
}

void *xseg_slab_take(struct xseg_slab *slab)
{
    XSEG_ASSERT(slab->free_count > 0);
    struct xseg_slab_record *record = xseg_slab_take_as_is(slab);

    memset(record + 1, 0, slab->record_bytes - sizeof(*record));
    return record;
}

size_t xseg_slab_bytes(const struct xseg_slab *slab)
{
    return slab->made * slab->record_bytes +
           xseg_zeroed_resident(slab->directory, XSEG_SLAB_SLABS * sizeof(*slab->directory));
}

bool xseg_slab_audit(const struct xseg_slab *slab, struct xseg_finding *finding)
{
    uint32_t count = 0;

    for (const struct xseg_slab_idle *link = slab->free; link != NULL; link = link->next)
        count++;
    XSEG_HOLDS(finding, "SLAB-1", count == slab->free_count && count <= slab->made,
               "free list has %u, free_count says %u of %u", count, slab->free_count, slab->made);
    for (uint32_t i = 0; i < slab->made; i++) {
        const struct xseg_slab_record *record =
            (const void *)(slab->directory[i / XSEG_SLAB_RECORDS] +
                           i % XSEG_SLAB_RECORDS * slab->record_bytes);

        XSEG_HOLDS(finding, "SLAB-2", record->owner == slab->owner,
                   "record %u says that it is another's", i);
    }
    return true;
}
