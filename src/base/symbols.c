/* SPDX-License-Identifier: MIT */
#include "src/base/symbols.h"

#include <string.h>

/* Symbols that begin below an address and do not reach it, before the search for one around it ends. */
#define STEPS_BACK 16u

/* The order may take this part of what is left of the memory: names are less than stacks. */
#define PART_OF_MEMORY 8u

/* --- Where the symbols are. --- */

struct span {
    uintptr_t base, start, end;
};

/* The memory that an entry of the dynamic section means.  Some loaders write addresses there, others leave
 * offsets.  NULL if `bytes` of it do not lie in the module. */
static const void *in_module(const struct span *span, ElfW(Addr) value, size_t bytes)
{
    const uintptr_t address = value < span->start ? span->base + value : value;

    if (address < span->start || address >= span->end || bytes > span->end - address)
        return NULL;
    return (const void *)address; /* NOLINT(performance-no-int-to-ptr) */
}

/* How many symbols the table of hashes leads to: the last of the chain that begins last is the last. */
static uint32_t count_by_gnu_hash(const struct span *span, ElfW(Addr) value)
{
    const uint32_t *head = in_module(span, value, 4 * sizeof(*head));

    if (head == NULL)
        return 0;
    const uint32_t buckets = head[0], first = head[1];
    const size_t skipped = 4 * sizeof(*head) + head[2] * sizeof(ElfW(Addr));
    const uint32_t *bucket =
        in_module(span, value + skipped, ((size_t)buckets + 1) * sizeof(*bucket));
    const uintptr_t chains = (uintptr_t)(bucket + buckets);
    uint32_t last = 0;

    if (bucket == NULL)
        return 0;
    for (uint32_t i = 0; i < buckets; i++)
        last = bucket[i] > last ? bucket[i] : last;
    if (last < first)
        return 0;
    for (;; last++) {
        const uint32_t *chain =
            in_module(span, chains + (size_t)(last - first) * sizeof(*chain), sizeof(*chain));

        if (chain == NULL)
            return 0;
        if ((*chain & 1) != 0)
            return last + 1;
    }
}

static uint32_t count_by_hash(const struct span *span, ElfW(Addr) value)
{
    const uint32_t *head = in_module(span, value, 2 * sizeof(*head));

    return head != NULL ? head[1] : 0;
}

void xseg_symbols_read(struct xseg_symbol_table *table, uintptr_t base, const ElfW(Dyn) * dynamic,
                       uintptr_t start, uintptr_t end)
{
    const struct span span = {base, start, end};
    ElfW(Addr) symbols = 0, names = 0, hash = 0, gnu_hash = 0;
    size_t name_bytes = 0;

    memset(table, 0, sizeof(*table));
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_STRTAB)
            names = dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_STRSZ)
            name_bytes = dynamic->d_un.d_val;
        else if (dynamic->d_tag == DT_HASH)
            hash = dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_GNU_HASH)
            gnu_hash = dynamic->d_un.d_ptr;
    }
    const uint32_t count = gnu_hash != 0 ? count_by_gnu_hash(&span, gnu_hash)
                           : hash != 0   ? count_by_hash(&span, hash)
                                         : 0;
    table->names = in_module(&span, names, name_bytes);
    table->symbols = in_module(&span, symbols, (size_t)count * sizeof(*table->symbols));
    if (count == 0 || table->names == NULL || table->symbols == NULL)
        memset(table, 0, sizeof(*table));
    else {
        table->count = count;
        table->name_bytes = name_bytes;
    }
}

/* --- Their order. --- */

/* Whether a symbol is a function, or may be one, that lies in the module and has a name. */
static bool is_function(const struct xseg_symbol_table *table, uint32_t number)
{
    const ElfW(Sym) *symbol = &table->symbols[number];
    const unsigned type = symbol->st_info & 0xf;

    return symbol->st_shndx != SHN_UNDEF && symbol->st_shndx != SHN_ABS && symbol->st_value != 0 &&
           symbol->st_name < table->name_bytes && table->names[symbol->st_name] != '\0' &&
           (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE);
}

