/* SPDX-License-Identifier: MIT */
#include "src/base/intern.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/align.h"

/* --- The bump allocator. --- */

/* Memory is committed in steps of this size, to save system calls. */
#define STEP_BYTES      ((size_t)1 << 20)
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

bool xseg_bump_init(struct xseg_bump *bump, size_t bytes)
{
    XSEG_ASSERT(bytes != 0 && bytes <= XSEG_BUMP_MAX_BYTES);
    memset(bump, 0, sizeof(*bump));
    bytes = xseg_round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return false;
    (void)madvise(base, bytes,
                  MADV_NOHUGEPAGE); /* otherwise the first record would make a huge page resident */
    bump->base = base;
    bump->reserved = bytes;
    atomic_init(&bump->used, XSEG_BUMP_UNIT);
    return true;
}

void xseg_bump_fini(struct xseg_bump *bump)
{
    if (bump->base != NULL)
        (void)munmap(bump->base, bump->reserved);
    bump->base = NULL;
    bump->reserved = 0;
}

void xseg_bump_use_huge_pages(struct xseg_bump *bump)
{
    bump->uses_huge_pages = true;
}

/* The end of the committed addresses that covers `end`: a multiple of a step or of a huge page. */
static size_t choose_committed(const struct xseg_bump *bump, size_t end, bool is_huge)
{
    const uintptr_t base = (uintptr_t)bump->base;

    return xseg_min(is_huge ? xseg_round_up(base + end, HUGE_PAGE_BYTES) - base
                            : xseg_round_up(end, STEP_BYTES),
                    bump->reserved);
}

/* Commit at least the addresses up to `end`.  Returns false if out of host memory. */
static bool commit_up_to(struct xseg_bump *bump, size_t end)
{
    const bool is_huge = bump->uses_huge_pages && bump->committed >= HUGE_PAGE_BYTES;
    const size_t committed = choose_committed(bump, end, is_huge);
    char *start = bump->base + bump->committed;

    if (mprotect(start, committed - bump->committed, PROT_READ | PROT_WRITE) != 0)
        return false;
    if (is_huge)
        (void)madvise(start, committed - bump->committed, MADV_HUGEPAGE);
    bump->committed = committed;
    return true;
}

void *xseg_bump_alloc(struct xseg_bump *bump, size_t bytes)
{
    const size_t used = atomic_load_explicit(&bump->used, memory_order_relaxed);

    XSEG_ASSERT(bump->base != NULL && bytes != 0);
    if (bytes > bump->reserved - used ||
        xseg_round_up(bytes, XSEG_BUMP_UNIT) > bump->reserved - used) {
        atomic_store_explicit(&bump->was_full, true, memory_order_relaxed);
        return NULL;
    }
    const size_t end = used + xseg_round_up(bytes, XSEG_BUMP_UNIT);
    if (end > bump->committed && !commit_up_to(bump, end))
        return NULL;
    atomic_store_explicit(&bump->used, end, memory_order_relaxed);
    return bump->base + used;
}

size_t xseg_bump_resident(const struct xseg_bump *bump)
{
    return xseg_round_up(atomic_load_explicit(&bump->used, memory_order_relaxed),
                         (size_t)sysconf(_SC_PAGESIZE));
}

bool xseg_bump_audit(const struct xseg_bump *bump, struct xseg_violation *violation)
{
    const size_t used = atomic_load_explicit(&bump->used, memory_order_relaxed);

    XSEG_INVARIANT(violation, "BUMP-1",
                   XSEG_BUMP_UNIT <= used && used <= xseg_max(bump->committed, XSEG_BUMP_UNIT) &&
                       bump->committed <= bump->reserved && used % XSEG_BUMP_UNIT == 0,
                   "used %zu, committed %zu of %zu bytes", used, bump->committed, bump->reserved);
    return true;
}

/* --- The intern table. --- */

static struct xseg_intern_slots *alloc_slots(struct xseg_bump *memory, uint64_t count)
{
    struct xseg_intern_slots *slots =
        xseg_bump_alloc(memory, sizeof(*slots) + count * sizeof(slots->slot[0]));

    if (slots != NULL)
        slots->mask = (uint32_t)(count - 1);
    return slots;
}

static struct xseg_intern_slots *load_slots(const struct xseg_intern_table *table)
{
    return atomic_load_explicit(&table->slots, memory_order_relaxed);
}

