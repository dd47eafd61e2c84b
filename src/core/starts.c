/* SPDX-License-Identifier: MIT */
#include "src/core/starts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"

struct xseg_starts_chunk {
    struct xseg_bits taken; /* slots that hold an index */
    uint64_t *storage;
    uint32_t slot[];
};

static struct xseg_starts_chunk *chunk_at(const struct xseg_starts *starts, uint32_t number)
{
    return atomic_load_explicit(&starts->chunk[number], memory_order_acquire);
}

bool xseg_starts_init(struct xseg_starts *starts, uint64_t bytes)
{
    memset(starts, 0, sizeof(*starts));
    const uint64_t slots = (bytes + XSEG_MIB - 1) >> XSEG_STARTS_SHIFT;
    const uint64_t chunks = (slots + XSEG_STARTS_SLOTS - 1) / XSEG_STARTS_SLOTS;
    if (chunks > (uint64_t)XSEG_BITS_MAX)
        return false;
    starts->slots = (uint32_t)slots;
    starts->chunks = (uint32_t)chunks;
    const size_t words = xseg_bits_words(starts->chunks);
    starts->host_bytes = (size_t)starts->chunks * sizeof(*starts->chunk) + words * sizeof(uint64_t);
    char *memory = calloc(1, starts->host_bytes);
    if (memory == NULL)
        return false;
    starts->memory = memory;
    starts->chunk = (_Atomic(struct xseg_starts_chunk *) *)(void *)memory;
    xseg_bits_init(&starts->filled,
                   (uint64_t *)(void *)(memory + (size_t)starts->chunks * sizeof(*starts->chunk)),
                   starts->chunks);
    return true;
}

void xseg_starts_fini(struct xseg_starts *starts)
{
    for (uint32_t i = 0; starts->chunk != NULL && i < starts->chunks; i++)
        free(chunk_at(starts, i));
    free(starts->memory);
    memset(starts, 0, sizeof(*starts));
}

/* The last chunk is as long as the extent needs. */
static struct xseg_starts_chunk *make_chunk(struct xseg_starts *starts, uint32_t number)
{
    const uint32_t left = starts->slots - number * XSEG_STARTS_SLOTS;
    const uint32_t slots = left < XSEG_STARTS_SLOTS ? left : XSEG_STARTS_SLOTS;
    /* Up to a whole word, so that the bitmap behind the slots is aligned. */
    const size_t slot_bytes = (slots + 1) / 2 * sizeof(uint64_t);
    const size_t bytes =
        sizeof(struct xseg_starts_chunk) + slot_bytes + xseg_bits_words(slots) * sizeof(uint64_t);
    struct xseg_starts_chunk *chunk = calloc(1, bytes);

    if (chunk == NULL)
        return NULL;
    chunk->storage = (uint64_t *)(void *)((char *)chunk->slot + slot_bytes);
    xseg_bits_init(&chunk->taken, chunk->storage, slots);
    atomic_fetch_add_explicit(&starts->host_bytes, bytes, memory_order_relaxed);
    return chunk;
}

bool xseg_starts_cover(struct xseg_starts *starts, uint64_t begin, uint64_t end)
{
    const uint64_t first = (begin >> XSEG_STARTS_SHIFT) / XSEG_STARTS_SLOTS;
    const uint64_t last = ((end - 1) >> XSEG_STARTS_SHIFT) / XSEG_STARTS_SLOTS;

    for (uint32_t number = (uint32_t)first; number <= last; number++) {
        if (chunk_at(starts, number) != NULL)
            continue;
        struct xseg_starts_chunk *chunk = make_chunk(starts, number);
        if (chunk == NULL)
            return false;
        atomic_store_explicit(&starts->chunk[number], chunk, memory_order_release);
    }
    return true;
}

void xseg_starts_add(struct xseg_starts *starts, uint64_t offset, uint32_t index)
{
    const uint32_t number = (uint32_t)(offset >> XSEG_STARTS_SHIFT);
    struct xseg_starts_chunk *chunk = chunk_at(starts, number / XSEG_STARTS_SLOTS);

    XSEG_ASSERT(chunk->slot[number % XSEG_STARTS_SLOTS] == 0);
    if (chunk->taken.top == 0)
        xseg_bits_add(&starts->filled, number / XSEG_STARTS_SLOTS);
    xseg_bits_add(&chunk->taken, number % XSEG_STARTS_SLOTS);
    chunk->slot[number % XSEG_STARTS_SLOTS] = index;
}

void xseg_starts_remove(struct xseg_starts *starts, uint64_t offset)
{
    const uint32_t number = (uint32_t)(offset >> XSEG_STARTS_SHIFT);
    struct xseg_starts_chunk *chunk = chunk_at(starts, number / XSEG_STARTS_SLOTS);

    chunk->slot[number % XSEG_STARTS_SLOTS] = 0;
    xseg_bits_remove(&chunk->taken, number % XSEG_STARTS_SLOTS);
    if (chunk->taken.top == 0)
        xseg_bits_remove(&starts->filled, number / XSEG_STARTS_SLOTS);
}

uint32_t xseg_starts_at(const struct xseg_starts *starts, uint64_t offset)
{
    const uint32_t number = (uint32_t)(offset >> XSEG_STARTS_SHIFT);
    const struct xseg_starts_chunk *chunk = chunk_at(starts, number / XSEG_STARTS_SLOTS);

    return chunk == NULL ? 0 : chunk->slot[number % XSEG_STARTS_SLOTS];
}

uint32_t xseg_starts_before(const struct xseg_starts *starts, uint64_t offset)
{
    const uint32_t number = (uint32_t)(offset >> XSEG_STARTS_SHIFT);
    uint32_t at = number / XSEG_STARTS_SLOTS, slot = XSEG_BITS_NONE;
    const struct xseg_starts_chunk *chunk = chunk_at(starts, at);

    if (chunk != NULL)
        slot = xseg_bits_prev(&chunk->taken, number % XSEG_STARTS_SLOTS + 1);
    if (slot == XSEG_BITS_NONE) {
        at = xseg_bits_prev(&starts->filled, at);
        if (at == XSEG_BITS_NONE)
            return 0;
        chunk = chunk_at(starts, at);
        slot = xseg_bits_prev(&chunk->taken, XSEG_STARTS_SLOTS);
    }
    return chunk->slot[slot];
}

bool xseg_starts_audit(const struct xseg_starts *starts, struct xseg_finding *finding)
{
    for (uint32_t number = 0; number < starts->chunks; number++) {
        const struct xseg_starts_chunk *chunk = chunk_at(starts, number);

        for (uint32_t slot = 0; chunk != NULL && slot < chunk->taken.count; slot++)
            XSEG_HOLDS(finding, "START-1",
                       xseg_bits_has(&chunk->taken, slot) == (chunk->slot[slot] != 0),
                       "slot %" PRIu32 " of chunk %" PRIu32 " and its bit differ", slot, number);
        XSEG_HOLDS(finding, "START-2",
                   xseg_bits_has(&starts->filled, number) ==
                       (chunk != NULL && chunk->taken.top != 0),
                   "chunk %" PRIu32 " and its bit differ", number);
    }
    return true;
}
