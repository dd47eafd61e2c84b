/* SPDX-License-Identifier: MIT */
/*
 * A segment: device addresses and the memory behind them.
 *
 * An expandable segment is a reserved range of addresses.  It is cut into *granules*, the smallest
 * that the driver maps (2 MiB).  A *page* is one piece of physical memory, mapped to one granule or
 * to as many as make a full page (20 MiB in large pools); what is not mapped is a hole:
 *
 *     base                 full page, 10 granules        two small ones
 *      |                               |                      |   |
 *      [ page ........................ ][ hole .. ][ hole .. ][ p ][ p ][ hole ...
 *      0   1   2   3   4   5   6   7   8   9   10 ...
 *
 * Growth maps full pages, where a whole frame (full pages counted from the base) is a hole, or long
 * ones over 2, 4, 8, ... frames where those are wanted; small pages fill what is left of a frame, and
 * all of it when memory is short.  A page is never split:
 * what was mapped in one piece goes in one piece.
 *
 * Addresses never move, so growing a segment never copies.  A classic segment is one cuMemAlloc: it
 * has no pages, and is mapped whole until it is freed.
 *
 * A granule is in one of three states.  HOLE: no memory.  MAPPED: memory that the device may use.
 * STUCK: mapped, without known access rights, because a growth failed and could not be undone, or
 * perhaps not mapped, because an unmap failed and the driver did not say how far it came; the next
 * growth uses it, the next trim tries again to unmap it.  While its pool is paused, a page is
 * AWAY instead, or in one of the states on its way back (evicted.h).
 *
 * Each granule has a generation: a number that is drawn anew whenever other memory, or none, comes to
 * lie beneath it.  A page that is *held*, because it is pinned or exported, is neither unmapped nor
 * paused; it is up to whoever takes pages away to ask.  One that has ever been exported may still be
 * mapped elsewhere, so once it is unmapped it goes to the driver and nowhere else.
 *
 * Every operation is a transaction: after a failure the segment is as it was, stuck pages aside.
 *
 * Invariants, between calls; xseg_segment_audit() checks each under its tag:
 *   SEG-1  base is a multiple of the granularity, and the addresses do not wrap.
 *   SEG-2  mapped and stuck are the bytes of the granules in those states; memory of a page that is
 *          away counts as stuck.
 *   SEG-3  reserved_bytes is at least that of all granules.
 *   SEG-4  a page has its length at its first granule and 0 at the others, and one state.
 *   SEG-5  pinned granules are mapped, and `pinned` counts them.
 *   SEG-6  the same of exported ones; these are whole pages of a segment that is exportable.
 *
 * Locking: GROWTH of the device; `mapped` may be read without it.
 */
#ifndef XSEG_VMM_SEGMENT_H
#define XSEG_VMM_SEGMENT_H

#include "src/base/check.h"
#include "vmm/page.h"
#include "xseg/pool.h"

enum xseg_page_state {
    XSEG_PAGE_HOLE,
    XSEG_PAGE_STUCK,
    XSEG_PAGE_MAPPED,
    XSEG_PAGE_AWAY,        /* not mapped; with its memory still, or without */
    XSEG_PAGE_AWAY_MAPPED, /* mapped on its way back, with its memory of before */
    XSEG_PAGE_FRESH,       /* has new memory, not mapped */
    XSEG_PAGE_FRESH_MAPPED /* mapped on its way back, with new memory */
};

struct xseg_segment {
    struct xseg_context *context;
    struct xseg_pages *pages; /* where physical memory comes from and goes to */
    uint64_t base;
    uint64_t bytes;              /* usable addresses */
    uint64_t reserved_bytes;     /* of the reservation; 0 for a classic segment */
    uint64_t page_bytes;         /* of a full page; 0 for a classic segment */
    uint64_t granule_bytes;      /* of the driver */
    uint32_t granules;           /* 0 for a classic segment */
    atomic_uint_fast64_t mapped; /* bytes the device may use */
    uint64_t stuck;              /* bytes in stuck pages */
    const void *owner;           /* whose its pages are: the owner's to set; NULL: nobody's */
    bool is_exportable;          /* of which kind its pages are: as `owner`, before the first one */
    struct xseg_pool_memory memory; /* who gave it, if not the driver; else NULL functions */
    xseg_stream stream;             /* that it was asked for */
    uint64_t *handle;               /* [granules], of the pages that start there */
    uint32_t *length;               /* [granules], of the page that starts there; 0 elsewhere */
    uint8_t *state;                 /* [granules], enum xseg_page_state */
    /* [granules], or one of a classic segment: the owner's, who says what it means; 0 at first. */
    uint64_t *since;
    uint64_t since_whole;             /* where `since` of a classic segment points */
    atomic_uint_fast64_t *generation; /* as `since`; see above.  May be read without the lock */
    atomic_uint_fast64_t generation_whole;
    /* As `since`: how often each is pinned; NULL before the first pin, which may be read without. */
    _Atomic(uint32_t *) pins;
    uint32_t pinned; /* how many of them are */
    /* The same of exports. */
    _Atomic(uint32_t *) exports;
    uint32_t exported;
    uint8_t *shown; /* behind `exports`: whether the page that starts there was ever exported */
};

