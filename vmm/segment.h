/* SPDX-License-Identifier: MIT */
/*
 * A segment: device addresses and the memory behind them.
 *
 * An expandable segment is a reserved range of addresses.  It is cut into *granules*, the smallest pieces
 * that are mapped (2 MiB, the driver's granularity, unless the segment is made with longer ones).  A *page* is one piece of physical memory, mapped to one granule or
 * to as many as make a full page (20 MiB in large pools); a granule that is not mapped is a hole:
 *
 *     base                 full page, 10 granules        two small ones
 *      |                               |                      |   |
 *      [ page ........................ ][ hole .. ][ hole .. ][ p ][ p ][ hole ...
 *      0   1   2   3   4   5   6   7   8   9   10 ...
 *
 * A *frame* is the place of a full page, counted from the base.  Growth maps a full page where a whole frame is
 * a hole, or long pages over 2, 4, 8, ... frames where those are wanted.  Small pages fill the rest of a frame,
 * and whole frames when memory is short.  A page is never split: it is mapped and unmapped in one piece.
 *
 * Addresses never move, so growing a segment never copies.  A classic segment is one cuMemAlloc: it
 * has no pages, and is mapped whole until it is freed.
 *
 * A granule is in one of three states.  HOLE: no memory.  MAPPED: memory that the device may use.
 * STUCK: mapped without known access rights, because a growth failed and could not be undone; or perhaps not
 * mapped, because an unmap failed and the driver did not say how far it came.  The next growth uses a stuck
 * page, the next trim tries again to unmap it.  While its pool is paused, a page is evicted: AWAY, or in one of
 * the states on its way back (evicted.h).
 *
 * Each granule has a generation: a number that is drawn anew whenever the granule gets other memory, or
 * loses its memory.  A page that is *retained* is neither unmapped nor evicted; callers that unmap pages must check
 * that.  A page that has ever been exported may still be mapped
 * elsewhere, so after an unmap it goes back to the driver and is never kept as idle.
 *
 * Every operation is a transaction: after a failure the segment is as it was, stuck pages aside.
 *
 * Invariants, between calls; xseg_segment_audit() checks each under its tag:
 *   SEG-1  base is a multiple of the granularity, and the addresses do not wrap.
 *   SEG-2  `mapped` and `stuck` are the bytes of the granules in those states; memory of an evicted page
 *          counts as stuck, that of an aliased page by its record (alias.h).
 *   SEG-3  reserved_bytes is at least the bytes of all granules.
 *   SEG-4  a page has its length at its first granule and 0 at the others, and one state.
 *   SEG-5  retained granules are mapped, and counted for each retainer.
 *   SEG-6  exported granules are whole pages of an exportable segment.
 *
 * Locking: the device memory lock of the device; `mapped` may be read without it.
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
    XSEG_PAGE_EVICTED,        /* evicted and not mapped, with its memory or without */
    XSEG_PAGE_EVICTED_MAPPED, /* mapped on its way back, with its memory of before */
    XSEG_PAGE_FRESH,          /* has new memory, not mapped */
    XSEG_PAGE_FRESH_MAPPED    /* mapped on its way back, with new memory */
};

/* Whether a granule in a state is mapped, or was evicted and will be mapped again. */
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

/* References of one retainer.  Each retainer has its own counts, so that none releases a reference of another one. */
struct xseg_retain_counts {
    /* [granules], or one of a classic segment; NULL before the first reference.  The pointer may be read without the lock. */
    _Atomic(uint32_t *) count;
    uint32_t granules; /* with a count that is not 0 */
};

/* Bytes of the tables of a granule, which are one piece of host memory: a segment that could hold the whole
 * device touches little of it. */
#define XSEG_SEGMENT_TABLES_BYTES (3 * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint8_t))

struct xseg_alias_record;

struct xseg_segment {
    struct xseg_context *context;
    struct xseg_page_cache *page_cache; /* the idle pages of the device */
    uint64_t base;
    uint64_t bytes;              /* usable addresses */
    uint64_t reserved_bytes;     /* addresses of the reservation; 0 for a classic segment */
    uint64_t page_bytes;         /* of a full page; 0 for a classic segment */
    uint64_t granule_bytes;      /* the driver's granularity, or a multiple of it */
    uint32_t granules;           /* 0 for a classic segment */
    atomic_uint_fast64_t mapped; /* bytes the device may use */
    uint64_t unknown;            /* bytes in stuck pages, and of stuck granules of aliased pages */
    const void *owner;           /* owner of the pages, set by the floor above; NULL: none */
    unsigned properties;         /* of all pages; set by the floor above before the first map */
    struct xseg_pool_memory memory; /* functions that gave it; NULL: the driver did */
    xseg_stream stream;             /* for which the functions were asked */
    uint64_t *handle; /* [granules], of the page that starts there; see xseg_alias_handle() */
    uint32_t *length; /* [granules], of the page that starts there; 0 elsewhere */
    uint8_t *state;   /* [granules], enum xseg_page_state */
    /* [granules], or one of a classic segment: a number of the floor above (idle.h); 0 at first. */
    uint64_t *idle_since;
    uint64_t classic_idle_since;      /* target of `idle_since` in a classic segment */
    atomic_uint_fast64_t *generation; /* [granules], or one; may be read without the lock */
    atomic_uint_fast64_t id;          /* of the segment; also the generation of a classic segment */
    struct xseg_retain_counts retain_counts[XSEG_RETAINERS];
    /* [granules]: whether the page that starts there was ever exported; NULL before the first export.  The pointer may be
     * read without the lock. */
    _Atomic(uint8_t *) was_exported;
    /* [granules]: the records of pages that are or were aliased (alias.h); NULL before the first alias.  The pointer may be
     * read without the lock. */
    _Atomic(struct xseg_alias_record **) alias_record;
    uint64_t
        alias_bytes; /* bytes of mapped or evicted granules that are not charged to the segment (alias.h) */
    uint64_t unmapped_bytes; /* bytes of all pages that lost their last mapping in this segment */
    uint64_t release_count;  /* released references */
};

