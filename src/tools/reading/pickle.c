/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/pickle.h"

#include <stdlib.h>
#include <string.h>

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

    while (value->has_room && power < value->count)
        power *= 2;
    return value->has_room ? power : value->count;
}

const struct pickle_value *pickle_item(const struct pickle *pickle,
                                       const struct pickle_value *value, size_t at)
{
    return &pickle->values[value->items[at]];
}

size_t pickle_place(const struct pickle *pickle, const struct pickle_value *value, const char *key)
{
    const size_t length = strlen(key);

    if (!value || value->kind != PICKLE_DICT)
        return 0;
    /* Of a key that comes again the last one counts. */
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
    const size_t at = pickle_place(pickle, value, key);

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

void pickle_empty(struct pickle *pickle, const struct pickle_value *list)
{
    struct pickle_value *value = &pickle->values[list - pickle->values];

    pickle->held -= pickle_capacity(value) * sizeof(*value->items);
    free(value->items);
    value->items = NULL;
    value->count = 0;
    value->has_room = false;
}
