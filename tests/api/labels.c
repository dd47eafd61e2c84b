/* SPDX-License-Identifier: MIT */
/* Labels that come without end: those that nothing has any more are dropped, and those in use stay what they are. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/history_list.h"

#define MANY 100000u /* labels: enough for several sweeps */

/* The text of a request: 119 bytes with `is_long`. */
static const char *text_of(unsigned number, bool is_long)
{
    static _Thread_local char text[120];

    (void)snprintf(text, sizeof(text), "request %08u%103s", number, "");
    text[is_long ? 119 : 16] = '\0';
    return text;
}

static void label(struct xseg_allocator *allocator, const char *text)
{
    assert_ok(xseg_history_label(allocator, text, NULL));
}

/* Requests that come and go, each with a label, a block, and nested scopes. */
static void serve(struct xseg_allocator *allocator, unsigned first, unsigned count)
{
    for (unsigned i = first; i < first + count; i++) {
        const char *outer = "not set", *inner = NULL;

        assert_ok(xseg_history_label(allocator, text_of(i, false), &outer));
        void *ptr = env_alloc(allocator, 1000, NULL);
        assert_ok(xseg_history_label(allocator, "phase", &inner));
        assert_string_equal(inner, text_of(i, false));
        env_free(allocator, ptr);
        label(allocator, inner);
        label(allocator, outer);
    }
}

static size_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %lu", &pages), 1);
    (void)fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

TEST(a_million_labels_take_bounded_memory)
{
    const unsigned count = ENV_IS_SANITIZED ? 300000 : 1000000;
    struct xseg_allocator *allocator = env_open("history:all,history_events:1000");

    serve(allocator, 0, MANY);
    const size_t before = resident_bytes();
    serve(allocator, MANY, count - MANY);
    const size_t after = resident_bytes();
    assert_true(ENV_IS_SANITIZED || after < before + 16 * MIB);
    env_close(allocator);
}

static const char *label_of(struct xseg_allocator *allocator, void *ptr)
{
    struct xseg_block_info info = {sizeof(info)};

    assert_ok(xseg_block_query(allocator, ptr, &info));
    return info.label;
}

/* Labels of live blocks, of kept events, of threads and of scopes, while others come and go. */
static void keep_labels(const char *config)
{
    enum { BLOCKS = 3000, DEPTH = 31 };
    static void *small[BLOCKS], *large[8];
    struct xseg_allocator *allocator = env_open(config);
    const char *before[DEPTH];
    xseg_stream side = env_stream();
    char text[32];

    for (unsigned i = 0; i < BLOCKS; i++) {
        label(allocator, text_of(i, false));
        small[i] = env_alloc(allocator, 600, NULL);
        if (i < COUNT_OF(large))
            large[i] = env_alloc(allocator, 3 * MIB, side);
    }
    assert_ok(xseg_history_annotate(allocator, 0, "an annotation"));
    label(allocator, "scope 0");
    for (unsigned i = 0; i < DEPTH; i++) {
        (void)snprintf(text, sizeof(text), "scope %u", i + 1);
        assert_ok(xseg_history_label(allocator, text, &before[i]));
    }
    for (unsigned i = 0; i < MANY; i++) {
        const char *inner = NULL;

        assert_ok(xseg_history_label(allocator, text_of(BLOCKS + i, false), &inner));
        label(allocator, inner);
        if (i % 1000 == 0)
            env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        assert_string_equal(label_of(allocator, small[i]), text_of(i, false));
        if (i < COUNT_OF(large))
            assert_string_equal(label_of(allocator, large[i]), text_of(i, false));
    }
    for (unsigned i = DEPTH; i-- > 0;) {
        (void)snprintf(text, sizeof(text), "scope %u", i);
        assert_string_equal(before[i], text);
        label(allocator, before[i]);
    }
    struct history_list recorded = history_read(allocator, 0);
    unsigned found = 0, texts = 0;
    for (size_t i = 0; i < recorded.count; i++) {
        if (recorded.entry[i].requested == 600)
            assert_string_equal(recorded.entry[i].label, text_of(found++, false));
        texts += recorded.entry[i].action == XSEG_HISTORY_ANNOTATION &&
                 strcmp(recorded.entry[i].label, "an annotation") == 0;
    }
    free(recorded.entry);
    assert_int_equal(found, BLOCKS);
    assert_int_equal(texts, 1);
    for (unsigned i = 0; i < BLOCKS; i++)
        env_free(allocator, small[i]);
    for (unsigned i = 0; i < COUNT_OF(large); i++)
        env_free(allocator, large[i]);
    env_close(allocator, side);
}

