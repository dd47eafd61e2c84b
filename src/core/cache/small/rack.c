/* SPDX-License-Identifier: MIT */
#include "src/core/cache/small/rack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/core/cache/extent.h"

#define RANKS_AT_FIRST 64u

/* --- Sheets. --- */

static uint32_t words_for(uint32_t capacity)
{
    return capacity / 64;
}

static uint32_t tops_for(uint32_t capacity)
{
    return (capacity + 4095) / 4096;
}

static size_t room_bytes(uint32_t capacity)
{
    return capacity * sizeof(struct xseg_sheet *) +
           XSEG_CELLS_WIDE * (size_t)words_for(capacity) * sizeof(struct xseg_rack_level);
}

static uint32_t capacity_for(const struct xseg_rack *rack, uint32_t count)
{
    uint32_t capacity = rack->capacity == 0 ? RANKS_AT_FIRST : rack->capacity;

    while (capacity < rack->ranks - rack->gone + count)
        capacity *= 2;
    return capacity;
}

bool xseg_rack_make_room(const struct xseg_rack *rack, uint32_t count, void **room)
{
    const uint32_t capacity = capacity_for(rack, count);

    *room = NULL;
    if (capacity == rack->capacity)
        return true;
    *room = calloc(1, room_bytes(capacity));
    return *room != NULL;
}

static uint64_t address_of(const struct xseg_sheet *sheet)
{
    return sheet->extent->segment.base +
           ((uint64_t)sheet->number * XSEG_CELLS_SHEET << XSEG_CELLS_SHIFT);
}

/* A sheet is at a rank from now on. */
static void set_rank(struct xseg_rack *rack, struct xseg_sheet *sheet, uint32_t rank)
{
    rack->sheet[rank] = sheet;
    sheet->rank = rank;
    sheet->level = &rack->level[rank / 64 * XSEG_CELLS_WIDE];
    sheet->top = &rack->level[rank / 4096 * 64 * XSEG_CELLS_WIDE];
    sheet->rank_bit = xseg_cells_bit(rank);
    sheet->top_bit = xseg_cells_bit(rank / 64);
    sheet->base = address_of(sheet);
}

/* Compute the bits of all sheets anew; they are zero. */
static void compute_bits(struct xseg_rack *rack)
{
    for (uint32_t rank = 0; rank < rack->ranks; rank++) {
        struct xseg_sheet *sheet = rack->sheet[rank];

        set_rank(rack, sheet, rank);
        for (uint32_t quanta = 1; quanta < XSEG_CELLS_WIDE; quanta++) {
            const uint64_t words = sheet->bin[quanta];

            if (words == 0)
                continue;
            /* As if the cells of the first word came first. */
            sheet->bin[quanta] = 0;
            xseg_rack_insert(rack, sheet, (uint32_t)__builtin_ctzll(words) * 64, quanta);
            sheet->bin[quanta] = words;
        }
    }
}

static void clear_bits(struct xseg_rack *rack)
{
    memset(rack->sizes, 0, sizeof(rack->sizes));
    memset(rack->level, 0, XSEG_CELLS_WIDE * (size_t)rack->words * sizeof(*rack->level));
}

/* Ranks without a sheet go. */
static void close_gaps(struct xseg_rack *rack)
{
    uint32_t ranks = 0;

    for (uint32_t rank = 0; rank < rack->ranks; rank++)
        if (rack->sheet[rank] != NULL)
            rack->sheet[ranks++] = rack->sheet[rank];
    rack->ranks = ranks;
    rack->gone = 0;
}

void *xseg_rack_take_room(struct xseg_rack *rack, uint32_t count, void *room)
{
    struct xseg_sheet **before = rack->sheet;

    if (room == NULL)
        return NULL;
    close_gaps(rack);
    const uint32_t capacity = capacity_for(rack, count);
    rack->sheet = room;
    if (rack->ranks > 0)
        memcpy(rack->sheet, before, rack->ranks * sizeof(struct xseg_sheet *));
    rack->capacity = capacity;
    rack->words = words_for(capacity);
    rack->tops = tops_for(capacity);
    rack->level = (struct xseg_rack_level *)(void *)(rack->sheet + capacity);
    rack->host_bytes = room_bytes(capacity);
    memset(rack->sizes, 0, sizeof(rack->sizes));
    compute_bits(rack);
    return before;
}

void xseg_rack_fini(struct xseg_rack *rack)
{
    free(rack->sheet);
    memset(rack, 0, sizeof(*rack));
}