static inline bool xseg_segment_is_expandable(const struct xseg_segment *segment)
{
    return segment->page_bytes != 0;
}

static inline struct xseg_page_kind xseg_segment_page_kind(const struct xseg_segment *segment,
                                                           uint64_t page_bytes)
{
    return (struct xseg_page_kind){page_bytes, segment->properties, NULL};
}

/*
 * Reserve the addresses of an expandable segment; nothing is mapped.
 *
 * bytes:      multiple of page_bytes
 * page_bytes: multiple of the granularity
 * Returns: XSEG_OK, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 * Cost:    one reserve
 */
xseg_status xseg_segment_reserve(struct xseg_segment *segment, struct xseg_context *context,
                                 struct xseg_page_cache *page_cache, uint64_t bytes,
                                 uint64_t page_bytes);

/* Alignment and size unit of most segments, so that one flat table finds the segment of an address. */
#define XSEG_SEGMENT_ALIGNMENT XSEG_GIB

/* The addresses of a segment. */
struct xseg_segment_reservation {
    uint64_t bytes, page_bytes; /* as for xseg_segment_reserve() */
    uint64_t tail_bytes;        /* bytes behind them that are reserved, and never mapped */
    uint64_t alignment; /* of the first address; a power of two, multiple of the granularity */
    uint64_t
        granule_bytes; /* multiple of the granularity, divides page_bytes; 0: the granularity */
};

/* Reserve the addresses of a segment: exactly those.  Returns, cost: as xseg_segment_reserve() */
xseg_status xseg_segment_reserve_range(struct xseg_segment *segment, struct xseg_context *context,
                                       struct xseg_page_cache *page_cache,
                                       const struct xseg_segment_reservation *wanted);

/*
 * Allocate a classic segment.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one cuMemAlloc
 */
xseg_status xseg_segment_allocate(struct xseg_segment *segment, struct xseg_context *context,
                                  struct xseg_page_cache *page_cache, uint64_t bytes);

/*
 * Get a classic segment from a user's own functions, which are copied.  They are called in relaxed capture mode, then
 * and when the segment ends.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY if they gave none; XSEG_ERR_ARGUMENT if the memory is not aligned to
 *          512 bytes, and it is given back; XSEG_ERR_DRIVER: they were not called
 * Cost:    two calls that change the mode
 */
xseg_status xseg_segment_allocate_from_callback(struct xseg_segment *segment,
                                                struct xseg_context *context,
                                                struct xseg_page_cache *page_cache, uint64_t bytes,
                                                const struct xseg_pool_memory *memory,
                                                xseg_stream stream);

/*
 * End a segment: addresses go back to the driver, or become leftovers.
 *
 * An expandable segment must have no mapped and no stuck page.
 * Returns: XSEG_OK, or the driver's error; the segment is gone in any case
 */
xseg_status xseg_segment_destroy(struct xseg_segment *segment);

/* End a segment of a lost device: free its host memory, and give memory of a user's function back to it. */
void xseg_segment_abandon(struct xseg_segment *segment);

/* The pages with which a segment grows. */
struct xseg_page_source {
    bool use_small; /* small pages, and full ones that are idle already */
    uint64_t
        max_page_bytes; /* bytes of the longest page; beyond a full page, doubles of it are tried */
    const void *prepared_for; /* as in struct xseg_page_filter */
};

/*
 * Back the granules [first, first + count) with memory.  None of them may be mapped.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY; XSEG_ERR_DRIVER
 * Cost:    one map a page, one create for each that is not idle, one set-access (one a page where
 *          the driver wants that)
 */
xseg_status xseg_segment_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                             const struct xseg_page_source *source);

/*
 * How many of the bytes that xseg_segment_map() would map can come from idle pages.
 *
 * full, small: bytes of the idle pages of either size; bytes that are used are taken off.  Long pages are not
 *              counted
 */
uint64_t xseg_segment_covered_by_idle(const struct xseg_segment *segment, uint32_t first,
                                      uint32_t count, const struct xseg_page_source *source,
                                      uint64_t *full, uint64_t *small);

