/* SPDX-License-Identifier: MIT */
/* The key snapshot_signal: who writes the snapshot, what is refused, and whose the signal is afterwards. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/scene.h"

static char folder[64];

static int make_folder(void **state)
{
    static const int numbers[] = {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

    (void)state;
    /* Shells start what runs in the background with some signals ignored. */
    for (unsigned i = 0; i < COUNT_OF(numbers); i++)
        (void)signal(numbers[i], SIG_DFL);
    (void)snprintf(folder, sizeof(folder), "%s", P_tmpdir "/xseg-signalled-XXXXXX");
    return mkdtemp(folder) == NULL;
}

/* How many complete snapshots are in the folder; nothing else may be there. */
static unsigned count_files(bool removes)
{
    DIR *listed = opendir(folder);
    struct dirent *entry;
    unsigned count = 0;

    assert_non_null(listed);
    while ((entry = readdir(listed)) != NULL) {
        char path[400], first[2] = "";
        FILE *file;

        if (entry->d_name[0] == '.' || strstr(entry->d_name, ".part") != NULL)
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        file = fopen(path, "rb");
        assert_non_null(file);
        assert_int_equal(fread(first, 1, 2, file), 2);
        assert_memory_equal(first, "\x80\x04", 2);
        assert_int_equal(fseek(file, -1, SEEK_END), 0);
        assert_int_equal(fgetc(file), '.');
        assert_int_equal(fclose(file), 0);
        if (removes)
            assert_int_equal(unlink(path), 0);
        count++;
    }
    assert_int_equal(closedir(listed), 0);
    return count;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)count_files(true);
    return rmdir(folder);
}

static struct xseg_allocator *open_with(const char *keys)
{
    char config[256];

    (void)snprintf(config, sizeof(config), "history:all,oom_snapshot:%s%s", folder, keys);
    return scene_open(config);
}

static xseg_status try_open_with(const char *keys, struct xseg_allocator **out)
{
    char config[256];

    (void)snprintf(config, sizeof(config), "oom_snapshot:%s%s", folder, keys);
    return scene_try_open(config, out);
}

static bool has_handler(int number)
{
    struct sigaction now;

    assert_int_equal(sigaction(number, NULL, &now), 0);
    return now.sa_handler != SIG_DFL;
}

/* A call that the cache cannot serve. */
static void miss(struct xseg_allocator *allocator)
{
    static size_t bytes = 2 * MIB;

    bytes += 2 * MIB;
    void *ptr = scene_alloc(allocator, bytes, NULL);
    scene_free(allocator, ptr);
}

static void hit(struct xseg_allocator *allocator)
{
    scene_free(allocator, scene_alloc(allocator, 4096, NULL));
}

/* --- Who writes. --- */

static void the_next_call_writes_once(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR2");
    char path[160];

    (void)state;
    hit(allocator);
    assert_int_equal(count_files(false), 0);
    assert_int_equal(raise(SIGUSR2), 0);
    assert_int_equal(count_files(false), 0); /* the handler does not write */
    errno = ENOTTY;
    miss(allocator);
    assert_int_equal(errno, ENOTTY);
    (void)snprintf(path, sizeof(path), "%s/signal-pid%ld-1.pickle", folder, (long)getpid());
    assert_int_equal(access(path, F_OK), 0);
    miss(allocator);
    hit(allocator);
    assert_int_equal(xseg_tick(allocator, 0), XSEG_OK);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
}

static void a_tick_writes(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR1");

    (void)state;
    assert_int_equal(raise(SIGUSR1), 0);
    assert_int_equal(xseg_tick(allocator, 0), XSEG_OK);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
}

static void any_other_call_writes(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:HUP");

    (void)state;
    hit(allocator);
    assert_int_equal(raise(SIGHUP), 0);
    (void)scene_stats(allocator);
    assert_int_equal(count_files(true), 1);
    assert_int_equal(raise(SIGHUP), 0);
    assert_int_equal(xseg_trim(allocator, NULL, NULL, NULL), XSEG_OK);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
}

static void a_hit_does_not_write(void **state)
{
    struct xseg_allocator *allocator = open_with(",history:nothing,snapshot_signal:QUIT");

    (void)state;
    hit(allocator);
    assert_int_equal(raise(SIGQUIT), 0);
    for (unsigned i = 0; i < 100; i++)
        hit(allocator);
    assert_int_equal(count_files(false), 0);
    assert_int_equal(xseg_tick(allocator, 0), XSEG_OK);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
}

