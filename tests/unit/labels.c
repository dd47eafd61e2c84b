/* SPDX-License-Identifier: MIT */
/* Labels: a table that stores each string once, sweeps that drop unused labels, and the limit of the table. */
#include "src/core/history/labels.h"
#include "tests/support/audit.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct xseg_history_labels labels;

FIXTURE(set_up)
{
    xseg_history_labels_init(&labels);
}

FIXTURE(tear_down)
{
    xseg_history_labels_fini(&labels);
}

static enum xseg_history_labels_outcome try_add(const char *text, uint32_t *label)
{
    xseg_mutex_lock(&labels.lock);
    const enum xseg_history_labels_outcome outcome = xseg_history_labels_add(&labels, text, label);
    xseg_mutex_unlock(&labels.lock);
    return outcome;
}

static uint32_t add(const char *text)
{
    uint32_t label = 0;

    assert_true(try_add(text, &label) <= XSEG_HISTORY_LABELS_ADDED);
    assert_int_not_equal(label, 0);
    return label;
}

static uint32_t add_number(unsigned number)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "request %u", number);
    return add(text);
}

static void expect_labels_audit(const char *tag)
{
    xseg_mutex_lock(&labels.lock);
    expect_audit(xseg_history_labels_audit(&labels, &violation), tag);
    xseg_mutex_unlock(&labels.lock);
}

/* Run a sweep that finds these labels in use. */
static void sweep(const uint32_t *used, size_t count)
{
    xseg_mutex_lock(&labels.lock);
    xseg_history_labels_begin(&labels);
    for (size_t i = 0; i < count; i++)
        xseg_history_labels_mark(&labels, used[i]);
    xseg_history_labels_drop(&labels);
    xseg_mutex_unlock(&labels.lock);
}

static bool is_due(void)
{
    xseg_mutex_lock(&labels.lock);
    const bool due = xseg_history_labels_is_due(&labels);
    xseg_mutex_unlock(&labels.lock);
    return due;
}

TEST_WITH(each_string_is_stored_once, set_up, tear_down)
{
    uint32_t label;

    assert_null(xseg_history_labels_text(&labels, 0));
    assert_int_equal(try_add("first", &label), XSEG_HISTORY_LABELS_ADDED);
    const uint32_t first = label;
    const char *string = xseg_history_labels_text(&labels, first);
    assert_int_equal(try_add("first", &label), XSEG_HISTORY_LABELS_FOUND);
    assert_int_equal(label, first);
    assert_int_equal(labels.count, 1);
    for (unsigned i = 0; i < 1000; i++) {
        char text[32];

        (void)snprintf(text, sizeof(text), "request %u", i);
        label = add_number(i);
        assert_int_not_equal(label, first);
        assert_string_equal(xseg_history_labels_text(&labels, label), text);
        assert_int_equal(add_number(i), label);
    }
    /* The first string has not moved. */
    assert_ptr_equal(xseg_history_labels_text(&labels, first), string);
    assert_string_equal(string, "first");
    assert_int_equal(labels.count, 1001);
    expect_labels_audit(NULL);
}

TEST_WITH(long_strings_are_truncated, set_up, tear_down)
{
    char text[400];

    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    const uint32_t label = add(text);
    assert_int_equal(strlen(xseg_history_labels_text(&labels, label)),
                     XSEG_HISTORY_LABEL_BYTES - 1);
    /* Strings that are equal after truncation have one ID. */
    text[XSEG_HISTORY_LABEL_BYTES - 1] = 'b';
    assert_int_equal(add(text), label);
    text[XSEG_HISTORY_LABEL_BYTES - 1] = '\0';
    assert_int_equal(add(text), label);
    text[XSEG_HISTORY_LABEL_BYTES - 2] = '\0';
    assert_int_not_equal(add(text), label);
    /* A prefix is another string. */
    assert_int_not_equal(add("aaaaaaaa"), add("aaaaaaaaa"));
    assert_int_not_equal(add("aaaaaaa"), add("aaaaaaaa"));
    /* An empty string is a label. */
    assert_string_equal(xseg_history_labels_text(&labels, add("")), "");
    expect_labels_audit(NULL);
}

