/* SPDX-License-Identifier: MIT */
/* The log of frees: what is remembered, how long, and how it is told. */
#include "src/core/stats/free_log.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Free n is of the block at n MiB, with n KiB. */
static void note(struct xseg_free_log *log, uint32_t capacity, uint64_t n)
{
    struct xseg_finding finding = {0};

    assert_int_equal(xseg_free_log_note(log, capacity, n << 20, n << 10), n);
    if (!xseg_free_log_audit(log, &finding))
        fail_msg("%s: %s", finding.tag, finding.text);
}

static bool has(struct xseg_free_log *log, uint64_t n, uint64_t *since)
{
    struct xseg_free_entry entry;

    if (!xseg_free_log_find(log, n << 20, &entry, since))
        return false;
    assert_int_equal(entry.number, n);
    assert_int_equal(entry.address, n << 20);
    assert_int_equal(entry.bytes, n << 10);
    assert_int_equal(entry.thread, gettid());
    assert_true(entry.depth > 1 && entry.depth <= XSEG_FREE_LOG_FRAMES);
    return true;
}

static void the_last_frees_are_remembered(void **state)
{
    struct xseg_free_log log;
    uint64_t since = 0;

    (void)state;
    xseg_free_log_init(&log);
    assert_int_equal(xseg_free_log_bytes(&log), 0);
    assert_false(has(&log, 1, &since));
    for (uint64_t n = 1; n <= 10; n++)
        note(&log, 4, n);
    assert_int_equal(xseg_free_log_bytes(&log), 4 * sizeof(struct xseg_free_entry));
    for (uint64_t n = 1; n <= 6; n++)
        assert_false(has(&log, n, &since));
    for (uint64_t n = 7; n <= 10; n++) {
        assert_true(has(&log, n, &since));
        assert_int_equal(since, 10 - n);
    }
    xseg_free_log_fini(&log);
}

/* Every byte of a block leads to its free, and the byte behind it does not. */
static void addresses_inside_a_block_lead_to_its_free(void **state)
{
    struct xseg_free_log log;
    struct xseg_free_entry entry;
    uint64_t since = 0;

    (void)state;
    xseg_free_log_init(&log);
    note(&log, 4, 1);
    note(&log, 4, 2);
    assert_true(xseg_free_log_find(&log, (2 << 20) + 2047, &entry, &since));
    assert_int_equal(entry.number, 2);
    assert_false(xseg_free_log_find(&log, (2 << 20) + 2048, &entry, &since));
    assert_false(xseg_free_log_find(&log, (2 << 20) - 1, &entry, &since));
    /* Of two frees of the same address the later one counts. */
    assert_int_equal(xseg_free_log_note(&log, 4, 1 << 20, 512), 3);
    assert_true(xseg_free_log_find(&log, 1 << 20, &entry, &since));
    assert_int_equal(entry.number, 3);
    assert_true(xseg_free_log_find(&log, (1 << 20) + 600, &entry, &since));
    assert_int_equal(entry.number, 1);
    assert_int_equal(since, 2);
    xseg_free_log_fini(&log);
}

static void another_capacity_keeps_what_fits(void **state)
{
    struct xseg_free_log log;
    uint64_t since = 0;

    (void)state;
    xseg_free_log_init(&log);
    for (uint64_t n = 1; n <= 5; n++)
        note(&log, 5, n);
    note(&log, 3, 6);
    assert_false(has(&log, 3, &since));
    assert_true(has(&log, 4, &since));
    assert_true(has(&log, 5, &since));
    note(&log, 100, 7);
    assert_false(has(&log, 3, &since));
    for (uint64_t n = 5; n <= 7; n++) {
        assert_true(has(&log, n, &since));
        assert_int_equal(since, 7 - n);
    }
    note(&log, 1, 8);
    assert_false(has(&log, 7, &since));
    assert_true(has(&log, 8, &since));
    xseg_free_log_fini(&log);
}