/* By address; of one address, so that the last is the one to name: the first of the table. */
static bool is_before(const struct xseg_symbol_table *table, uint32_t a, uint32_t b)
{
    const ElfW(Addr) at = table->symbols[a].st_value, other = table->symbols[b].st_value;

    return at != other ? at < other : a > b;
}

/* Let the number at `i` sink to its place in a heap of `count`. */
static void sink(const struct xseg_symbol_table *table, uint32_t *number, uint32_t i,
                 uint32_t count)
{
    const uint32_t sinking = number[i];

    while (2 * (uint64_t)i + 1 < count) {
        uint32_t child = 2 * i + 1;

        if (child + 1 < count && is_before(table, number[child], number[child + 1]))
            child++;
        if (!is_before(table, sinking, number[child]))
            break;
        number[i] = number[child];
        i = child;
    }
    number[i] = sinking;
}

/* A heap sort, because qsort() may ask for memory, which must not be under the loader's lock. */
static void sort(const struct xseg_symbol_table *table, uint32_t *number, uint32_t count)
{
    for (uint32_t i = count / 2; i > 0; i--)
        sink(table, number, i - 1, count);
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t last = number[0];

        number[0] = number[i - 1];
        number[i - 1] = last;
        sink(table, number, 0, i - 1);
    }
}

static void make_order(const struct xseg_symbol_table *table, struct xseg_symbol_order *order,
                       struct xseg_bump *memory)
{
    uint32_t count = 0;

    order->was_tried = true;
    for (uint32_t i = 0; i < table->count; i++)
        count += is_function(table, i);
    const size_t bytes = (size_t)count * sizeof(*order->number);
    if (count == 0 || bytes > xseg_bump_left(memory) / PART_OF_MEMORY)
        return;
    uint32_t *number = xseg_bump_take(memory, bytes);
    if (number == NULL)
        return;
    count = 0;
    for (uint32_t i = 0; i < table->count; i++)
        if (is_function(table, i))
            number[count++] = i;
    sort(table, number, count);
    order->number = number;
    order->count = count;
}

/* --- Finding one. --- */

/* As dladdr() sees it: a symbol without a size has its first byte. */
static bool has(const struct xseg_symbol_table *table, uint32_t number, uint64_t offset)
{
    const ElfW(Sym) *symbol = &table->symbols[number];

    return symbol->st_size != 0 ? offset - symbol->st_value < symbol->st_size
                                : offset == symbol->st_value;
}

static bool find_ordered(const struct xseg_symbol_table *table,
                         const struct xseg_symbol_order *order, uint64_t offset, uint32_t *found)
{
    uint32_t low = 0, high = order->count;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (table->symbols[order->number[middle]].st_value <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    for (uint32_t i = low; i > 0 && low - i < STEPS_BACK; i--)
        if (has(table, order->number[i - 1], offset)) {
            *found = order->number[i - 1];
            return true;
        }
    return false;
}

static bool find_among_all(const struct xseg_symbol_table *table, uint64_t offset, uint32_t *found)
{
    bool is_found = false;

    for (uint32_t i = 0; i < table->count; i++)
        if (is_function(table, i) && has(table, i, offset) &&
            (!is_found || is_before(table, *found, i))) {
            *found = i;
            is_found = true;
        }
    return is_found;
}

bool xseg_symbols_find(const struct xseg_symbol_table *table, struct xseg_symbol_order *order,
                       struct xseg_bump *memory, uint64_t offset, struct xseg_symbol *out)
{
    uint32_t number = 0;

    if (table->symbols == NULL)
        return false;
    if (!order->was_tried)
        make_order(table, order, memory);
    if (order->number != NULL ? !find_ordered(table, order, offset, &number)
                              : !find_among_all(table, offset, &number))
        return false;
    out->offset = table->symbols[number].st_value;
    out->name = table->names + table->symbols[number].st_name;
    out->name_bytes = strnlen(out->name, table->name_bytes - table->symbols[number].st_name);
    return true;
}
