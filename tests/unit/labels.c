/* SPDX-License-Identifier: MIT */
/* Labels: each text once, found again from any thread, cut where it is long, refused where there is no room. */
#include "src/core/history/labels.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/error.h"

struct scene {
    struct xseg_lock lock;
    struct xseg_history_labels labels;
};

static int set_up(void **state)
{
    static struct scene scene;

    xseg_lock_init(&scene.lock, XSEG_RANK_HISTORY);
    xseg_history_labels_init(&scene.labels, &scene.lock);
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *scene = *state;

    xseg_history_labels_fini(&scene->labels);
    xseg_lock_fini(&scene->lock);
    return 0;
}

static uint32_t add(struct scene *scene, const char *text)
{
    uint32_t label = 0;

    assert_int_equal(xseg_history_labels_add(&scene->labels, text, &label), XSEG_OK);
    assert_int_not_equal(label, 0);
    return label;
}

static void each_text_is_kept_once(void **state)
{
    struct scene *scene = *state;
    char text[32];

    assert_null(xseg_history_labels_text(&scene->labels, 0));
    const uint32_t first = add(scene, "first");
    const char *kept = xseg_history_labels_text(&scene->labels, first);
    const size_t used = scene->labels.memory.used;
    assert_int_equal(add(scene, "first"), first);
    assert_int_equal(scene->labels.memory.used, used);
    for (unsigned i = 0; i < 1000; i++) {
        (void)snprintf(text, sizeof(text), "step %u", i);
        const uint32_t label = add(scene, text);
        assert_int_not_equal(label, first);
        assert_string_equal(xseg_history_labels_text(&scene->labels, label), text);
        assert_int_equal(add(scene, text), label);
    }
    /* A text stays where it is. */
    assert_ptr_equal(xseg_history_labels_text(&scene->labels, first), kept);
    assert_string_equal(kept, "first");
}

static void long_texts_are_cut(void **state)
{
    struct scene *scene = *state;
    char text[400];

    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    const uint32_t label = add(scene, text);
    assert_int_equal(strlen(xseg_history_labels_text(&scene->labels, label)),
                     XSEG_HISTORY_LABEL_BYTES - 1);
    /* What is kept of both is equal, and so is the number. */
    text[XSEG_HISTORY_LABEL_BYTES - 1] = 'b';
    assert_int_equal(add(scene, text), label);
    text[XSEG_HISTORY_LABEL_BYTES - 1] = '\0';
    assert_int_equal(add(scene, text), label);
    text[XSEG_HISTORY_LABEL_BYTES - 2] = '\0';
    assert_int_not_equal(add(scene, text), label);
    /* An empty text is a label, too. */
    assert_string_equal(xseg_history_labels_text(&scene->labels, add(scene, "")), "");
}

/* A programme whose texts are all different stops at the bound, and what it has stays. */
static void texts_without_end_are_refused(void **state)
{
    struct scene *scene = *state;
    const uint32_t first = add(scene, "first");
    xseg_status status = XSEG_OK;
    uint32_t label = 1, count = 0;
    char text[32];

    while (status == XSEG_OK) {
        (void)snprintf(text, sizeof(text), "request %u", count++);
        status = xseg_history_labels_add(&scene->labels, text, &label);
    }
    assert_int_equal(status, XSEG_ERR_LIMIT);
    assert_int_equal(label, 0);
    (void)xseg_error_text(text, sizeof(text));
    assert_non_null(strstr(text, "label \"request "));
    assert_in_range(count, 100000, XSEG_HISTORY_LABELS_BYTES / 16);
    assert_int_equal(add(scene, "first"), first);
    assert_int_equal(add(scene, "request 5") != 0, true);
    (void)snprintf(text, sizeof(text), "request %u", count);
    assert_int_equal(xseg_history_labels_add(&scene->labels, text, &label), XSEG_ERR_LIMIT);
}

#define THREADS 4
#define TEXTS   20000

struct worker {
    struct scene *scene;
    uint32_t label[TEXTS];
};

static void *add_all(void *argument)
{
    struct worker *worker = argument;
    char text[32];

    for (unsigned i = 0; i < TEXTS; i++) {
        (void)snprintf(text, sizeof(text), "%u", i);
        if (xseg_history_labels_add(&worker->scene->labels, text, &worker->label[i]) != XSEG_OK ||
            strcmp(xseg_history_labels_text(&worker->scene->labels, worker->label[i]), text) != 0)
            return NULL;
    }
    return worker;
}

static void threads_get_one_number_for_one_text(void **state)
{
    static struct worker worker[THREADS];
    pthread_t thread[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        worker[i].scene = *state;
        assert_int_equal(pthread_create(&thread[i], NULL, add_all, &worker[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *end = NULL;

        assert_int_equal(pthread_join(thread[i], &end), 0);
        assert_non_null(end);
    }
    for (unsigned i = 1; i < THREADS; i++)
        assert_memory_equal(worker[i].label, worker[0].label, sizeof(worker[0].label));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_text_is_kept_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_texts_are_cut, set_up, tear_down),
        cmocka_unit_test_setup_teardown(texts_without_end_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(threads_get_one_number_for_one_text, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