/*
 * Take the memory of the granules [first, first + count) away, which are whole pages, all mapped or evicted, and
 * not held.
 *
 * keep:    the pages become idle; else they are released
 * done:    how many granules, from the first on, have no usable memory any more: they are holes, or stuck
 *          where the driver did not say what became of them; the others are mapped as before
 * Returns: XSEG_OK when all granules are done; else the driver's error
 * Cost:    one unmap (one a page where the driver wants that); one release a page unless kept
 */
xseg_status xseg_segment_unmap(struct xseg_segment *segment, uint32_t first, uint32_t count,
                               bool keep, uint32_t *done);

/* Find the whole pages inside the bytes [begin, end) of the segment, all of which are mapped: sets *first to their
 * first granule, and returns how many granules they have; 0 if there is none. */
uint32_t xseg_segment_pages_inside(const struct xseg_segment *segment, uint64_t begin, uint64_t end,
                                   uint32_t *first);

/* The end of the page in whose middle a granule lies; the granule itself if a page starts there. */
uint32_t xseg_segment_page_end(const struct xseg_segment *segment, uint32_t granule);

static inline bool xseg_segment_is_mapped(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->state[granule] == XSEG_PAGE_MAPPED;
}

/* Whether a granule belongs to a page that is evicted, or on its way back. */
static inline bool xseg_segment_is_evicted(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->state[granule] >= XSEG_PAGE_EVICTED;
}

static inline bool xseg_segment_has_property(const struct xseg_segment *segment,
                                             enum xseg_page_property property)
{
    return (segment->properties & (unsigned)property) != 0;
}

/* The number of a segment, which is unique on its device, also among generations of memory in expandable segments. */
static inline uint64_t xseg_segment_id(const struct xseg_segment *segment)
{
    return atomic_load_explicit(&segment->id, memory_order_relaxed);
}

/* The latest generation of the bytes [begin, end) of the segment. */
uint64_t xseg_segment_generation(const struct xseg_segment *segment, uint64_t begin, uint64_t end);

/* --- Retain counts: a retained page is neither unmapped, nor evicted, nor given to another segment. --- */

/*
 * Retain the granules of the bytes [begin, end), all of which are mapped.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, XSEG_ERR_BUSY (a count is at its maximum), and nothing has changed
 */
xseg_status xseg_segment_retain(struct xseg_segment *segment, enum xseg_retainer by, uint64_t begin,
                                uint64_t end);

/* Release one reference to each of these granules.  False if the retainer has none to one of them: then nothing has changed. */
bool xseg_segment_release(struct xseg_segment *segment, enum xseg_retainer by, uint64_t begin,
                          uint64_t end);

/* Whether one of `count` granules is retained by a pin, a pinned descriptor or a registration; the granule of a classic
 * segment is 0. */
bool xseg_segment_is_pinned(const struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Find the pages that the bytes [begin, end) lie on, all of which are mapped: sets *first to their first granule, and
 * returns how many granules they have. */
uint32_t xseg_segment_pages_overlapping(const struct xseg_segment *segment, uint64_t begin,
                                        uint64_t end, uint32_t *first);

/*
 * Export whole pages, all mapped, of a segment that is exportable: they are held until as many calls of
 * xseg_segment_unexport().  The caller asks the driver for the file descriptors that other processes need.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, XSEG_ERR_BUSY (exported too often), and nothing has changed
 */
xseg_status xseg_segment_export(struct xseg_segment *segment, uint32_t first, uint32_t count);
void xseg_segment_unexport(struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Whether one of `count` granules is exported. */
bool xseg_segment_is_exported(const struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Whether any page of the segment is held. */
static inline bool xseg_segment_has_retained(const struct xseg_segment *segment)
{
    uint32_t granules = 0;

    for (int by = 0; by < XSEG_RETAINERS; by++)
        granules |= segment->retain_counts[by].granules;
    return granules != 0;
}

/* Whether one of `count` granules is held. */
bool xseg_segment_is_retained(const struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Bytes of pages that are held: of pinned ones, and of exported ones that are not pinned. */
struct xseg_segment_retained {
    uint64_t pinned, exported;
};

/* Held bytes of the pages that start in [first, first + count); of a classic segment all bytes or none. */
struct xseg_segment_retained xseg_segment_retained_bytes(const struct xseg_segment *segment,
                                                         uint32_t first, uint32_t count);

/* Held bytes of all pages. */
struct xseg_segment_retained xseg_segment_all_retained_bytes(const struct xseg_segment *segment);

/* Mark mapped pages as stuck: they were to be unmapped again after a failure, and the driver has refused. */
void xseg_segment_mark_unknown(struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Try again to unmap the stuck pages that start in [first, first + count), or all.  Returns the first error; pages that are
 * refused stay stuck. */
xseg_status xseg_segment_retry_unknown_run(struct xseg_segment *segment, uint32_t first,
                                           uint32_t count);
xseg_status xseg_segment_retry_unknown(struct xseg_segment *segment);

/* Host bytes of the segment's tables. */
size_t xseg_segment_host_bytes(const struct xseg_segment *segment);

bool xseg_segment_audit(const struct xseg_segment *segment, struct xseg_violation *violation);

#endif
