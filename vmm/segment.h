/* SPDX-License-Identifier: MIT */
/*
 * Segments: device VA ranges and the physical pages that are mapped into them.
 *
 * An expandable segment reserves a VA range once and maps pages into it on demand, so a segment
 * grows in place, its addresses never change, and no growth copies data.  A *granule* is one unit
 * of the mapping granularity (2 MiB on current devices, or a multiple of that if the segment is
 * reserved with longer granules).  A *page* is one physical page, that is, one handle from
 * cuMemCreate().  A page is mapped to one granule (small page), to as many granules as a full page
 * has (20 MiB in large pools), or to a multiple of these (long page); a granule without a page is
 * unmapped:
 *
 *     base                 full page, 10 granules      two small pages
 *      |                               |                    |   |
 *      [ page ........................ ][ unmapped ....... ][ p ][ p ][ unmapped ...
 *      0   1   2   3   4   5   6   7   8   9   10 ...
 *
 * A *full-page slot* is the position of a full page, a multiple of the full page size from the
 * base.  A map creates a full page where a whole slot is unmapped, or a long page across 2, 4, 8,
 * ... slots if the caller permits longer pages.  Small pages fill the remaining granules of a
 * slot, and whole slots under memory pressure.  A page is never divided: it is mapped and unmapped
 * as a whole.  A classic segment is one cuMemAlloc() allocation, or memory from a callback of the
 * user.  A classic segment has no pages and is mapped until it is destroyed.
 *
 * Tables with one element per granule describe the pages.  `handle` and `length` are set at the
 * first granule of a page and 0 at its other granules; `state` is equal at all granules of a page.
 * The tables are demand-zero memory, so a segment with the size of the device commits little host
 * memory.  A granule without a page is in state UNMAPPED, a usable one in state MAPPED.  State
 * UNKNOWN means that a driver call failed and could not be undone: the page is mapped without known
 * access rights, or may be mapped.  The next map reuses such a page, and the next trim tries to
 * unmap it.  The other states belong to evicted pages of a paused pool (evicted.h).
 *
 * A granule has a generation, which is set to a new value whenever the granule gets a page or loses
 * its page.  Callers compare generations to detect remapping.  A page with a retain count is
 * neither unmapped, nor evicted, nor remapped; the callers of xseg_segment_unmap() check that.  A
 * page that was ever exported may be mapped in another process, so after an unmap the page is
 * released to the driver and never enters the page cache.
 *
 * A failed map or retain has no effect, except for pages in state UNKNOWN.  A failed unmap may have
 * unmapped leading pages; it reports their number.
 *
 * Invariants between calls, which xseg_segment_audit() checks under these tags:
 *   SEG-1  base is a multiple of the granularity, and the VA range does not wrap around.
 *   SEG-2  `mapped` and `unknown` are the bytes of the granules in those states.  Memory of an
 *          evicted page counts as unknown; that of an aliased page counts by its record (alias.h).
 *   SEG-3  reserved_bytes is at least the size of all granules.
 *   SEG-4  a page has its length at its first granule, 0 at the others, and one state.
 *   SEG-5  retained granules are mapped, and counted for each retainer.
 *   SEG-6  exported granules are whole pages of an exportable segment.
 *   SEG-7  mapped pages up to the export generation are exported.
 *
 * Locking: the device memory lock.  `mapped`, `generation` and the pointers of tables that are
 * allocated later may be read without the lock.
 */
#ifndef XSEG_VMM_SEGMENT_H
#define XSEG_VMM_SEGMENT_H

#include "src/base/align.h"
#include "src/base/check.h"
#include "vmm/page_cache.h"
#include "xseg/pool.h"

enum xseg_page_state {
    XSEG_PAGE_UNMAPPED,
    XSEG_PAGE_UNKNOWN,
    XSEG_PAGE_MAPPED,
    XSEG_PAGE_EVICTED,        /* unmapped by a pause, with or without its memory */
    XSEG_PAGE_EVICTED_MAPPED, /* mapped again by a resume, with its previous memory */
    XSEG_PAGE_FRESH,          /* unmapped, with new memory from a resume */
    XSEG_PAGE_FRESH_MAPPED    /* mapped again by a resume, with new memory */
};

/* Whether a granule in a state is mapped, or was evicted and can be mapped again. */
static inline bool xseg_page_state_is_present(unsigned state)
{
    return state >= XSEG_PAGE_MAPPED;
}

/* Owners of references to pages. */
enum xseg_retainer {
    XSEG_RETAIN_PIN,          /* xseg_pin() */
    XSEG_RETAIN_REGISTRATION, /* a pinned descriptor, or a registration */
    XSEG_RETAIN_EXPORT,
    XSEG_RETAINERS
};