TEST(labels_in_use_stay)
{
    keep_labels("history:all,history_events:20000");
    keep_labels("history:all,history_events:20000,expandable_segments:False");
}

/* Nearly 16 MiB of labels of allocated blocks, and unused ones in addition; then more than that.  There is room as soon as
 * the blocks are freed. */
TEST(labels_become_other_only_while_all_are_in_use)
{
    enum { FIT = (16 << 20) / 120 };
    struct xseg_allocator *allocator = env_open("history:state");
    void **ptr = calloc(FIT + 1, sizeof(*ptr));
    unsigned count = 0;

    assert_non_null(ptr);
    for (unsigned round = 0; round < 2; round++) {
        for (count = 0; count < FIT - 100; count++) {
            label(allocator, text_of(round * MANY * 10 + count, true));
            ptr[count] = env_alloc(allocator, 512, NULL);
        }
        for (unsigned i = 0; i < 300; i++)
            label(allocator, text_of(MANY * 100 + i, true));
        for (; count <= FIT; count++) {
            label(allocator, text_of(round * MANY * 10 + count, true));
            ptr[count] = env_alloc(allocator, 512, NULL);
            if (strcmp(label_of(allocator, ptr[count]), "(other)") == 0)
                break;
        }
        assert_in_range(count, FIT - 1, FIT);
        for (unsigned i = 0; i < count; i += 997)
            assert_string_equal(label_of(allocator, ptr[i]), text_of(round * MANY * 10 + i, true));
        for (unsigned i = 0; i <= count; i++)
            env_free(allocator, ptr[i]);
        label(allocator, text_of(MANY * 200 + round, true));
        ptr[0] = env_alloc(allocator, 512, NULL);
        assert_string_equal(label_of(allocator, ptr[0]), text_of(MANY * 200 + round, true));
        env_free(allocator, ptr[0]);
    }
    free(ptr);
    env_close(allocator);
}

/* A walk keeps the texts of its entries, also while its own visits give labels without end. */
struct visit {
    struct xseg_allocator *allocator;
    unsigned seen;
    char first[32];
    const char *text;
};

static bool visit_one(void *context, const struct xseg_history_entry *entry)
{
    struct visit *visit = context;

    if (entry->action != XSEG_HISTORY_ALLOC)
        return true;
    if (visit->seen++ == 0) {
        (void)strcpy(visit->first, entry->label);
        visit->text = entry->label;
        assert_ok(xseg_history_clear(visit->allocator, -1));
        for (unsigned i = 0; i < MANY; i++)
            label(visit->allocator, text_of(MANY + i, false));
    }
    assert_string_equal(visit->text, visit->first);
    return visit->seen < 100;
}

TEST(a_walk_keeps_the_texts_of_its_entries)
{
    struct xseg_allocator *allocator = env_open("history:all");
    struct visit visit = {.allocator = allocator};

    serve(allocator, 0, 200);
    assert_ok(xseg_for_each_event(allocator, -1, visit_one, &visit, NULL));
    assert_int_equal(visit.seen, 100);
    serve(allocator, 5 * MANY, MANY);
    env_close(allocator);
}

/* Threads that end leave no label behind, and may have had any number of scopes. */
static void *label_and_end(void *context)
{
    const char *before = NULL;

    for (unsigned i = 0; i < 100; i++)
        assert_ok(xseg_history_label(context, text_of(i, true), &before));
    return NULL;
}

static pthread_key_t key;

/* Runs behind the library's own destructor in one order of keys, and before it in the other. */
static void label_at_the_end(void *context)
{
    const xseg_status status = xseg_history_label(context, "the end", NULL);
    void *ptr = env_alloc(context, 1000, NULL);
    const char *label = label_of(context, ptr);

    assert_true(status == XSEG_OK || status == XSEG_ERR_HOST_MEMORY);
    assert_true(label == NULL ? status != XSEG_OK : strcmp(label, "the end") == 0);
    env_free(context, ptr);
    assert_ok(xseg_history_label(context, NULL, NULL));
}

static void *label_until_the_end(void *context)
{
    assert_int_equal(pthread_setspecific(key, context), 0);
    return label_and_end(context);
}

TEST(threads_take_their_labels_along)
{
    struct xseg_allocator *allocator = env_open("history:all,history_events:100");

    assert_int_equal(pthread_key_create(&key, label_at_the_end), 0);
    for (unsigned i = 0; i < 50; i++) {
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL,
                                        i % 2 == 0 ? label_and_end : label_until_the_end,
                                        allocator),
                         0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    serve(allocator, 0, MANY);
    assert_int_equal(pthread_key_delete(key), 0);
    env_close(allocator);
}