static void the_background_thread_writes(void **state)
{
    struct xseg_allocator *allocator =
        open_with(",snapshot_signal:USR2,background_thread:True,idle_ms:10");
    const struct timespec moment = {0, 5000000};

    (void)state;
    hit(allocator);
    assert_int_equal(kill(getpid(), SIGUSR2), 0);
    for (unsigned i = 0; i < 2000 && count_files(false) == 0; i++)
        (void)nanosleep(&moment, NULL);
    assert_int_equal(count_files(false), 1);
    scene_close(allocator);
    assert_int_equal(count_files(true), 1);
}

static void signals_that_come_together_are_one(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR2");

    (void)state;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(raise(SIGUSR2), 0);
    miss(allocator);
    miss(allocator);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
}

static void the_error_text_stays(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR2");
    char before[256], after[256];
    void *ptr = NULL;

    (void)state;
    assert_int_equal(xseg_alloc(allocator, 99, 4096, NULL, &ptr), XSEG_ERR_ARGUMENT);
    (void)xseg_error_text(before, sizeof(before));
    assert_int_equal(raise(SIGUSR2), 0);
    assert_int_equal(rename(folder, P_tmpdir "/xseg-signalled-away"), 0);
    miss(allocator);
    assert_int_equal(rename(P_tmpdir "/xseg-signalled-away", folder), 0);
    (void)xseg_error_text(after, sizeof(after));
    assert_string_equal(after, before);
    assert_int_equal(count_files(true), 0);
    scene_close(allocator);
}

static void files_are_bounded_by_what_lies_in_the_folder(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR2,oom_snapshots:0");
    char path[160];

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(raise(SIGUSR2), 0);
        miss(allocator);
    }
    assert_int_equal(count_files(false), 16);
    (void)snprintf(path, sizeof(path), "%s/signal-pid%ld-7.pickle", folder, (long)getpid());
    assert_int_equal(unlink(path), 0);
    assert_int_equal(raise(SIGUSR2), 0);
    miss(allocator);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(count_files(true), 16);
    scene_close(allocator);
}

/* --- Several allocators, and threads. --- */

static void each_allocator_writes_its_own(void **state)
{
    struct xseg_allocator *first = open_with(",snapshot_signal:USR2"), *second = NULL, *none = NULL;

    (void)state;
    assert_int_equal(try_open_with(",snapshot_signal:USR2", &second), XSEG_OK);
    assert_int_equal(try_open_with("", &none), XSEG_OK);
    assert_int_equal(raise(SIGUSR2), 0);
    miss(first);
    miss(second);
    miss(none);
    assert_int_equal(count_files(true), 2);
    assert_int_equal(xseg_close(second), XSEG_OK);
    assert_true(has_handler(SIGUSR2));
    assert_int_equal(raise(SIGUSR2), 0);
    miss(first);
    assert_int_equal(count_files(true), 1);
    assert_int_equal(xseg_close(none), XSEG_OK);
    scene_close(first);
    assert_false(has_handler(SIGUSR2));
}

static atomic_bool ends;

static void *work(void *self)
{
    void *ptr = NULL;

    for (size_t bytes = 2 * MIB; !atomic_load(&ends); bytes = bytes % (64 * MIB) + 2 * MIB) {
        assert_int_equal(xseg_alloc(self, 0, bytes, NULL, &ptr), XSEG_OK);
        assert_int_equal(xseg_free(self, ptr), XSEG_OK);
        assert_int_equal(xseg_trim(self, NULL, NULL, NULL), XSEG_OK);
    }
    return NULL;
}

static void it_is_written_while_threads_run(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR2");
    const struct timespec moment = {0, 1000000};
    pthread_t thread[3];
    unsigned written = 0;

    (void)state;
    atomic_store(&ends, false);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work, allocator), 0);
    for (unsigned i = 0; i < 20; i++) {
        unsigned found = 0;

        assert_int_equal(kill(getpid(), SIGUSR2), 0);
        for (unsigned turns = 0; turns < 10000 && (found = count_files(true)) == 0; turns++)
            (void)nanosleep(&moment, NULL);
        assert_true(found > 0);
        written += found;
    }
    atomic_store(&ends, true);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_in_range(written + count_files(true), 20, 21);
    scene_close(allocator);
}

