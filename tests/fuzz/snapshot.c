/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a pickle of a memory snapshot; the first opcode is given, so that none is a trace.
 * Every value of a pickle that is accepted is in range, and what it is as a trace can be replayed.
 */
#include "src/tools/pickle.h"
#include "tests/fuzz/replayable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_value(const struct pickle *pickle, const struct pickle_value *value)
{
    uint64_t number;

    HOLDS(value->kind <= PICKLE_DICT);
    HOLDS(pickle_count(value) <= value->count);
    HOLDS(value->kind != PICKLE_DICT || value->count % 2 == 0);
    for (size_t i = 0; i < pickle_count(value); i++)
        HOLDS(value->items[i] < pickle->count);
    if (value->kind == PICKLE_TEXT || value->kind == PICKLE_BYTES) {
        HOLDS(value->text + value->count < pickle->text_bytes);
        HOLDS(pickle->text[value->text + value->count] == '\0');
    }
    HOLDS(!pickle_number(value, &number) || value->kind == PICKLE_INT);
    (void)pickle_find(pickle, value, "segments");
}

static void read_pickle(const uint8_t *data, size_t size)
{
    FILE *file = fmemopen((void *)(uintptr_t)data, size, "rb");
    struct input *input = file == NULL ? NULL : input_open(file);
    struct pickle_fault fault = {0, ""};
    struct pickle pickle;

    if (input == NULL)
        abort();
    if (pickle_read(input, &pickle, &fault)) {
        HOLDS(pickle_top(&pickle) < pickle.values + pickle.count);
        HOLDS(pickle.held <= PICKLE_MEMORY);
        for (size_t i = 0; i < pickle.count; i++)
            check_value(&pickle, &pickle.values[i]);
        pickle_fini(&pickle);
    } else {
        HOLDS(fault.text[0] != '\0');
        HOLDS(fault.byte <= size);
    }
    input_close(input);
    (void)fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = size > 0 ? malloc(size) : NULL;

    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    copy[0] = PICKLE_PROTO;
    read_pickle(copy, size);
    read_any(copy, size);
    free(copy);
    return 0;
}
