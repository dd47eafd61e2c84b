/* SPDX-License-Identifier: MIT */
/*
 * Aliases: physical pages that several granules map.
 *
 * A granule that is the only mapping of its page has the page's handle in the table of its segment.  The first alias of a
 * page creates a record, to which every granule that maps the page refers.  The record has the handle and a mapping count;
 * the removal of the last mapping releases the page and frees the record.  A granule without a record costs nothing.
 *
 * All mappings of a page are in segments of one owner, and one granule long.  `mapped` of a segment counts each mapping.
 * The page is charged
 *   - to the owner, until its last mapping that is mapped or evicted is removed (`unmapped` of the segment);
 *   - to the segment in which it was mapped first, once, as long as that segment maps it (`alias_bytes`).
 *
 * A stuck granule may map the page still, so it keeps the page.  If all mappings are stuck, or evicted with their memory,
 * the page counts as stuck memory, once.
 *
 * Invariants, checked by xseg_alias_audit():
 *   ALIAS-1  the counts of a record are those of the granules that refer to it.
 *   ALIAS-2  `alias_bytes` of a segment is the bytes of its mapped or evicted granules with a record, less one granule for
 *            each record that is charged to the segment.
 *
 * Locking: the device memory lock of the device.
 */
#ifndef XSEG_VMM_ALIAS_H
#define XSEG_VMM_ALIAS_H

#include "vmm/segment.h"

/* Granules that refer to a record. */
struct xseg_mapping_counts {
    uint32_t mappings;  /* all */
    uint32_t mapped;    /* in state MAPPED */
    uint32_t evicted;   /* evicted, in any of these states */
    uint32_t fresh;     /* of the evicted ones, those in states FRESH and FRESH_MAPPED */
    uint32_t charged;   /* mapped or evicted ones of the segment that is charged */
    uint32_t committed; /* committed; the layer above counts what happens after the mapping */
};

struct xseg_alias_record {
    uint64_t handle;                    /* 0: evicted, without memory */
    const struct xseg_segment *charged; /* NULL: the page is charged to the owner only */
    uint64_t visit_address;      /* address of the mapping at which a pause copies the contents */
    bool was_exported, is_stuck; /* is_stuck: the page counts as stuck memory */
    struct xseg_mapping_counts count;
    struct xseg_mapping_counts audited; /* of an audit in progress */
};

static inline struct xseg_alias_record *xseg_alias_record(const struct xseg_segment *segment,
                                                          uint32_t granule)
{
    return segment->alias_record == NULL ? NULL : segment->alias_record[granule];
}

/* Whether other granules map the page of a granule, too. */
static inline bool xseg_alias_exists(const struct xseg_segment *segment, uint32_t granule)
{
    const struct xseg_alias_record *page = xseg_alias_record(segment, granule);

    return page != NULL && page->count.mappings > 1;
}

/* The handle of the page that starts at a granule; 0: it has no memory. */
static inline uint64_t xseg_alias_handle(const struct xseg_segment *segment, uint32_t granule)
{
    const struct xseg_alias_record *page = xseg_alias_record(segment, granule);

    return page == NULL ? segment->handle[granule] : page->handle;
}

/*
 * Map the pages of the granules [at, at + count) of `from`, which are live, at the unmapped granules
 * [first, first + count) of a segment, which may be the same one; these are live then.  Both segments have the same owner and pages of one granule.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, or the driver's error, and nothing is mapped; a mapping that the driver does
 *          not remove again is stuck
 * Cost:    one map a page; one set-access (one a page where the driver wants that)
 */
xseg_status xseg_alias_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                           struct xseg_segment *from, uint32_t at);

/* Change the state of a granule with a record, and the counts with it. */
void xseg_alias_set_state(struct xseg_segment *segment, uint32_t granule,
                          enum xseg_page_state state);

/* Set the handle of the page of a granule with a record. */
void xseg_alias_set_handle(struct xseg_segment *segment, uint32_t granule, uint64_t handle);

/*
 * Remove a mapping, which the driver has removed: the granule is unmapped then.  With the last mapping the record is freed.
 *
 * Returns: the handle of a page without mappings, which the caller releases; 0: none
 */
uint64_t xseg_alias_remove(struct xseg_segment *segment, uint32_t granule, bool *was_exported);

/* Free the table of a segment, and the records that only it refers to. */
void xseg_alias_free(struct xseg_segment *segment);

/*
 * Compare the records with the granules, for all segments of an owner: begin with each segment, add each granule, check each
 * segment.
 *
 * alias_bytes: the sum for ALIAS-2
 */
void xseg_alias_audit_begin(const struct xseg_segment *segment);
void xseg_alias_audit_add(const struct xseg_segment *segment, uint32_t granule, bool is_live,
                          uint64_t *alias_bytes);
bool xseg_alias_audit(const struct xseg_segment *segment, struct xseg_violation *violation);

#endif