static void *tick(void *self)
{
    while (!atomic_load(&ends))
        assert_int_equal(xseg_tick(self, 0), XSEG_OK);
    return NULL;
}

/* The counts of the two signals differ, and neither comes. */
static void a_change_of_the_signal_is_no_signal(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR1");
    pthread_t thread[2];

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(raise(SIGUSR1), 0);
    miss(allocator);
    assert_int_equal(count_files(true), 1);
    atomic_store(&ends, false);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, tick, allocator), 0);
    for (unsigned i = 0; i < 10000; i++)
        assert_int_equal(
            xseg_configure(allocator, i % 2 == 0 ? "snapshot_signal:USR2" : "snapshot_signal:USR1"),
            XSEG_OK);
    atomic_store(&ends, true);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(count_files(true), 0);
    assert_int_equal(raise(SIGUSR1), 0);
    miss(allocator);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
}

/* --- What is refused. --- */

static atomic_int handled;

static void handle(int number)
{
    atomic_store(&handled, number);
}

static void a_signal_that_is_handled_is_refused(void **state)
{
    struct xseg_allocator *allocator = NULL;
    struct sigaction now;

    (void)state;
    assert_true(signal(SIGUSR2, handle) == SIG_DFL);
    scene_expect_error(try_open_with(",snapshot_signal:USR2", &allocator), XSEG_ERR_CONFIG,
                       "snapshot_signal:USR2: the process handles this signal");
    assert_null(allocator);
    assert_int_equal(sigaction(SIGUSR2, NULL, &now), 0);
    assert_true(now.sa_handler == handle);
    assert_true(signal(SIGUSR2, SIG_IGN) == handle);
    scene_expect_error(try_open_with(",snapshot_signal:USR2", &allocator), XSEG_ERR_CONFIG,
                       "ignores");
    assert_true(signal(SIGUSR2, SIG_DFL) == SIG_IGN);
    assert_int_equal(try_open_with(",snapshot_signal:USR2", &allocator), XSEG_OK);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
}

static void another_handler_is_refused_by_configure_and_nothing_changes(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR1");
    char text[4096];

    (void)state;
    assert_true(signal(SIGUSR2, handle) == SIG_DFL);
    scene_expect_error(xseg_configure(allocator, "snapshot_signal:USR2,idle_ms:77"),
                       XSEG_ERR_CONFIG, "name another one");
    assert_int_equal(xseg_configuration(allocator, text, sizeof(text), NULL), XSEG_OK);
    assert_non_null(strstr(text, "snapshot_signal:USR1"));
    assert_null(strstr(text, "idle_ms:77"));
    assert_true(signal(SIGUSR2, SIG_DFL) == handle);
    assert_int_equal(raise(SIGUSR1), 0);
    miss(allocator);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
}

static void without_a_folder_it_is_refused(void **state)
{
    struct xseg_allocator *allocator = NULL;

    (void)state;
    scene_expect_error(scene_try_open("snapshot_signal:USR2", &allocator), XSEG_ERR_CONFIG,
                       "oom_snapshot:FOLDER");
    assert_false(has_handler(SIGUSR2));
    assert_int_equal(setenv("XSEG_OOM_SNAPSHOT", folder, 1), 0);
    assert_int_equal(scene_try_open("snapshot_signal:USR2", &allocator), XSEG_OK);
    assert_int_equal(raise(SIGUSR2), 0);
    miss(allocator);
    assert_int_equal(count_files(true), 1);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    assert_int_equal(unsetenv("XSEG_OOM_SNAPSHOT"), 0);
}

static char logged[1024];

static void keep_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)snprintf(logged, sizeof(logged), "%s", line);
}

static void a_folder_that_is_gone_is_a_line_of_the_log(void **state)
{
    struct xseg_options options = XSEG_OPTIONS_INIT;
    struct xseg_allocator *allocator = NULL;

    (void)state;
    options.driver = scene_driver();
    options.log = keep_line;
    assert_int_equal(setenv("XSEG_OOM_SNAPSHOT", folder, 1), 0);
    assert_int_equal(xseg_open("snapshot_signal:USR2", &options, &allocator), XSEG_OK);
    assert_int_equal(unsetenv("XSEG_OOM_SNAPSHOT"), 0);
    assert_int_equal(raise(SIGUSR2), 0);
    assert_int_equal(xseg_tick(allocator, 0), XSEG_OK);
    assert_non_null(strstr(logged, "no snapshot for SIGUSR2: the variable XSEG_OOM_SNAPSHOT"));
    assert_int_equal(count_files(false), 0);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
}

