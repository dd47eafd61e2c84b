/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/pickle_store.h"

static bool is_container(const struct pickle_value *value)
{
    return value->kind >= PICKLE_LIST;
}

void pickle_fini(struct pickle *pickle)
{
    for (size_t i = 0; i < pickle->count; i++)
        if (is_container(&pickle->values[i]))
            free(pickle->values[i].items);
    free(pickle->values);
    free(pickle->text);
    memset(pickle, 0, sizeof(*pickle));
}

const struct pickle_value *pickle_top(const struct pickle *pickle)
{
    return &pickle->values[pickle->top];
}

size_t pickle_count(const struct pickle_value *value)
{
    return is_container(value) ? value->count : 0;
}

size_t pickle_capacity(const struct pickle_value *value)
{
    size_t power = 4;

    while (value->has_spare && power < value->count)
        power *= 2;
    return value->has_spare ? power : value->count;
}

const struct pickle_value *pickle_item(const struct pickle *pickle,
                                       const struct pickle_value *value, size_t at)
{
    return &pickle->values[value->items[at]];
}

size_t pickle_index(const struct pickle *pickle, const struct pickle_value *value, const char *key)
{
    const size_t length = strlen(key);

    if (!value || value->kind != PICKLE_DICT)
        return 0;
    /* Of equal keys, the last is valid, as in Python. */
    for (size_t at = value->count; at > 0; at -= 2) {
        const struct pickle_value *name = pickle_item(pickle, value, at - 2);

        if (name->kind == PICKLE_TEXT && name->count == length &&
            memcmp(pickle->text + name->text, key, length) == 0)
            return at - 1;
    }
    return 0;
}

const struct pickle_value *pickle_find(const struct pickle *pickle,
                                       const struct pickle_value *value, const char *key)
{
    const size_t at = pickle_index(pickle, value, key);

    return at > 0 ? pickle_item(pickle, value, at) : NULL;
}

bool pickle_number(const struct pickle_value *value, uint64_t *out)
{
    if (!value || value->kind != PICKLE_INT || (value->is_negative && value->number > 0))
        return false;
    *out = value->number;
    return true;
}

const char *pickle_string(const struct pickle *pickle, const struct pickle_value *value)
{
    if (!value || value->kind != PICKLE_TEXT ||
        memchr(pickle->text + value->text, '\0', value->count))
        return NULL;
    return pickle->text + value->text;
}

void pickle_clear(struct pickle *pickle, const struct pickle_value *list)
{
    struct pickle_value *value = &pickle->values[list - pickle->values];

    pickle->memory_bytes -= pickle_capacity(value) * sizeof(*value->items);
    free(value->items);
    value->items = NULL;
    value->count = 0;
    value->has_spare = false;
}

#define SHORT_TEXT 64u /* bytes; longer strings are not shared */
/* Nesting to which items of a discarded value are released; deeper items remain. */
#define DEPTH_MAX 8u

static const char over_limit[] = "the pickle needs more than 1 GiB of host memory";
static const char out_of_memory[] = "out of host memory";

void pickle_store_init(struct pickle_store *store, struct pickle *out)
{
    memset(store, 0, sizeof(*store));
    store->out = out;
    store->unused = PICKLE_STORE_NONE;
}

void *pickle_store_reserve(struct pickle_store *store, void *array, size_t *capacity, size_t needed,
                           size_t size)
{
    size_t new_capacity = *capacity ? *capacity : 64;
    void *grown;

    if (needed <= *capacity)
        return array;
    while (new_capacity < needed && new_capacity < PICKLE_MEMORY)
        new_capacity *= 2;
    if (new_capacity - *capacity > (PICKLE_MEMORY - store->out->memory_bytes) / size) {
        store->error = over_limit;
        return NULL;
    }
    grown = realloc(array, new_capacity * size);
    if (!grown) {
        store->error = out_of_memory;
        return NULL;
    }
    store->out->memory_bytes += (new_capacity - *capacity) * size;
    *capacity = new_capacity;
    return grown;
}

/* --- Slots. --- */

static uint32_t add_value(struct pickle_store *store, const struct pickle_value *value)
{
    struct pickle *out = store->out;
    struct pickle_value *values;
    uint32_t slot = store->unused;

    if (slot != PICKLE_STORE_NONE) {
        store->unused = (uint32_t)out->values[slot].number;
        out->values[slot] = *value;
        return slot;
    }
    values =
        pickle_store_reserve(store, out->values, &out->capacity, out->count + 1, sizeof(*values));
    if (!values)
        return PICKLE_STORE_NONE;
    out->values = values;
    values[out->count] = *value;
    return (uint32_t)out->count++;
}

/* Get the slot in an entry of a table; an empty entry gets the slot of a new value. */
static uint32_t get_shared(struct pickle_store *store, uint32_t *entry,
                           const struct pickle_value *value)
{
    if (*entry == 0) {
        const uint32_t slot = add_value(store, value);

        if (slot == PICKLE_STORE_NONE)
            return slot;
        pickle_store_use(store, slot);
        *entry = slot + 1;
    }
    return *entry - 1;
}

uint32_t pickle_store_add(struct pickle_store *store, struct pickle_value value)
{
    if (value.kind == PICKLE_NONE)
        return get_shared(store, &store->constants[2], &value);
    if (value.kind == PICKLE_BOOL)
        return get_shared(store, &store->constants[value.number], &value);
    if (value.kind == PICKLE_INT && !value.is_negative && value.number < 256)
        return get_shared(store, &store->integers[value.number], &value);
    return add_value(store, &value);
}