/* References of one retainer.  Each retainer has separate counts, so a release by one retainer
 * cannot drop a reference of another one. */
struct xseg_retain_counts {
    /* [granules], 1 in a classic segment; NULL before the first retain. */
    _Atomic(uint32_t *) count;
    uint32_t granules; /* granules with a count above 0 */
};

/* Bytes of a granule in the tables, which are one allocation. */
#define XSEG_SEGMENT_TABLES_BYTES (3 * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint8_t))

struct xseg_alias_record;

struct xseg_segment {
    struct xseg_context *context;
    struct xseg_page_cache *page_cache; /* of the device */
    uint64_t base;
    uint64_t bytes;                 /* of the usable VA range */
    uint64_t reserved_bytes;        /* of the reservation; 0 in a classic segment */
    uint64_t page_bytes;            /* of a full page; 0 in a classic segment */
    uint64_t granule_bytes;         /* the driver's granularity, or a multiple of it */
    uint32_t granules;              /* 0 in a classic segment */
    atomic_uint_fast64_t mapped;    /* bytes that the device can use */
    uint64_t unknown;               /* bytes of pages, and of aliased granules, in state UNKNOWN */
    const void *owner;              /* owner of the pages, set by the caller; NULL: none */
    unsigned properties;            /* of all pages (enum xseg_page_property), set by the caller */
    struct xseg_pool_memory memory; /* callbacks that allocated the segment; else NULL members */
    xseg_stream stream;             /* argument of the callbacks */
    uint64_t *handle;               /* [granules]; see xseg_alias_handle() */
    uint32_t *length;               /* [granules], in granules */
    uint8_t *state;                 /* [granules], enum xseg_page_state */
    uint64_t *idle_since; /* [granules], 1 in a classic segment; set by the caller, 0 at first */
    uint64_t classic_idle_since;      /* target of `idle_since` in a classic segment */
    atomic_uint_fast64_t *generation; /* [granules], 1 in a classic segment */
    atomic_uint_fast64_t id;          /* also the generation of a classic segment */
    struct xseg_retain_counts retain_counts[XSEG_RETAINERS];
    /* [granules]: whether the page that starts there was ever exported; NULL before the first
     * export. */
    _Atomic(uint8_t *) was_exported;
    /* [granules]: records of pages that are or were aliased (alias.h); NULL before the first
     * alias. */
    _Atomic(struct xseg_alias_record **) alias_record;
    /* The latest generation of the pages that xseg_segment_export_mapped() retains; 0: none. */
    uint64_t export_generation;
    uint32_t importers;      /* connected importers of these pages, counted by the caller */
    uint64_t alias_bytes;    /* mapped or evicted bytes that are charged elsewhere (alias.h) */
    uint64_t unmapped_bytes; /* sum over all pages that lost their last mapping in this segment */
    uint64_t release_count;  /* calls that released references */
};

static inline bool xseg_segment_is_expandable(const struct xseg_segment *segment)
{
    return segment->page_bytes != 0;
}

/* --- Creation and destruction. --- */

/* Alignment and size unit of most segments, so that one flat table finds a segment by address. */
#define XSEG_SEGMENT_ALIGNMENT XSEG_GIB

/* Parameters of a reservation. */
struct xseg_segment_reservation {
    uint64_t bytes;         /* multiple of page_bytes */
    uint64_t page_bytes;    /* of a full page, multiple of the granularity */
    uint64_t tail_bytes;    /* reserved after the usable range and never mapped */
    uint64_t alignment;     /* of the base; power of two, multiple of the granularity */
    uint64_t granule_bytes; /* multiple of the granularity, divides page_bytes; 0: granularity */
};

/*
 * Reserve the VA range of an expandable segment; nothing is mapped.
 *
 * xseg_segment_reserve() aligns and pads the range to XSEG_SEGMENT_ALIGNMENT.
 * Returns: XSEG_OK, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 * Cost:    one reserve
 */
xseg_status xseg_segment_reserve(struct xseg_segment *segment, struct xseg_context *context,
                                 struct xseg_page_cache *page_cache, uint64_t bytes,
                                 uint64_t page_bytes);
xseg_status xseg_segment_reserve_range(struct xseg_segment *segment, struct xseg_context *context,
                                       struct xseg_page_cache *page_cache,
                                       const struct xseg_segment_reservation *reservation);

/*
 * Allocate a classic segment.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one cuMemAlloc
 */
xseg_status xseg_segment_allocate(struct xseg_segment *segment, struct xseg_context *context,
                                  struct xseg_page_cache *page_cache, uint64_t bytes);