static void other_words_are_refused(void **state)
{
    struct xseg_allocator *allocator = NULL;

    (void)state;
    scene_expect_error(scene_try_open("snapshot_signal:SIGUSR2", &allocator), XSEG_ERR_CONFIG,
                       "expected HUP, QUIT, USR1, USR2 or none");
    scene_expect_error(scene_try_open("snapshot_signal:KILL", &allocator), XSEG_ERR_CONFIG,
                       "expected HUP");
}

/* --- Whose the signal is. --- */

static void the_disposition_is_given_back(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR2");
    struct sigaction now;

    (void)state;
    assert_true(has_handler(SIGUSR2));
    assert_int_equal(xseg_configure(allocator, "snapshot_signal:USR1"), XSEG_OK);
    assert_false(has_handler(SIGUSR2));
    assert_true(has_handler(SIGUSR1));
    assert_int_equal(xseg_configure(allocator, "snapshot_signal:none"), XSEG_OK);
    assert_false(has_handler(SIGUSR1));
    assert_int_equal(xseg_configure(allocator, "snapshot_signal:USR2"), XSEG_OK);
    /* What the programme has set since stays. */
    (void)signal(SIGUSR2, handle);
    scene_close(allocator);
    assert_int_equal(sigaction(SIGUSR2, NULL, &now), 0);
    assert_true(now.sa_handler == handle);
    (void)signal(SIGUSR2, SIG_DFL);
}

static void a_signal_from_before_the_key_is_not_meant(void **state)
{
    struct xseg_allocator *first = open_with(",snapshot_signal:USR2"), *second = NULL;

    (void)state;
    assert_int_equal(raise(SIGUSR2), 0);
    assert_int_equal(try_open_with(",snapshot_signal:USR2", &second), XSEG_OK);
    miss(second);
    assert_int_equal(count_files(true), 0);
    miss(first);
    assert_int_equal(count_files(true), 1);
    assert_int_equal(xseg_close(second), XSEG_OK);
    scene_close(first);
}

/* The child of a fork outlives the signal, and writes nothing. */
static void a_forked_child_writes_nothing(void **state)
{
    struct xseg_allocator *allocator = open_with(",snapshot_signal:USR2");
    int status = 0;

    (void)state;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(raise(SIGUSR2) == 0 && xseg_tick(allocator, 0) == XSEG_ERR_FORKED ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    miss(allocator);
    assert_int_equal(count_files(false), 0);
    assert_int_equal(raise(SIGUSR2), 0);
    miss(allocator);
    assert_int_equal(count_files(true), 1);
    scene_close(allocator);
    assert_false(has_handler(SIGUSR2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_call_writes_once),
        cmocka_unit_test(a_tick_writes),
        cmocka_unit_test(any_other_call_writes),
        cmocka_unit_test(a_hit_does_not_write),
        cmocka_unit_test(the_background_thread_writes),
        cmocka_unit_test(signals_that_come_together_are_one),
        cmocka_unit_test(the_error_text_stays),
        cmocka_unit_test(files_are_bounded_by_what_lies_in_the_folder),
        cmocka_unit_test(each_allocator_writes_its_own),
        cmocka_unit_test(it_is_written_while_threads_run),
        cmocka_unit_test(a_change_of_the_signal_is_no_signal),
        cmocka_unit_test(a_signal_that_is_handled_is_refused),
        cmocka_unit_test(another_handler_is_refused_by_configure_and_nothing_changes),
        cmocka_unit_test(without_a_folder_it_is_refused),
        cmocka_unit_test(a_folder_that_is_gone_is_a_line_of_the_log),
        cmocka_unit_test(other_words_are_refused),
        cmocka_unit_test(the_disposition_is_given_back),
        cmocka_unit_test(a_signal_from_before_the_key_is_not_meant),
        cmocka_unit_test(a_forked_child_writes_nothing),
    };

    return cmocka_run_group_tests_name("signalled", tests, make_folder, remove_folder);
}