static void a_free_that_is_taken_back_is_forgotten(void **state)
{
    struct xseg_free_log log;
    uint64_t since = 0;

    (void)state;
    xseg_free_log_init(&log);
    for (uint64_t n = 1; n <= 3; n++)
        note(&log, 2, n);
    xseg_free_log_withdraw(&log, 3);
    assert_false(has(&log, 3, &since));
    assert_true(has(&log, 2, &since));
    /* Taking back a free that is not remembered any more leaves the others as they are. */
    xseg_free_log_withdraw(&log, 1);
    note(&log, 2, 4);
    assert_true(has(&log, 4, &since));
    assert_false(has(&log, 2, &since));
    xseg_free_log_fini(&log);
}

static void a_free_is_told_in_one_sentence(void **state)
{
    struct xseg_free_log log;
    struct xseg_text text;
    char buffer[1024], want[128];

    (void)state;
    xseg_free_log_init(&log);
    xseg_text_init(&text, buffer, sizeof(buffer));
    note(&log, 4, 1);
    note(&log, 4, 2);
    assert_false(xseg_free_log_describe(&log, 5, "; it was ", &text));
    assert_int_equal(text.length, 0);
    assert_true(xseg_free_log_describe(&log, 1 << 20, "; it was ", &text));
    (void)snprintf(want, sizeof(want),
                   "; it was freed as number 1, 1 free ago, by thread %d, with the 1024 bytes at "
                   "0x100000, from ",
                   (int)gettid());
    if (strncmp(buffer, want, strlen(want)) != 0)
        fail_msg("%s", buffer);
    /* The stack is that of the caller, who is in this program. */
    assert_non_null(strstr(buffer, "test-unit-free_log+0x"));
    assert_non_null(strstr(buffer, " < "));
    xseg_free_log_fini(&log);
}

static void a_wrong_entry_is_found(void **state)
{
    struct xseg_finding finding = {0};
    struct xseg_free_log log;

    (void)state;
    xseg_free_log_init(&log);
    for (uint64_t n = 1; n <= 6; n++)
        note(&log, 4, n);
    log.ring[2].number++;
    assert_false(xseg_free_log_audit(&log, &finding));
    assert_string_equal(finding.tag, "FREELOG-1");
    log.ring[2].number = 2;
    assert_false(xseg_free_log_audit(&log, &finding));
    log.ring[2].number = 6;
    assert_true(xseg_free_log_audit(&log, &finding));
    xseg_free_log_fini(&log);
}

/* --- Threads note and look at the same time, with capacities that differ. --- */

static void *note_many(void *self)
{
    struct xseg_free_log *log = self;
    struct xseg_free_entry entry;
    uint64_t since;

    for (uint64_t i = 1; i <= 500; i++) {
        const uint64_t number = xseg_free_log_note(log, 8 + (uint32_t)(i % 2), i << 12, 4096);

        if (number == 0 ||
            (xseg_free_log_find(log, i << 12, &entry, &since) && entry.address != i << 12))
            abort();
        if (i % 7 == 0)
            xseg_free_log_withdraw(log, number);
    }
    return NULL;
}

static void threads_share_a_log(void **state)
{
    struct xseg_finding finding = {0};
    struct xseg_free_log log;
    pthread_t thread[4];

    (void)state;
    xseg_free_log_init(&log);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, note_many, &log), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(log.count, 2000);
    assert_true(xseg_free_log_audit(&log, &finding));
    xseg_free_log_fini(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_frees_are_remembered),
        cmocka_unit_test(addresses_inside_a_block_lead_to_its_free),
        cmocka_unit_test(another_capacity_keeps_what_fits),
        cmocka_unit_test(a_free_that_is_taken_back_is_forgotten),
        cmocka_unit_test(a_free_is_told_in_one_sentence),
        cmocka_unit_test(a_wrong_entry_is_found),
        cmocka_unit_test(threads_share_a_log),
    };

    return cmocka_run_group_tests_name("free_log", tests, NULL, NULL);
}