void xseg_rack_add(struct xseg_rack *rack, struct xseg_sheet *sheet)
{
    while (rack->ranks > 0 && rack->sheet[rack->ranks - 1] == NULL) {
        rack->ranks--;
        rack->gone--;
    }
    if (rack->ranks < rack->capacity &&
        (rack->ranks == 0 || address_of(rack->sheet[rack->ranks - 1]) < address_of(sheet))) {
        set_rank(rack, sheet, rack->ranks++);
        return;
    }
    close_gaps(rack);
    uint32_t place = rack->ranks++;
    XSEG_ASSERT(place < rack->capacity);
    for (; place > 0 && address_of(rack->sheet[place - 1]) > address_of(sheet); place--)
        rack->sheet[place] = rack->sheet[place - 1];
    rack->sheet[place] = sheet;
    clear_bits(rack);
    compute_bits(rack);
}

void xseg_rack_remove(struct xseg_rack *rack, const struct xseg_sheet *sheet)
{
    rack->sheet[sheet->rank] = NULL;
    rack->gone++;
}

/* --- Cells. --- */

uint64_t xseg_rack_starts(const struct xseg_sheet *sheet, uint32_t word, uint32_t quanta)
{
    const struct xseg_cells_word *here = &sheet->word[word];
    uint64_t bits = xseg_rack_candidates(here, quanta), found = 0;

    for (; bits != 0; bits &= bits - 1)
        if (xseg_rack_ends_in(here->start, (uint32_t)__builtin_ctzll(bits), quanta))
            found |= bits & -bits;
    return found | (xseg_rack_last_is(sheet, word, quanta) ? xseg_rack_last(here) : 0);
}

bool xseg_rack_has_none(const struct xseg_rack *rack, uint32_t quanta)
{
    uint64_t left = 0;

    for (uint32_t i = 0; i < rack->tops; i++)
        left |= *xseg_rack_top(rack, quanta, i * 4096);
    return left == 0;
}

/* The lowest cell of a size in a sheet, from a quantum of it on. */
static struct xseg_cell lowest_in(const struct xseg_sheet *sheet, uint32_t quanta, uint32_t from)
{
    uint64_t words = xseg_bits_from(sheet->bin[quanta], from / 64);
    struct xseg_cell none = {0};

    for (; words != 0; words &= words - 1) {
        const uint32_t word = (uint32_t)__builtin_ctzll(words);
        uint64_t starts = xseg_rack_starts(sheet, word, quanta);

        if (word == from / 64)
            starts = xseg_bits_from(starts, from % 64);
        if (starts != 0)
            return (struct xseg_cell){sheet->extent,
                                      sheet->number * XSEG_CELLS_SHEET + word * 64 +
                                          (uint32_t)__builtin_ctzll(starts),
                                      quanta};
    }
    return none;
}

/* The lowest cell of a sheet with a size or more that is on the rack. */
static struct xseg_cell lowest_fit_in(const struct xseg_sheet *sheet, uint32_t quanta)
{
    const struct xseg_cells *cells = &sheet->extent->cells;
    struct xseg_cell none = {0};

    for (uint32_t word = 0; word < XSEG_CELLS_WORDS; word++) {
        uint64_t starts = sheet->word[word].start & sheet->word[word].free;

        for (; starts != 0; starts &= starts - 1) {
            const uint32_t at =
                sheet->number * XSEG_CELLS_SHEET + word * 64 + (uint32_t)__builtin_ctzll(starts);
            const uint32_t length = xseg_cells_next(cells, at + 1) - at;

            if (length >= quanta && length < XSEG_CELLS_WIDE)
                return (struct xseg_cell){sheet->extent, at, length};
        }
    }
    return none;
}

struct xseg_cell xseg_rack_find_lowest(const struct xseg_rack *rack, uint32_t quanta)
{
    uint32_t rank = UINT32_MAX;
    struct xseg_cell none = {0};

    for (uint32_t word = quanta / 64; word < XSEG_CELLS_WIDE / 64; word++) {
        uint64_t sizes = rack->sizes[word];

        if (word == quanta / 64)
            sizes = sizes >> quanta % 64 << quanta % 64;
        for (; sizes != 0; sizes &= sizes - 1) {
            const uint32_t first =
                xseg_rack_first(rack, word * 64 + (uint32_t)__builtin_ctzll(sizes));

            rank = first < rank ? first : rank;
        }
    }
    return rank == UINT32_MAX ? none : lowest_fit_in(rack->sheet[rank], quanta);
}

struct xseg_cell xseg_rack_next(const struct xseg_rack *rack, const struct xseg_cell *cell)
{
    const struct xseg_sheet *sheet = xseg_cells_sheet(&cell->extent->cells, cell->quantum);
    uint32_t at = cell->quantum % XSEG_CELLS_SHEET + 1;
    struct xseg_cell next = {0};