static inline bool xseg_segment_is_expandable(const struct xseg_segment *segment)
{
    return segment->page_bytes != 0;
}

static inline struct xseg_page_kind xseg_segment_kind(const struct xseg_segment *segment,
                                                      uint64_t page_bytes)
{
    return (struct xseg_page_kind){page_bytes, segment->is_exportable};
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
                                 struct xseg_pages *pages, uint64_t bytes, uint64_t page_bytes);

/*
 * The same with addresses of just that many bytes, and a page behind them that is never mapped.
 *
 * alignment: of the first address; a power of two, multiple of page_bytes
 */
xseg_status xseg_segment_reserve_guarded(struct xseg_segment *segment, struct xseg_context *context,
                                         struct xseg_pages *pages, uint64_t bytes,
                                         uint64_t page_bytes, uint64_t alignment);

/*
 * Allocate a classic segment.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one cuMemAlloc
 */
xseg_status xseg_segment_allocate(struct xseg_segment *segment, struct xseg_context *context,
                                  struct xseg_pages *pages, uint64_t bytes);

/*
 * Get a classic segment from a user's own functions, which are copied.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY if they gave none; XSEG_ERR_ARGUMENT if it is not aligned to
 *          512 bytes, and it is given back
 * Cost:    no driver call of ours
 */
xseg_status xseg_segment_borrow(struct xseg_segment *segment, struct xseg_context *context,
                                struct xseg_pages *pages, uint64_t bytes,
                                const struct xseg_pool_memory *memory, xseg_stream stream);

/*
 * End a segment: addresses go back to the driver, or become leftovers.
 *
 * An expandable segment must have no mapped and no stuck page.
 * Returns: XSEG_OK, or the driver's error; the segment is gone in any case
 */
xseg_status xseg_segment_end(struct xseg_segment *segment);

/* End a segment of a lost device: only its host memory goes, and what a user's function gave. */
void xseg_segment_abandon(struct xseg_segment *segment);

/* With which pages a segment grows. */
struct xseg_supply {
    bool small;       /* small pages only, but for full ones that are idle already */
    uint64_t longest; /* bytes of the longest page: longer than a full one where its doubles fit */
    /* Which idle pages it may have.  With XSEG_PAGE_OWN_FIRST a run with another's page in it is
     * cleared before it can be used, by work on `stream`. */
    enum xseg_page_choice choice;
    xseg_stream stream;
    uint64_t cleared; /* bytes: counted up */
};

/*
 * Back the granules [first, first + count) with memory.  None of them may be mapped.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY; XSEG_ERR_DRIVER
 * Cost:    one map a page, one create for each that is not idle, one set-access (one a page where
 *          the driver wants that); one memset where it is cleared
 */
xseg_status xseg_segment_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                             struct xseg_supply *supply);

/*
 * How many bytes of what xseg_segment_map() would map there idle pages have.
 *
 * full, small: bytes of idle pages of either size that there are; what is used is taken off.  Long
 *              ones are not counted
 */
uint64_t xseg_segment_covered(const struct xseg_segment *segment, uint32_t first, uint32_t count,
                              const struct xseg_supply *supply, uint64_t *full, uint64_t *small);

/*
 * Take the memory of the granules [first, first + count) away, which are whole pages, all mapped or
 * away, and not held.
 *
 * keep:    the pages are idle afterwards; else they are released
 * done:    how many granules, from the first on, have no memory to be used any more: they have become
 *          holes, or are stuck where the driver did not say what became of them; the others are mapped
 *          as before
 * Returns: XSEG_OK when all have; else the driver's error
 * Cost:    one unmap (one a page where the driver wants that); one release a page unless kept
 */
xseg_status xseg_segment_unmap(struct xseg_segment *segment, uint32_t first, uint32_t count,
                               bool keep, uint32_t *done);

