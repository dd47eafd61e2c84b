/* SPDX-License-Identifier: MIT */
#include "src/base/handle_table.h"

#include <inttypes.h>
#include <stddef.h>

static struct xseg_handle_slots *make_slots(struct xseg_bump *memory, uint64_t count)
{
    struct xseg_handle_slots *slots =
        xseg_bump_alloc(memory, sizeof(*slots) + count * sizeof(slots->slot[0]));

    if (slots != NULL)
        slots->mask = (uint32_t)(count - 1);
    return slots;
}

static struct xseg_handle_slots *slots_of(const struct xseg_handle_table *table)
{
    return atomic_load_explicit(&table->slots, memory_order_relaxed);
}

/* Write into the first empty slot from the one on that the hash names. */
static void put(struct xseg_handle_slots *slots, uint64_t entry)
{
    uint32_t at = (uint32_t)(entry >> 32);

    while (atomic_load_explicit(&slots->slot[at & slots->mask], memory_order_relaxed) != 0)
        at++;
    atomic_store_explicit(&slots->slot[at & slots->mask], entry, memory_order_release);
}

bool xseg_handle_table_init(struct xseg_handle_table *table, struct xseg_bump *memory)
{
    struct xseg_handle_slots *slots = make_slots(memory, XSEG_HANDLE_TABLE_FIRST);

    atomic_init(&table->slots, slots);
    table->used = 0;
    return slots != NULL;
}

static bool grow(struct xseg_handle_table *table, struct xseg_bump *memory)
{
    const struct xseg_handle_slots *old = slots_of(table);
    struct xseg_handle_slots *slots = make_slots(memory, 2 * ((uint64_t)old->mask + 1));

    if (slots == NULL)
        return false;
    for (uint64_t i = 0; i <= old->mask; i++) {
        const uint64_t entry = atomic_load_explicit(&old->slot[i], memory_order_relaxed);

        if (entry != 0)
            put(slots, entry);
    }
    atomic_store_explicit(&table->slots, slots, memory_order_release);
    return true;
}

bool xseg_handle_table_reserve(struct xseg_handle_table *table, struct xseg_bump *memory)
{
    return table->used <= slots_of(table)->mask / 2 || grow(table, memory);
}

bool xseg_handle_table_add(struct xseg_handle_table *table, struct xseg_bump *memory, uint32_t hash,
                           uint32_t handle)
{
    XSEG_ASSERT(handle != 0);
    if (!xseg_handle_table_reserve(table, memory))
        return false;
    put(slots_of(table), (uint64_t)hash << 32 | handle);
    table->used++;
    return true;
}

void xseg_handle_table_visit(const struct xseg_handle_table *table,
                             void (*visit)(void *context, uint32_t handle), void *context)
{
    const struct xseg_handle_slots *slots =
        atomic_load_explicit(&table->slots, memory_order_acquire);

    for (uint64_t i = 0; i <= slots->mask; i++) {
        const uint64_t entry = atomic_load_explicit(&slots->slot[i], memory_order_acquire);

        if (entry != 0)
            visit(context, (uint32_t)entry);
    }
}

bool xseg_handle_table_audit(const struct xseg_handle_table *table, struct xseg_finding *finding)
{
    const struct xseg_handle_slots *slots = slots_of(table);
    uint64_t used = 0;

    for (uint64_t i = 0; i <= slots->mask; i++) {
        const uint64_t entry = atomic_load_explicit(&slots->slot[i], memory_order_relaxed);

        if (entry == 0)
            continue;
        used++;
        for (uint32_t at = (uint32_t)(entry >> 32); (at & slots->mask) != i; at++)
            XSEG_HOLDS(
                finding, "TABLE-2",
                atomic_load_explicit(&slots->slot[at & slots->mask], memory_order_relaxed) != 0,
                "slot %" PRIu64 " is not reached: slot %" PRIu32 " is empty", i, at & slots->mask);
    }
    XSEG_HOLDS(finding, "TABLE-1", used == table->used && used <= (uint64_t)slots->mask / 2 + 1,
               "%" PRIu64 " of %" PRIu64 " slots are used, not %" PRIu32, used,
               (uint64_t)slots->mask + 1, table->used);
    return true;
}