    if (at < XSEG_CELLS_SHEET)
        next = lowest_in(sheet, cell->quanta, at);
    for (uint32_t rank = sheet->rank + 1; next.quanta == 0 && rank < rack->ranks;) {
        const uint64_t left = *xseg_rack_bits(rack, cell->quanta, rank) >> rank % 64;

        if (left == 0) {
            rank = (rank / 64 + 1) * 64;
            continue;
        }
        rank += (uint32_t)__builtin_ctzll(left);
        next = lowest_in(rack->sheet[rank], cell->quanta, 0);
    }
    return next.quanta != 0 ? next : xseg_rack_find(rack, cell->quanta + 1);
}

/* --- Audit. --- */

static bool audit_size(const struct xseg_rack *rack, uint32_t quanta, struct xseg_finding *finding)
{
    bool any = false;

    for (uint32_t word = 0; word < rack->words; word++) {
        const uint64_t bits = *xseg_rack_bits(rack, quanta, word * 64);
        const bool top = (*xseg_rack_top(rack, quanta, word * 64) >> word % 64 & 1) != 0;

        XSEG_HOLDS(finding, "RACK-2", top == (bits != 0), "size %" PRIu32 ", word %" PRIu32, quanta,
                   word);
        any = any || bits != 0;
    }
    XSEG_HOLDS(finding, "RACK-2", (rack->sizes[quanta / 64] >> quanta % 64 & 1) == (any ? 1u : 0u),
               "size %" PRIu32, quanta);
    return true;
}

/* Whether the bit of a rank says that it has a size. */
static bool has_size(const struct xseg_rack *rack, uint32_t rank, uint32_t quanta)
{
    return (*xseg_rack_bits(rack, quanta, rank) >> rank % 64 & 1) != 0;
}

/* A rank that is empty has nothing. */
static bool audit_gone(const struct xseg_rack *rack, uint32_t rank, struct xseg_finding *finding)
{
    for (uint32_t quanta = 1; quanta < XSEG_CELLS_WIDE; quanta++)
        XSEG_HOLDS(finding, "RACK-2", !has_size(rack, rank, quanta),
                   "size %" PRIu32 " in rank %" PRIu32 ", which is empty", quanta, rank);
    return true;
}

/* A sheet's bins against its bits, and those of its rank. */
static bool audit_sheet(const struct xseg_rack *rack, const struct xseg_sheet *sheet,
                        struct xseg_finding *finding)
{
    const struct xseg_cells *cells = &sheet->extent->cells;
    uint64_t bin[XSEG_CELLS_WIDE] = {0};

    for (uint32_t word = 0; word < XSEG_CELLS_WORDS; word++) {
        uint64_t starts = sheet->word[word].start & sheet->word[word].free;

        for (; starts != 0; starts &= starts - 1) {
            const uint32_t at =
                sheet->number * XSEG_CELLS_SHEET + word * 64 + (uint32_t)__builtin_ctzll(starts);
            const uint32_t quanta = xseg_cells_next(cells, at + 1) - at;

            if (quanta < XSEG_CELLS_WIDE)
                bin[quanta] |= (uint64_t)1 << word;
        }
    }
    XSEG_HOLDS(finding, "RACK-3", sheet->bin[0] == 0, "sheet %" PRIu32 " has cells of no size",
               sheet->number);
    for (uint32_t quanta = 1; quanta < XSEG_CELLS_WIDE; quanta++)
        XSEG_HOLDS(finding, "RACK-2",
                   sheet->bin[quanta] == bin[quanta] &&
                       has_size(rack, sheet->rank, quanta) == (bin[quanta] != 0),
                   "size %" PRIu32 " in sheet %" PRIu32, quanta, sheet->number);
    return true;
}

bool xseg_rack_audit(const struct xseg_rack *rack, struct xseg_finding *finding)
{
    const struct xseg_sheet *before = NULL;

    for (uint32_t rank = 0; rank < rack->ranks; rank++) {
        const struct xseg_sheet *sheet = rack->sheet[rank];

        if (sheet == NULL && !audit_gone(rack, rank, finding))
            return false;
        if (sheet == NULL)
            continue;
        XSEG_HOLDS(finding, "RACK-1",
                   sheet->rank == rank &&
                       (before == NULL || address_of(before) < address_of(sheet)),
                   "rank %" PRIu32, rank);
        before = sheet;
        if (!audit_sheet(rack, sheet, finding))
            return false;
    }
    for (uint32_t quanta = 1; rack->capacity > 0 && quanta < XSEG_CELLS_WIDE; quanta++)
        if (!audit_size(rack, quanta, finding))
            return false;
    return true;
}