void pickle_store_use_memo(struct pickle_store *store, uint32_t slot, uint32_t memo)
{
    struct pickle_value *value = &store->out->values[slot];

    value->use = value->use == PICKLE_USE_ONE ? PICKLE_USE_MEMO : PICKLE_USE_MANY;
    value->memo = memo;
}

void pickle_store_use(struct pickle_store *store, uint32_t slot)
{
    store->out->values[slot].use = PICKLE_USE_MANY;
}

/* --- Texts. --- */

/* FNV-1a, 32 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint32_t compute_hash(const void *bytes, size_t count)
{
    uint32_t sum = UINT32_C(0x811c9dc5);

    for (size_t i = 0; i < count; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * UINT32_C(0x01000193);
    return sum ^ sum >> 15;
}

uint32_t pickle_store_add_text(struct pickle_store *store, enum pickle_kind kind, size_t text,
                               uint32_t bytes)
{
    struct pickle *out = store->out;
    const struct pickle_value value = {.kind = (uint8_t)kind, .count = bytes, .text = text};
    const struct pickle_value *candidate;
    uint32_t *entry;

    if (bytes > SHORT_TEXT)
        return add_value(store, &value);
    entry = &store->texts[(compute_hash(out->text + text, bytes) + kind) % PICKLE_STORE_TEXTS];
    candidate = *entry ? &out->values[*entry - 1] : NULL;
    if (candidate && (candidate->kind != kind || candidate->count != bytes ||
                      memcmp(out->text + candidate->text, out->text + text, bytes) != 0))
        *entry = 0;
    else if (candidate)
        out->text_bytes = text;
    return get_shared(store, entry, &value);
}

/* --- Containers. --- */

/* Append items.  A container that is filled at once has no spare capacity; a container that is filled in parts doubles its
 * capacity. */
bool pickle_store_fill(struct pickle_store *store, uint32_t container, const uint32_t *items,
                       size_t count)
{
    struct pickle_value *value = &store->out->values[container];
    const size_t old_capacity = pickle_capacity(value);
    const size_t new_count = value->count + count;

    if (new_count > old_capacity) {
        const struct pickle_value filled = {.count = (uint32_t)new_count,
                                            .has_spare = value->count > 0};
        const size_t new_capacity = pickle_capacity(&filled);
        uint32_t *grown;

        if (new_capacity - old_capacity >
            (PICKLE_MEMORY - store->out->memory_bytes) / sizeof(*grown)) {
            store->error = over_limit;
            return false;
        }
        grown = realloc(value->items, new_capacity * sizeof(*grown));
        if (!grown) {
            store->error = out_of_memory;
            return false;
        }
        store->out->memory_bytes += (new_capacity - old_capacity) * sizeof(*grown);
        value->items = grown;
        value->has_spare = filled.has_spare;
    }
    if (count > 0)
        memcpy(value->items + value->count, items, count * sizeof(*items));
    value->count = (uint32_t)new_count;
    return true;
}

static bool are_shared(const struct pickle *pickle, const uint32_t *items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (pickle->values[items[i]].use != PICKLE_USE_MANY ||
            pickle->values[items[i]].kind >= PICKLE_LIST)
            return false;
    return true;
}

/* Add a tuple, which is shared with equal tuples unless another tuple has replaced them in the hash table. */
static uint32_t add_shared_tuple(struct pickle_store *store, const uint32_t *items, size_t count)
{
    uint32_t *entry =
        &store->tuples[compute_hash(items, count * sizeof(*items)) % PICKLE_STORE_TUPLES];
    const struct pickle_value tuple = {.kind = PICKLE_TUPLE};
    const struct pickle_value *candidate = *entry ? &store->out->values[*entry - 1] : NULL;
    uint32_t slot;

    if (candidate && candidate->count == count &&
        (count == 0 || memcmp(candidate->items, items, count * sizeof(*items)) == 0))
        return *entry - 1;
    *entry = 0;
    slot = get_shared(store, entry, &tuple);
    return slot == PICKLE_STORE_NONE || pickle_store_fill(store, slot, items, count)
               ? slot
               : PICKLE_STORE_NONE;
}

uint32_t pickle_store_add_tuple(struct pickle_store *store, const uint32_t *items, size_t count)
{
    const struct pickle_value tuple = {.kind = PICKLE_TUPLE};
    uint32_t slot;

    if (count < 4 && are_shared(store->out, items, count))
        return add_shared_tuple(store, items, count);
    slot = add_value(store, &tuple);
    return slot == PICKLE_STORE_NONE || pickle_store_fill(store, slot, items, count)
               ? slot
               : PICKLE_STORE_NONE;
}

/* --- Discarding. --- */

static void discard_value(struct pickle_store *store, uint32_t slot, unsigned depth)
{
    struct pickle *out = store->out;
    struct pickle_value *value = &out->values[slot];

    if (value->kind >= PICKLE_LIST) {
        for (size_t i = 0; i < value->count; i++)
            if (depth < DEPTH_MAX && out->values[value->items[i]].use == PICKLE_USE_ONE)
                discard_value(store, value->items[i], depth + 1);
        out->memory_bytes -= pickle_capacity(value) * sizeof(*value->items);
        free(value->items);
    }
    *value = (struct pickle_value){.kind = PICKLE_NONE, .number = store->unused};
    store->unused = slot;
}

void pickle_store_discard(struct pickle_store *store, uint32_t slot)
{
    discard_value(store, slot, 0);
}