/* Store an entry in the first empty slot from the slot that its hash selects. */
static void insert_entry(struct xseg_intern_slots *slots, uint64_t entry)
{
    uint32_t index = (uint32_t)(entry >> 32);

    while (atomic_load_explicit(&slots->slot[index & slots->mask], memory_order_relaxed) != 0)
        index++;
    atomic_store_explicit(&slots->slot[index & slots->mask], entry, memory_order_release);
}

bool xseg_intern_table_init(struct xseg_intern_table *table, struct xseg_bump *memory)
{
    struct xseg_intern_slots *slots = alloc_slots(memory, XSEG_INTERN_TABLE_FIRST);

    atomic_init(&table->slots, slots);
    table->used = 0;
    return slots != NULL;
}

static bool double_slots(struct xseg_intern_table *table, struct xseg_bump *memory)
{
    const struct xseg_intern_slots *old = load_slots(table);
    struct xseg_intern_slots *slots = alloc_slots(memory, 2 * ((uint64_t)old->mask + 1));

    if (slots == NULL)
        return false;
    for (uint64_t i = 0; i <= old->mask; i++) {
        const uint64_t entry = atomic_load_explicit(&old->slot[i], memory_order_relaxed);

        if (entry != 0)
            insert_entry(slots, entry);
    }
    atomic_store_explicit(&table->slots, slots, memory_order_release);
    return true;
}

bool xseg_intern_table_reserve(struct xseg_intern_table *table, struct xseg_bump *memory)
{
    return table->used <= load_slots(table)->mask / 2 || double_slots(table, memory);
}

bool xseg_intern_table_add(struct xseg_intern_table *table, struct xseg_bump *memory, uint32_t hash,
                           uint32_t handle)
{
    XSEG_ASSERT(handle != 0);
    if (!xseg_intern_table_reserve(table, memory))
        return false;
    insert_entry(load_slots(table), (uint64_t)hash << 32 | handle);
    table->used++;
    return true;
}

uint32_t xseg_intern_string(struct xseg_intern_table *table, struct xseg_bump *memory,
                            const char *string, size_t length)
{
    uint32_t hash = (uint32_t)length;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)string[i]) * 16777619u; /* FNV-1a */
    struct xseg_intern_search search = xseg_intern_table_search(table, hash);
    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const char *interned = xseg_bump_at(memory, handle);

        if (strncmp(interned, string, length) == 0 && interned[length] == '\0')
            return handle;
    }
    char *copy = xseg_bump_alloc(memory, length + 1);
    if (copy == NULL)
        return 0;
    memcpy(copy, string, length);
    const uint32_t handle = xseg_bump_handle(memory, copy);
    return xseg_intern_table_add(table, memory, hash, handle) ? handle : 0;
}

void xseg_intern_table_for_each(const struct xseg_intern_table *table,
                                void (*visit)(void *context, uint32_t handle), void *context)
{
    const struct xseg_intern_slots *slots =
        atomic_load_explicit(&table->slots, memory_order_acquire);

    for (uint64_t i = 0; i <= slots->mask; i++) {
        const uint64_t entry = atomic_load_explicit(&slots->slot[i], memory_order_acquire);

        if (entry != 0)
            visit(context, (uint32_t)entry);
    }
}

bool xseg_intern_table_audit(const struct xseg_intern_table *table,
                             struct xseg_violation *violation)
{
    const struct xseg_intern_slots *slots = load_slots(table);
    uint64_t used = 0;

    for (uint64_t i = 0; i <= slots->mask; i++) {
        const uint64_t entry = atomic_load_explicit(&slots->slot[i], memory_order_relaxed);

        if (entry == 0)
            continue;
        used++;
        for (uint32_t index = (uint32_t)(entry >> 32); (index & slots->mask) != i; index++)
            XSEG_INVARIANT(
                violation, "TABLE-2",
                atomic_load_explicit(&slots->slot[index & slots->mask], memory_order_relaxed) != 0,
                "slot %" PRIu64 " is unreachable: slot %" PRIu32 " is empty", i,
                index & slots->mask);
    }
    XSEG_INVARIANT(violation, "TABLE-1",
                   used == table->used && used <= (uint64_t)slots->mask / 2 + 1,
                   "%" PRIu64 " of %" PRIu64 " slots are in use, used is %" PRIu32, used,
                   (uint64_t)slots->mask + 1, table->used);
    return true;
}