/* The whole pages inside the bytes [begin, end) of the segment, all of which are mapped: their first
 * granule, and how many granules they are; 0 if there is none. */
uint32_t xseg_segment_whole_pages(const struct xseg_segment *segment, uint64_t begin, uint64_t end,
                                  uint32_t *first);

/* A granule, or the end of the page in whose middle it lies. */
uint32_t xseg_segment_page_end(const struct xseg_segment *segment, uint32_t granule);

static inline bool xseg_segment_is_mapped(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->state[granule] == XSEG_PAGE_MAPPED;
}

/* Whether a granule belongs to a page that is evicted, or on its way back. */
static inline bool xseg_segment_is_evicted(const struct xseg_segment *segment, uint32_t granule)
{
    return segment->state[granule] >= XSEG_PAGE_AWAY;
}

/* The number of a segment: no other one of the device ever has it, nor is it a generation of memory in
 * an expandable one. */
static inline uint64_t xseg_segment_number(const struct xseg_segment *segment)
{
    return atomic_load_explicit(&segment->generation_whole, memory_order_relaxed);
}

/* The latest generation of the bytes [begin, end) of the segment. */
uint64_t xseg_segment_generation(const struct xseg_segment *segment, uint64_t begin, uint64_t end);

/* --- Pins and exports: what holds pages. --- */

/*
 * Pin the granules of the bytes [begin, end), all of which are mapped.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, XSEG_ERR_BUSY (pinned too often), and nothing has changed
 */
xseg_status xseg_segment_pin(struct xseg_segment *segment, uint64_t begin, uint64_t end);

/* Take a pin back.  False if one of the granules is not pinned: then nothing has changed. */
bool xseg_segment_unpin(struct xseg_segment *segment, uint64_t begin, uint64_t end);

/* Whether one of `count` granules is pinned; the granule of a classic segment is 0. */
bool xseg_segment_is_pinned(const struct xseg_segment *segment, uint32_t first, uint32_t count);

/* The pages that the bytes [begin, end) lie on, all of which are mapped: their first granule, and how
 * many granules they are. */
uint32_t xseg_segment_pages_under(const struct xseg_segment *segment, uint64_t begin, uint64_t end,
                                  uint32_t *first);

/*
 * Export whole pages, all mapped, of a segment that is exportable: they are held until as many calls of
 * xseg_segment_unexport().  Asking the driver for what others need is up to the caller.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, XSEG_ERR_BUSY (exported too often), and nothing has changed
 */
xseg_status xseg_segment_export(struct xseg_segment *segment, uint32_t first, uint32_t count);
void xseg_segment_unexport(struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Whether one of `count` granules is exported. */
bool xseg_segment_is_exported(const struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Whether any page is held; and one of `count` granules. */
static inline bool xseg_segment_holds(const struct xseg_segment *segment)
{
    return (segment->pinned | segment->exported) != 0;
}

bool xseg_segment_is_held(const struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Bytes of pages that are held: pinned, or exported and not pinned. */
struct xseg_segment_held {
    uint64_t pinned, exported;
};

/* The same of the pages that start in [first, first + count); of a classic segment all or none. */
struct xseg_segment_held xseg_segment_held(const struct xseg_segment *segment, uint32_t first,
                                           uint32_t count);

/* Of all pages. */
struct xseg_segment_held xseg_segment_all_held(const struct xseg_segment *segment);

/*
 * Of whole pages from a granule on, the next run of those that are not held.
 *
 * first: where to look from; where the run starts
 * Returns: how many granules it has; 0 if there is none before `end`
 */
uint32_t xseg_segment_loose_pages(const struct xseg_segment *segment, uint32_t *first,
                                  uint32_t end);

/* Try again to unmap the stuck pages.  Returns the first error; what was refused stays stuck. */
xseg_status xseg_segment_unstick(struct xseg_segment *segment);

/*
 * Let an expandable segment have no more addresses than `bytes` that it uses, in whole full pages, and no
 * larger tables than those need; the rest stays reserved.  What lies behind must be holes.  Where pages
 * are or were held, or stuck, or host memory is short, the segment stays as it is.
 */
void xseg_segment_shorten(struct xseg_segment *segment, uint64_t bytes);

/* Host bytes held. */
size_t xseg_segment_host_bytes(const struct xseg_segment *segment);

bool xseg_segment_audit(const struct xseg_segment *segment, struct xseg_finding *finding);

#endif