/*
 * Allocate a classic segment from callbacks of the user.
 *
 * memory: copied.  The callbacks run in relaxed capture mode, now and when the segment is
 *         destroyed.
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY if the callback returned NULL; XSEG_ERR_ARGUMENT if its
 *          address is not 512-byte aligned.  XSEG_ERR_DRIVER means that no callback ran.
 * Cost:    two changes of the capture mode
 */
xseg_status xseg_segment_allocate_from_callback(struct xseg_segment *segment,
                                                struct xseg_context *context,
                                                struct xseg_page_cache *page_cache, uint64_t bytes,
                                                const struct xseg_pool_memory *memory,
                                                xseg_stream stream);

/*
 * Destroy a segment and release its VA range or allocation to the driver.  If the driver fails, the
 * range or allocation becomes unreleased (unreleased.h).
 *
 * An expandable segment must not have pages in states MAPPED and UNKNOWN.
 * Returns: XSEG_OK, or the driver's error; the segment is destroyed in either case
 */
xseg_status xseg_segment_destroy(struct xseg_segment *segment);

/* Destroy a segment of a lost device: free its host memory, and pass memory from a callback to the
 * user's free callback. */
void xseg_segment_abandon(struct xseg_segment *segment);

/* --- Mapping. --- */

/* The pages that a map uses. */
struct xseg_page_source {
    bool use_small;           /* small pages, and full pages only from the page cache */
    uint64_t max_page_bytes;  /* of long pages; below two full pages: full pages only */
    const void *prepared_for; /* as in struct xseg_page_filter */
};

/*
 * Map pages into the unmapped granules of [first, first + count).  Granules in state UNKNOWN keep
 * their pages; no granule may be in another state.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY; XSEG_ERR_DRIVER
 * Cost:    one map per page, one create per page that is not in the page cache, one set-access
 *          (one per page if the driver does not batch)
 */
xseg_status xseg_segment_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                             const struct xseg_page_source *source);

/*
 * Return the bytes that xseg_segment_map() would acquire from the page cache.
 *
 * full, small: bytes of cached pages of either size; decreased by the bytes used.  Long pages do
 *              not count
 */
uint64_t xseg_segment_bytes_from_page_cache(const struct xseg_segment *segment, uint32_t first,
                                            uint32_t count, const struct xseg_page_source *source,
                                            uint64_t *full, uint64_t *small);

/*
 * Unmap the granules [first, first + count): whole pages, all mapped or evicted, none retained.
 *
 * keep: move the pages to the page cache instead of releasing them.
 * processed: number of leading granules without a usable page.  They are unmapped, or in state
 *            UNKNOWN if the driver failed and cannot be queried.  The other granules are unchanged.
 * Returns: XSEG_OK if all pages were unmapped; else the driver's first error.
 * Cost:    one unmap (one per page if the driver does not batch); one release per page unless kept.
 */
xseg_status xseg_segment_unmap(struct xseg_segment *segment, uint32_t first, uint32_t count,
                               bool keep, uint32_t *processed);