/* Records of dropped labels are reused; the other labels keep their records. */
TEST_WITH(unmarked_labels_are_dropped, set_up, tear_down)
{
    uint32_t labels_in_use[100], label;

    for (unsigned i = 0; i < 1000; i++)
        if (i % 10 == 0)
            labels_in_use[i / 10] = add_number(i);
        else
            (void)add_number(i);
    const size_t used = labels.memory.used;
    sweep(labels_in_use, 100);
    assert_int_equal(labels.count, 100);
    expect_labels_audit(NULL);
    for (unsigned i = 0; i < 1000; i += 10)
        assert_int_equal(add_number(i), labels_in_use[i / 10]);
    for (unsigned i = 1000; i < 1900; i++)
        (void)add_number(i);
    assert_int_equal(labels.memory.used, used);
    expect_labels_audit(NULL);
    /* 0 is no label, and a dropped label is not marked. */
    sweep(labels_in_use, 1);
    xseg_mutex_lock(&labels.lock);
    xseg_history_labels_mark(&labels, 0);
    xseg_history_labels_mark(&labels, labels_in_use[5]);
    xseg_mutex_unlock(&labels.lock);
    assert_int_equal(labels.count, 1);
    assert_int_equal(try_add("request 50", &label), XSEG_HISTORY_LABELS_ADDED);
    expect_labels_audit(NULL);
}

TEST_WITH(labels_created_during_a_sweep_are_kept, set_up, tear_down)
{
    const uint32_t old = add("old"), found = add("found");

    xseg_mutex_lock(&labels.lock);
    xseg_history_labels_begin(&labels);
    xseg_mutex_unlock(&labels.lock);
    const uint32_t created = add("new");
    assert_int_equal(add("found"), found);
    xseg_mutex_lock(&labels.lock);
    xseg_history_labels_drop(&labels);
    xseg_mutex_unlock(&labels.lock);
    assert_int_equal(labels.count, 2);
    assert_int_equal(add("new"), created);
    assert_int_equal(add("old"), old); /* its record was free */
    sweep(&created, 1);
    assert_int_equal(labels.count, 1);
    expect_labels_audit(NULL);
}

/* Marks of a sweep with readers do not count in the next sweep. */
TEST_WITH(readers_keep_all_labels, set_up, tear_down)
{
    const uint32_t label = add("read");

    (void)add("unused");
    xseg_history_labels_begin_reading(&labels);
    xseg_history_labels_begin_reading(&labels);
    sweep(&label, 1);
    xseg_history_labels_end_reading(&labels);
    sweep(NULL, 0);
    assert_string_equal(xseg_history_labels_text(&labels, label), "read");
    assert_int_equal(labels.count, 2);
    xseg_history_labels_end_reading(&labels);
    sweep(&label, 1);
    assert_int_equal(labels.count, 1);
    sweep(NULL, 0);
    assert_int_equal(labels.count, 0);
}

/* The sweep counter wraps during the test. */
TEST_WITH(a_label_that_is_always_in_use_outlives_all_sweeps, set_up, tear_down)
{
    const uint32_t label = add("used");

    labels.sweep = UINT16_MAX - 1;
    for (unsigned i = 0; i < 4; i++) {
        (void)add_number(i);
        sweep(&label, 1);
        assert_int_equal(labels.count, 1);
        expect_labels_audit(NULL);
    }
}

