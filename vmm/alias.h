/* SPDX-License-Identifier: MIT */
/*
 * Aliases: physical pages that several granules map.
 *
 * A granule that is the only mapping of its page stores the page's handle in the table of its
 * segment.  The first alias of a page creates a record with the handle and a mapping count, and
 * every granule that maps the page refers to the record.  The removal of the last mapping releases
 * the page and frees the record.  A granule without a record needs no additional host memory.
 *
 * All mappings of an aliased page are one granule long and in segments of one owner.  `mapped` of a
 * segment counts each mapping.  The memory itself is charged
 *   - to the owner, until the last mapping that is mapped or evicted is removed (`unmapped_bytes`);
 *   - to the segment that mapped the page first, once, as long as that segment maps the page
 *     (`alias_bytes` has the granules that are not charged to their segment).
 *
 * A granule in unknown state may still map its page and therefore keeps it.  A page with memory
 * that no granule maps in state MAPPED counts once as memory in unknown state.
 *
 * Invariants, which xseg_alias_audit() and its caller check:
 *   ALIAS-1  the counts of a record are those of the granules that refer to it.
 *   ALIAS-2  `alias_bytes` of a segment is the size of its mapped or evicted granules with a
 *            record, less one granule for each record that is charged to the segment.
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_VMM_ALIAS_H
#define XSEG_VMM_ALIAS_H

#include "vmm/segment.h"

/* Granules that refer to a record. */
struct xseg_mapping_counts {
    uint32_t mappings;  /* all */
    uint32_t mapped;    /* in state MAPPED */
    uint32_t evicted;   /* in any evicted state */
    uint32_t fresh;     /* evicted, in state FRESH or FRESH_MAPPED */
    uint32_t charged;   /* mapped or evicted, in the charged segment */
    uint32_t committed; /* counted by xseg_alias_map(), afterwards by the module of ranges */
};

struct xseg_alias_record {
    uint64_t handle;                    /* 0: evicted, without memory */
    const struct xseg_segment *charged; /* NULL: the page is charged to the owner only */
    uint64_t visit_address;             /* mapping at which a pause visits the page (evicted.h) */
    bool was_exported;
    bool counts_as_unknown; /* the page counts as memory in unknown state */
    struct xseg_mapping_counts count;
    struct xseg_mapping_counts audited; /* of an audit in progress */
};

/* The record of a granule; NULL: none. */
static inline struct xseg_alias_record *xseg_alias_record(const struct xseg_segment *segment,
                                                          uint32_t granule)
{
    return segment->alias_record == NULL ? NULL : segment->alias_record[granule];
}

/* Whether other granules also map the page of a granule. */
static inline bool xseg_alias_exists(const struct xseg_segment *segment, uint32_t granule)
{
    const struct xseg_alias_record *record = xseg_alias_record(segment, granule);

    return record != NULL && record->count.mappings > 1;
}

/* The handle of the page that starts at a granule; 0: the page has no memory. */
static inline uint64_t xseg_alias_handle(const struct xseg_segment *segment, uint32_t granule)
{
    const struct xseg_alias_record *record = xseg_alias_record(segment, granule);

    return record == NULL ? segment->handle[granule] : record->handle;
}

/*
 * Map the committed pages of the granules [at, at + count) of `from` at the unmapped granules
 * [first, first + count) of `segment`, which become committed.  Both segments can be the same one;
 * they have the same owner and pages of one granule.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, or the driver's error, and nothing is mapped, except for
 *          mappings in unknown state that the driver did not remove again
 * Cost:    one map per page; one set-access (one per page if the driver does not batch)
 */
xseg_status xseg_alias_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                           struct xseg_segment *from, uint32_t at);

/*
 * Compare the records with the granules of all segments of an owner: begin with each segment, add
 * each granule, check each segment.
 *
 * alias_bytes: receives the sum for ALIAS-2
 */
void xseg_alias_audit_begin(const struct xseg_segment *segment);
void xseg_alias_audit_add(const struct xseg_segment *segment, uint32_t granule, bool is_committed,
                          uint64_t *alias_bytes);
bool xseg_alias_audit(const struct xseg_segment *segment, struct xseg_violation *violation);

#endif