/* Set the state of mapped pages to UNKNOWN, after a failed attempt to unmap them again. */
void xseg_segment_mark_unknown(struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Unmap the pages in state UNKNOWN that start in [first, first + count).  Returns the first error;
 * pages that are not unmapped keep their state. */
xseg_status xseg_segment_retry_unknown(struct xseg_segment *segment, uint32_t first,
                                       uint32_t count);

/*
 * Grant or revoke a peer's read and write access to all mapped pages of an expandable segment.
 * Pages that are mapped later are accessible to the peers of the context (context.h).
 *
 * is_allowed: false also revokes access that only some pages grant
 * Returns: XSEG_OK, or the driver's error.  A grant stops at the first error; a revocation
 *          continues and returns the last one
 * Cost:    one set-access per run of mapped pages (one per page if the driver does not batch)
 */
xseg_status xseg_segment_set_peer_access(struct xseg_segment *segment,
                                         const struct xseg_context *peer, bool is_allowed);

/* --- Pages and states. --- */

/* Find the whole pages inside the bytes [begin, end), all of which are mapped: set *first to their
 * first granule, and return the number of their granules, 0 if there are none. */
uint32_t xseg_segment_pages_inside(const struct xseg_segment *segment, uint64_t begin, uint64_t end,
                                   uint32_t *first);

/* Find the pages that overlap the bytes [begin, end), all of which are mapped: set *first to their
 * first granule, and return the number of their granules. */
uint32_t xseg_segment_pages_overlapping(const struct xseg_segment *segment, uint64_t begin,
                                        uint64_t end, uint32_t *first);

/* Return the end of the page if a granule is inside a page but not its first granule; else return
 * the granule. */
uint32_t xseg_segment_page_end(const struct xseg_segment *segment, uint32_t granule);

static inline bool xseg_segment_is_mapped(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->state[granule] == XSEG_PAGE_MAPPED;
}

/* Whether the page of a granule is evicted, or about to be mapped again. */
static inline bool xseg_segment_is_evicted(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->state[granule] >= XSEG_PAGE_EVICTED;
}

static inline bool xseg_segment_has_property(const struct xseg_segment *segment,
                                             enum xseg_page_property property)
{
    return (segment->properties & (unsigned)property) != 0;
}

/* Return the ID of a segment, which is unique on its device and differs from all generations of
 * expandable segments. */
static inline uint64_t xseg_segment_id(const struct xseg_segment *segment)
{
    return atomic_load_explicit(&segment->id, memory_order_relaxed);
}

/* Return the latest generation of the bytes [begin, end). */
uint64_t xseg_segment_generation(const struct xseg_segment *segment, uint64_t begin, uint64_t end);

/* --- Retain counts.  The granule of a classic segment is 0. --- */

/*
 * Retain the granules of the bytes [begin, end), all of which are mapped.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, XSEG_ERR_BUSY (a count is at its maximum) without effect
 */
xseg_status xseg_segment_retain(struct xseg_segment *segment, enum xseg_retainer retainer,
                                uint64_t begin, uint64_t end);

/* Release one reference to each of these granules.  Returns false without effect if the retainer
 * has no reference to one of them. */
bool xseg_segment_release(struct xseg_segment *segment, enum xseg_retainer retainer, uint64_t begin,
                          uint64_t end);

/*
 * Retain whole mapped pages of an exportable segment for an export, and release them.  The caller
 * requests the file descriptors from the driver.
 *
 * Returns: as xseg_segment_retain()
 */
xseg_status xseg_segment_export(struct xseg_segment *segment, uint32_t first, uint32_t count);
void xseg_segment_unexport(struct xseg_segment *segment, uint32_t first, uint32_t count);

/*
 * Retain all mapped pages of an exportable segment, as xseg_segment_export() does, except those
 * that an earlier call retains.
 *
 * A retained page keeps its generation, and pages that are mapped later have later generations.  So
 * `export_generation` identifies the retained pages: the mapped pages up to this generation.  For
 * the same reason each earlier value identifies the pages that were retained at that time.
 *
 * Returns: as xseg_segment_retain()
 */
xseg_status xseg_segment_export_mapped(struct xseg_segment *segment);

/* Release all pages that xseg_segment_export_mapped() retains. */
void xseg_segment_unexport_mapped(struct xseg_segment *segment);

/* Set *at to the first page from granule *at on that is mapped and not later than a generation.
 * Returns false if there is none before granule `end`. */
bool xseg_segment_find_exported(const struct xseg_segment *segment, uint32_t *at, uint32_t end,
                                uint64_t generation);

/* Whether any of `count` granules is retained by a pin or a registration; by an export; by any
 * retainer. */
bool xseg_segment_is_pinned(const struct xseg_segment *segment, uint32_t first, uint32_t count);
bool xseg_segment_is_exported(const struct xseg_segment *segment, uint32_t first, uint32_t count);
bool xseg_segment_is_retained(const struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Whether any page of the segment is retained. */
static inline bool xseg_segment_has_retained(const struct xseg_segment *segment)
{
    uint32_t granules = 0;

    for (int retainer = 0; retainer < XSEG_RETAINERS; retainer++)
        granules |= segment->retain_counts[retainer].granules;
    return granules != 0;
}

struct xseg_segment_retained {
    uint64_t pinned;   /* bytes of pages with a pin or a registration */
    uint64_t exported; /* bytes of pages with exports only */
};

/* Sum up the retained pages that start in [first, first + count); sum up all retained pages.  A
 * classic segment counts all its bytes or none. */
struct xseg_segment_retained xseg_segment_retained_bytes(const struct xseg_segment *segment,
                                                         uint32_t first, uint32_t count);
struct xseg_segment_retained xseg_segment_all_retained_bytes(const struct xseg_segment *segment);

/* Sum the pages that only xseg_segment_export_mapped() retains. */
uint64_t xseg_segment_mapped_export_bytes(const struct xseg_segment *segment);

/* Return the host memory of the segment's tables. */
size_t xseg_segment_host_bytes(const struct xseg_segment *segment);

bool xseg_segment_audit(const struct xseg_segment *segment, struct xseg_violation *violation);

#endif