TEST_WITH(a_sweep_is_due_after_many_new_labels, set_up, tear_down)
{
    uint32_t labels_in_use[1000];
    unsigned count = 0;

    for (; !is_due(); count++)
        if (count < 1000)
            labels_in_use[count] = add_number(count);
        else
            (void)add_number(count);
    assert_int_equal(count, XSEG_HISTORY_LABELS_FRESH);
    xseg_history_labels_begin_reading(&labels); /* a sweep would drop nothing */
    assert_false(is_due());
    xseg_history_labels_end_reading(&labels);
    assert_true(is_due());
    sweep(labels_in_use, 1000);
    for (count = 0; !is_due(); count++)
        (void)add_number(100000 + count);
    assert_int_equal(count, XSEG_HISTORY_LABELS_FRESH + 1000);
}

/* The limit is in bytes, and twice as high while there are readers. Labels in the table are found in any case, and
 * XSEG_HISTORY_LABELS_OTHER has a reserved record. */
TEST_WITH(full_table_returns_the_overflow_label_only, set_up, tear_down)
{
    const uint32_t first = add_number(0);
    uint32_t label = 1, count = 1;
    char text[100];

    for (unsigned readers = 0; readers < 2; readers++) {
        enum xseg_history_labels_outcome outcome = XSEG_HISTORY_LABELS_ADDED;

        if (readers == 1)
            xseg_history_labels_begin_reading(&labels);
        for (; outcome == XSEG_HISTORY_LABELS_ADDED; count++) {
            (void)snprintf(text, sizeof(text), "request %u%60s", count, "");
            outcome = try_add(text, &label);
        }
        count--;
        assert_int_equal(outcome, XSEG_HISTORY_LABELS_FULL);
        assert_int_equal(label, 0);
        /* A string has less than 100 bytes. */
        assert_in_range(labels.bytes, (readers + 1) * XSEG_HISTORY_LABELS_BYTES - 100,
                        (readers + 1) * XSEG_HISTORY_LABELS_BYTES);
        assert_int_equal(add_number(0), first);
        assert_int_equal(try_add(XSEG_HISTORY_LABELS_OTHER, &label),
                         readers == 0 ? XSEG_HISTORY_LABELS_ADDED : XSEG_HISTORY_LABELS_FOUND);
        assert_string_equal(xseg_history_labels_text(&labels, label), XSEG_HISTORY_LABELS_OTHER);
    }
    xseg_history_labels_end_reading(&labels);
    expect_labels_audit(NULL);
    sweep(&first, 1);
    assert_int_equal(try_add(text, &label), XSEG_HISTORY_LABELS_ADDED);
}

#define THREADS 4
#define STRINGS 20000

struct worker {
    uint32_t label[STRINGS];
};

static void *add_strings(void *argument)
{
    struct worker *worker = argument;
    char text[32];

    for (unsigned i = 0; i < STRINGS; i++) {
        (void)snprintf(text, sizeof(text), "%u", i);
        if (try_add(text, &worker->label[i]) > XSEG_HISTORY_LABELS_ADDED ||
            strcmp(xseg_history_labels_text(&labels, worker->label[i]), text) != 0)
            return NULL;
    }
    return worker;
}

TEST_WITH(concurrent_additions_of_a_string_return_one_id, set_up, tear_down)
{
    static struct worker worker[THREADS];
    pthread_t thread[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, add_strings, &worker[i]), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *result = NULL;

        assert_int_equal(pthread_join(thread[i], &result), 0);
        assert_non_null(result);
    }
    for (unsigned i = 1; i < THREADS; i++)
        assert_memory_equal(worker[i].label, worker[0].label, sizeof(worker[0].label));
}

TEST_WITH(audit_reports_the_violated_invariant, set_up, tear_down)
{
    char *text;

    (void)add("dropped");
    sweep(NULL, 0);
    text = (char *)(uintptr_t)xseg_history_labels_text(&labels, add("one"));
    (void)add("two");
    expect_labels_audit(NULL);
    WITH_VALUE(labels.count, labels.count + 1, expect_labels_audit("LABEL-1"));
    WITH_VALUE(text[0], 'O', expect_labels_audit("LABEL-1"));
    sweep(NULL, 0);
    labels.free = 0;
    expect_labels_audit("LABEL-2");
}
