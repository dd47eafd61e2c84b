/* SPDX-License-Identifier: MIT */
/* Shared budget files: their names and creation, slots of processes, damage, forks and namespaces. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "tests/support/child.h"
#include "tests/support/namespaces.h"
#include "tests/support/shared_budgets.h"

static struct xseg_shared_budget budget, second_budget;

FIXTURE(join)
{
    budget_file_join(&budget);
}

FIXTURE(close_and_remove)
{
    xseg_shared_budget_close(&budget);
    xseg_shared_budget_close(&second_budget);
    (void)unlink(budget_file_path);
}

/* --- Files: resolution of names, creation and completion, rejected files, files that are truncated or removed. --- */

/* The contents of the file; ownership passes to the caller. */
static unsigned char *read_file(size_t *count)
{
    const int file = open(budget_file_path, O_RDONLY | O_CLOEXEC);
    struct stat status;

    assert_true(file >= 0);
    assert_int_equal(fstat(file, &status), 0);
    *count = (size_t)status.st_size;
    unsigned char *bytes = malloc(*count + 1);
    assert_non_null(bytes);
    assert_int_equal(read(file, bytes, *count + 1), status.st_size);
    assert_int_equal(close(file), 0);
    return bytes;
}

TEST_WITH(name_is_resolved_to_a_path, NULL, close_and_remove)
{
    char path[XSEG_SHARED_BUDGET_PATH], expected[XSEG_SHARED_BUDGET_PATH],
        name[XSEG_SHARED_BUDGET_PATH + 1];

    assert_ok(xseg_shared_budget_path("a-team_1.x", path));
    (void)snprintf(expected, sizeof(expected), "/dev/shm/xseg-%u-a-team_1.x", (unsigned)geteuid());
    assert_string_equal(path, expected);
    for (const char **input = (const char *[]){"/", "./x", "/some/where", "../x", NULL}; *input;
         input++) {
        assert_ok(xseg_shared_budget_path(*input, path));
        assert_string_equal(path, *input);
    }
    for (const char **input = (const char *[]){"", ".", "..", "a b", "a\n", "\xc3\xa4", NULL};
         *input; input++) {
        assert_error(xseg_shared_budget_path(*input, path), ARGUMENT,
                     "name of the shared budget file");
        assert_string_equal(path, "");
    }
    memset(name, 'a', sizeof(name));
    name[XSEG_SHARED_BUDGET_NAME] = '\0';
    assert_ok(xseg_shared_budget_path(name, path));
    name[XSEG_SHARED_BUDGET_NAME] = 'a';
    name[XSEG_SHARED_BUDGET_NAME + 1] = '\0';
    assert_int_equal(xseg_shared_budget_path(name, path), XSEG_ERR_ARGUMENT);
    memset(name, '/', sizeof(name));
    name[XSEG_SHARED_BUDGET_PATH - 1] = '\0';
    assert_ok(xseg_shared_budget_path(name, path));
    name[XSEG_SHARED_BUDGET_PATH - 1] = '/';
    name[XSEG_SHARED_BUDGET_PATH] = '\0';
    assert_int_equal(xseg_shared_budget_path(name, path), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_shared_budget_open(&budget, name), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_shared_budget_open(&budget, ""), XSEG_ERR_ARGUMENT);
    assert_false(xseg_shared_budget_is_own(&budget));
}

TEST_WITH(file_is_created_for_owner_and_group, NULL, close_and_remove)
{
    const mode_t previous_mask = umask(077);
    struct stat status;

    budget_file_join(&budget);
    (void)umask(previous_mask);
    assert_true(xseg_shared_budget_is_own(&budget));
    assert_int_equal(budget.slot, 0);
    assert_int_equal(stat(budget_file_path, &status), 0);
    assert_int_equal(status.st_mode, S_IFREG | 0660);
    assert_int_equal(status.st_size, BUDGET_FILE_BYTES);
    assert_true(status.st_blocks * 512 >= BUDGET_FILE_BYTES);
    assert_int_equal(fcntl(budget.file.descriptor, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    budget_file_expect(&budget, 1);
    assert_int_equal(budget.entries[0].state, XSEG_SHARED_BUDGET_FRESH);
    assert_int_equal(budget.entries[0].record.device_count, 0);
    assert_int_equal(budget.entries[0].record.pid, getpid());
    assert_true(budget.entries[0].record.name[0] != '\0');
    xseg_shared_budget_close(&budget);
    xseg_shared_budget_close(&budget);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FORKED);
    assert_int_equal(budget_file_write(&budget, 1), XSEG_ERR_FORKED);
    assert_int_equal(stat(budget_file_path, &status), 0);
    assert_int_equal(status.st_size, BUDGET_FILE_BYTES);
    budget_file_join(&budget);
    assert_int_equal(budget.slot, 0);
}

/* Expect that the file cannot be opened, with words in the error message, and is not changed. */
static void assert_rejected(const char *words)
{
    struct stat before, after;
    size_t bytes_before = 0, bytes_after = 0;
    unsigned char *contents_before = read_file(&bytes_before);

    assert_int_equal(stat(budget_file_path, &before), 0);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_false(xseg_shared_budget_is_own(&budget));
    assert_error_message(words);
    assert_error_message(budget_file_path);
    assert_int_equal(stat(budget_file_path, &after), 0);
    assert_int_equal(after.st_mode, before.st_mode);
    unsigned char *contents_after = read_file(&bytes_after);
    assert_int_equal(bytes_after, bytes_before);
    assert_memory_equal(contents_after, contents_before, bytes_before);
    free(contents_before);
    free(contents_after);
}

/* Create a shared budget file that no process uses. */
static void create_unused_budget_file(void)
{
    (void)unlink(budget_file_path);
    budget_file_join(&budget);
    const struct peer peer = peer_start();
    peer_kill(&peer);
    xseg_shared_budget_close(&budget);
}

/* The header has the magic at offset 0, the version at 16, and the size of the file, 528384 = 4096 + 64 * 8192, at 24. */
TEST_WITH(files_of_other_contents_are_rejected, NULL, close_and_remove)
{
    static const unsigned char nonzero = 1;

    budget_file_overwrite(0, "hello", 5);
    assert_rejected("not a shared budget file");
    create_unused_budget_file();
    budget_file_overwrite(3, "x", 1);
    assert_rejected("not a shared budget file");
    create_unused_budget_file();
    budget_file_overwrite(16, "\x63", 1);
    assert_rejected("does not match, 99 in ");
    create_unused_budget_file();
    budget_file_overwrite(24, "\x01", 1);
    assert_rejected("instead of 528384");
    create_unused_budget_file();
    budget_file_overwrite(BUDGET_FILE_BYTES, "", 1);
    assert_rejected("528385 bytes");
    create_unused_budget_file();
    assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES - 1), 0);
    assert_rejected("528383 bytes");

    /* Zeros except for one byte; and too many zeros. */
    assert_int_equal(truncate(budget_file_path, 0), 0);
    budget_file_overwrite(BUDGET_FILE_BYTES - 1, &nonzero, 1);
    assert_rejected("not a shared budget file");
    assert_int_equal(truncate(budget_file_path, 0), 0);
    assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES + 1), 0);
    assert_rejected("not a shared budget file");
}

TEST_WITH(files_of_another_kind_are_rejected, NULL, close_and_remove)
{
    char linked_path[sizeof(budget_file_path) + 8];

    (void)snprintf(linked_path, sizeof(linked_path), "%s.2", budget_file_path);
    assert_int_equal(mkdir(budget_file_path, 0700), 0);
    assert_error(xseg_shared_budget_open(&budget, budget_file_path), FILE, "directory");
    assert_int_equal(rmdir(budget_file_path), 0);
    assert_int_equal(mkfifo(budget_file_path, 0600), 0);
    assert_error(xseg_shared_budget_open(&budget, budget_file_path), FILE, "is not a regular file");
    create_unused_budget_file();
    assert_int_equal(link(budget_file_path, linked_path), 0);
    assert_rejected("second name");
    assert_int_equal(unlink(budget_file_path), 0);
    assert_int_equal(symlink(linked_path, budget_file_path), 0);
    assert_rejected("symbolic link");
    assert_int_equal(unlink(linked_path), 0);
    /* A dangling link creates no file at its target. */
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_int_equal(access(linked_path, F_OK), -1);
    assert_error(xseg_shared_budget_open(&budget, "./no-folder/budget"), FILE,
                 "./no-folder/budget");
}

TEST_WITH(files_of_other_modes_are_rejected, NULL, close_and_remove)
{
    int status = 1;

    create_unused_budget_file();
    assert_int_equal(chmod(budget_file_path, 0666), 0);
    assert_rejected("every user");
    assert_int_equal(chmod(budget_file_path, 0440), 0);
    const pid_t child = fork();
    if (child == 0) {
        char text[1024] = "";

        /* The superuser may open it. */
        if (geteuid() == 0 && (chmod(budget_file_folder, 0711) != 0 || seteuid(65534) != 0))
            _exit(0);
        status = xseg_shared_budget_open(&budget, budget_file_path);
        (void)xseg_error_message(text, sizeof(text));
        _exit(status == XSEG_ERR_FILE && strstr(text, "allow this process") != NULL ? 0 : 1);
    }
    child_expect_success(child);
}

TEST_WITH(incomplete_file_is_completed, NULL, close_and_remove)
{
    static const off_t sizes[] = {0, 1, 4096, 5000, BUDGET_FILE_BYTES};
    struct stat status;

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        const int file = open(budget_file_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

        assert_true(file >= 0);
        assert_int_equal(ftruncate(file, sizes[i]), 0);
        assert_int_equal(close(file), 0);
        budget_file_join(&budget);
        assert_int_equal(stat(budget_file_path, &status), 0);
        assert_int_equal(status.st_size, BUDGET_FILE_BYTES);
        assert_int_equal(status.st_mode, S_IFREG | 0660);
        const struct peer peer = peer_start();
        assert_int_equal(peer_call(&peer, 'r', 0), 2);
        peer_end(&peer);
        (void)close_and_remove(NULL);
    }
}

TEST_WITH(file_may_be_truncated_while_open, NULL, close_and_remove)
{
    static const off_t sizes[] = {0, 10, BUDGET_FILE_SLOTS_AT + 100, BUDGET_FILE_BYTES + 1};

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        const bool has_header = sizes[i] >= BUDGET_FILE_SLOTS_AT;

        budget_file_join(&budget);
        const struct peer peer = peer_start();
        assert_ok(xseg_shared_budget_read(&budget));
        assert_int_equal(truncate(budget_file_path, sizes[i]), 0);
        assert_error(xseg_shared_budget_read(&budget), FILE, "has changed to ");
        assert_int_equal(budget_file_count(&budget), 2);
        assert_error(budget_file_write(&budget, 3), FILE, budget_file_path);
        /* Once size and header are restored, the file is a shared budget file again for processes that have it open, and
         * they write truncated records again. */
        assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES), 0);
        assert_int_equal(peer_call(&peer, 'r', 0), has_header ? 2 : 255);
        assert_int_equal(peer_call(&peer, 'w', 0), has_header ? 0 : 255);
        assert_int_equal(budget_file_write(&budget, 3), has_header ? XSEG_OK : XSEG_ERR_FILE);
        if (has_header) {
            assert_ok(xseg_shared_budget_read(&budget));
            assert_true(budget_file_matches(&budget.entries[peer.slot].record, 0));
            assert_int_equal(budget.entries[peer.slot].state, XSEG_SHARED_BUDGET_FRESH);
        } else {
            /* A file of zeros becomes a shared budget file when a process opens it; one with a part of a header does
             * not. */
            xseg_shared_budget_close(&budget);
            assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path),
                             sizes[i] == 0 ? XSEG_OK : XSEG_ERR_FILE);
            assert_int_equal(peer_call(&peer, 'w', 0), sizes[i] == 0 ? 0 : 255);
            if (sizes[i] != 0) {
                (void)unlink(budget_file_path);
                budget_file_join(&budget);
            }
        }
        assert_int_equal(unlink(budget_file_path), 0);
        assert_error(xseg_shared_budget_read(&budget), FILE, "has been removed");
        assert_int_equal(budget_file_write(&budget, 4), XSEG_ERR_FILE);
        xseg_shared_budget_close(&budget);
        peer_end(&peer);
    }
}

/* --- Files that become foreign while members have them open. --- */

/* Write a foreign file over the shared budget file, as cp does: truncate, then write. */
static void overwrite(size_t bytes)
{
    char *text = malloc(bytes);

    assert_non_null(text);
    memset(text, 'x', bytes);
    assert_int_equal(truncate(budget_file_path, 0), 0);
    budget_file_overwrite(0, text, bytes);
    free(text);
}

static void empty_file(void)
{
    assert_int_equal(truncate(budget_file_path, 0), 0);
}

static void fill_with_zeros(void)
{
    empty_file();
    assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES), 0);
}

static void make_world_writable(void)
{
    assert_int_equal(chmod(budget_file_path, 0666), 0);
}

static char second_path[sizeof(budget_file_path) + 8];

static void add_hard_link(void)
{
    assert_int_equal(link(budget_file_path, second_path), 0);
}

static void rename_file(void)
{
    assert_int_equal(rename(budget_file_path, second_path), 0);
}

/* A foreign file is moved to the path, and the shared budget file is kept under another name. */
static void replace_by_rename(void)
{
    rename_file();
    budget_file_overwrite(0, "hello", 5);
}

/* A checksum of the file and of the one with the second name. */
static uint64_t checksum_files(void)
{
    char path[sizeof(budget_file_path)];
    uint64_t sum = 0;

    memcpy(path, budget_file_path, sizeof(path));
    for (unsigned i = 0; i < 2; i++) {
        size_t count = 0;

        (void)snprintf(budget_file_path, sizeof(budget_file_path), "%.120s%s", path,
                       i == 0 ? "" : ".2");
        if (access(budget_file_path, F_OK) == 0) {
            unsigned char *bytes = read_file(&count);

            for (size_t k = 0; k < count; k++)
                sum = (sum ^ bytes[k]) * 0x100000001b3u;
            sum = sum * 31 + count;
            free(bytes);
        }
        memcpy(budget_file_path, path, sizeof(path));
    }
    return sum;
}

TEST_WITH(replaced_file_is_never_written, NULL, close_and_remove)
{
    static const char foreign[] = "is not a shared budget file and remains unchanged";
    static const struct {
        const char *words;
        void (*change)(void);
        size_t overwritten;
        off_t offset;
        const char *byte;
    } cases[] = {
        {foreign, .overwritten = 10000},
        {foreign, .overwritten = BUDGET_FILE_BYTES},
        {foreign, .overwritten = BUDGET_FILE_BYTES + 1000},
        {"has changed to 0 bytes", empty_file},
        {"is not a shared budget file", fill_with_zeros},
        {"is not a shared budget file", .offset = 3, .byte = "x"},
        {"does not match, 2 in ", .offset = 16, .byte = "\x02"},
        {"instead of 528384", .offset = 24, .byte = "\x01"},
        {"every user", make_world_writable},
        {"second name", add_hard_link},
        {"has been renamed or replaced", rename_file},
        {"has been renamed or replaced", replace_by_rename},
    };

    (void)snprintf(second_path, sizeof(second_path), "%s.2", budget_file_path);
    for (unsigned i = 0; i < COUNT_OF(cases); i++) {
        budget_file_join(&budget);
        budget_file_write_ok(&budget, 1);
        const struct peer peer = peer_start();
        if (cases[i].overwritten != 0)
            overwrite(cases[i].overwritten);
        if (cases[i].byte != NULL)
            budget_file_overwrite(cases[i].offset, cases[i].byte, 1);
        if (cases[i].change != NULL)
            cases[i].change();
        const uint64_t checksum = checksum_files();
        /* Two members publish, read and close the file. */
        assert_error(budget_file_write(&budget, 2), FILE, budget_file_path);
        assert_error_message(cases[i].words);
        assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FILE);
        assert_int_equal(peer_call(&peer, 'w', 3), 255);
        peer_end(&peer);
        (void)xseg_fail(XSEG_ERR_ARGUMENT, "an earlier message");
        xseg_shared_budget_close(&budget);
        assert_error_message("an earlier message");
        if (checksum_files() != checksum)
            fail_msg("case %u: a foreign file was written", i);
        (void)unlink(budget_file_path);
        (void)unlink(second_path);
    }
}

/* A program may close all descriptors that it did not open, and open files with the same numbers. */
TEST_WITH(descriptor_may_be_closed_by_the_program, NULL, close_and_remove)
{
    char other_path[sizeof(budget_file_path) + 8], byte = 0;

    (void)snprintf(other_path, sizeof(other_path), "%s.2", budget_file_path);
    budget_file_join(&budget);
    const int file = open(other_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    assert_int_equal(dup2(file, budget.file.descriptor), budget.file.descriptor);
    assert_error(xseg_shared_budget_read(&budget), FILE, "has been closed by the program");
    assert_int_equal(budget_file_write(&budget, 1), XSEG_ERR_FILE);
    const pid_t child = fork();
    if (child == 0)
        _exit(fcntl(budget.file.descriptor, F_GETFD) >= 0 ? 0 : 1);
    child_expect_success(child);
    xseg_shared_budget_close(&budget);
    assert_false(xseg_shared_budget_is_own(&budget));
    assert_int_equal(close(budget.file.descriptor), 0);
    assert_int_equal(pread(file, &byte, 1, 0), 0);
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(other_path), 0);
    budget_file_join(&budget);
    assert_int_equal(close(budget.file.descriptor), 0);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FILE);
}

/* --- Slots: processes that run, stop and exit, unreadable records, forks, namespaces. --- */

TEST_WITH(processes_read_each_other, join, close_and_remove)
{
    budget_file_write_ok(&budget, 5);
    const struct peer peer = peer_start();
    assert_int_equal(peer.slot, 1);
    assert_int_equal(peer_call(&peer, 'r', 0), 2);
    assert_int_equal(peer_call(&peer, 'w', 7), 0);
    budget_file_expect(&budget, 2);
    assert_true(budget_file_matches(&budget.entries[0].record, 5));
    assert_int_equal(budget.entries[1].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.entries[1].record, 7));
    assert_int_equal(budget.entries[1].record.pid, peer.pid);
    /* Unchanged records are not written. */
    const uint64_t sequence = budget.entries[1].record.sequence;
    assert_int_equal(peer_call(&peer, 'w', 7), 0);
    assert_ok(xseg_shared_budget_read(&budget));
    assert_int_equal(budget.entries[1].record.sequence, sequence);
    assert_int_equal(peer_call(&peer, 'w', 8), 0);
    assert_ok(xseg_shared_budget_read(&budget));
    assert_int_equal(budget.entries[1].record.sequence, sequence + 1);
    peer_end(&peer);
    budget_file_expect(&budget, 1);
}

TEST_WITH(a_slot_ends_with_its_process, join, close_and_remove)
{
    const struct peer first = peer_start(), second = peer_start();
    budget_file_expect(&budget, 3);
    peer_kill(&first);
    budget_file_expect(&budget, 2);
    assert_int_equal(budget.entries[first.slot].state, XSEG_SHARED_BUDGET_FREE);
    assert_int_equal(peer_call(&second, 'r', 0), 2);
    const struct peer third = peer_start();
    assert_int_equal(third.slot, first.slot);
    assert_ok(xseg_shared_budget_read(&budget));
    assert_int_equal(budget.entries[third.slot].record.pid, third.pid);
    peer_end(&second);
    peer_end(&third);
}

TEST_WITH(stopped_process_counts_as_a_member, join, close_and_remove)
{
    int status = 0;

    const struct peer peer = peer_start();
    assert_int_equal(peer_call(&peer, 'w', 9), 0);
    assert_int_equal(kill(peer.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(peer.pid, &status, WUNTRACED), peer.pid);
    assert_true(WIFSTOPPED(status));
    assert_ok(xseg_shared_budget_read(&budget));
    assert_int_equal(budget.entries[peer.slot].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.entries[peer.slot].record, 9));
    peer_kill(&peer);
    budget_file_expect(&budget, 1);
}

TEST_WITH(all_slots_may_be_in_use, NULL, close_and_remove)
{
    struct xseg_shared_budget *budgets = calloc(XSEG_SHARED_BUDGET_SLOTS, sizeof(*budgets));

    assert_non_null(budgets);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++) {
        budget_file_join(&budgets[i]);
        assert_int_equal(budgets[i].slot, i);
        budget_file_write_ok(&budgets[i], i);
    }
    assert_error(xseg_shared_budget_open(&budget, budget_file_path), BUSY, "64 processes have \"");
    assert_error_message(budget_file_path);
    budget_file_expect(&budgets[30], XSEG_SHARED_BUDGET_SLOTS);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        assert_true(budget_file_matches(&budgets[30].entries[i].record, i));
    /* Every second slot, so that the locks have gaps. */
    for (unsigned i = 1; i < XSEG_SHARED_BUDGET_SLOTS; i += 2)
        xseg_shared_budget_close(&budgets[i]);
    assert_ok(xseg_shared_budget_read(&budgets[30]));
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        assert_int_equal(budgets[30].entries[i].state,
                         i % 2 == 0 ? XSEG_SHARED_BUDGET_FRESH : XSEG_SHARED_BUDGET_FREE);
    budget_file_join(&budget);
    assert_int_equal(budget.slot, 1);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        xseg_shared_budget_close(&budgets[i]);
    free(budgets);
}

static void put_garbage(unsigned slot)
{
    static const unsigned char garbage[BUDGET_FILE_SLOT] = {1, 2, 3};

    budget_file_overwrite(BUDGET_FILE_SLOTS_AT + (off_t)slot * BUDGET_FILE_SLOT, garbage,
                          sizeof(garbage));
}

TEST_WITH(garbage_in_a_slot_is_unreadable, join, close_and_remove)
{
    const struct peer first = peer_start(), second = peer_start();
    assert_int_equal(peer_call(&first, 'w', 1), 0);
    assert_int_equal(peer_call(&second, 'w', 2), 0);
    budget_file_join(&second_budget);
    assert_ok(xseg_shared_budget_read(&second_budget));
    put_garbage(first.slot);
    assert_ok(xseg_shared_budget_read(&budget));
    assert_int_equal(budget.entries[first.slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    assert_int_equal(budget.entries[second.slot].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.entries[second.slot].record, 2));
    assert_int_equal(budget_file_count(&budget), 4);
    /* A reader that has seen a valid record keeps it for any number of reads. */
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(xseg_shared_budget_read(&second_budget));
        assert_int_equal(second_budget.entries[first.slot].state, XSEG_SHARED_BUDGET_STALE);
        assert_true(budget_file_matches(&second_budget.entries[first.slot].record, 1));
    }
    /* The process detects the damage, and writes its unchanged record again. */
    assert_int_equal(peer_call(&first, 'r', 0), 4);
    assert_int_equal(peer_call(&first, 'w', 1), 0);
    assert_ok(xseg_shared_budget_read(&budget));
    assert_int_equal(budget.entries[first.slot].state, XSEG_SHARED_BUDGET_FRESH);
    /* The copy of a record is discarded with its process, and not used for the next process in the slot. */
    peer_kill(&first);
    assert_ok(xseg_shared_budget_read(&second_budget));
    const struct peer third = peer_start();
    assert_int_equal(third.slot, first.slot);
    put_garbage(first.slot);
    assert_ok(xseg_shared_budget_read(&second_budget));
    assert_int_equal(second_budget.entries[first.slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    peer_end(&second);
    peer_end(&third);
}

/* Put a record with the checksum of its devices (FNV-1a) into a slot. */
static void put_record(unsigned slot, const struct xseg_shared_budget_record *record)
{
    const off_t at = BUDGET_FILE_SLOTS_AT + (off_t)slot * BUDGET_FILE_SLOT;
    const size_t devices = record->device_count < XSEG_SHARED_BUDGET_DEVICES
                               ? record->device_count
                               : XSEG_SHARED_BUDGET_DEVICES;
    const size_t bytes =
        offsetof(struct xseg_shared_budget_record, devices) + devices * sizeof(record->devices[0]);
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ ((const unsigned char *)record)[i]) * 0x100000001b3u;
    budget_file_overwrite(at, &sum, sizeof(sum));
    budget_file_overwrite(at + BUDGET_FILE_RECORD_AT, record, sizeof(*record));
}

TEST_WITH(numbers_out_of_range_are_unreadable, join, close_and_remove)
{
    const struct peer peer = peer_start();
    /* Case 0 is valid, and each other case has one wrong number; the two devices of case 6 have the same UUID. */
    for (unsigned case_number = 0; case_number < 9; case_number++) {
        struct xseg_shared_budget_record record = {.sequence = 1, .device_count = 2};
        struct xseg_shared_budget_device *device = &record.devices[1];

        record.devices[0] = budget_file_statistics(1);
        *device = budget_file_statistics(2);
        device->uuid[15] = case_number != 6;
        memset(record.name, 'x', sizeof(record.name));
        if (case_number == 1)
            device->physical = XSEG_SHARED_BUDGET_BYTES_BOUND;
        if (case_number == 2)
            device->idle = device->physical + 1;
        if (case_number == 3)
            device->demand = XSEG_SHARED_BUDGET_BYTES_BOUND;
        if (case_number == 4)
            device->min_bytes = UINT64_MAX;
        if (case_number == 5)
            device->share = XSEG_SHARED_BUDGET_FULL_SHARE + 1;
        if (case_number >= 7)
            record.device_count = case_number == 7 ? XSEG_SHARED_BUDGET_DEVICES + 1 : UINT32_MAX;
        put_record(peer.slot, &record);
        budget_file_join(&second_budget);
        assert_ok(xseg_shared_budget_read(&second_budget));
        assert_int_equal(second_budget.entries[peer.slot].state, case_number == 0
                                                                  ? XSEG_SHARED_BUDGET_FRESH
                                                                  : XSEG_SHARED_BUDGET_UNREADABLE);
        if (case_number == 0)
            assert_string_equal(second_budget.entries[peer.slot].record.name, "xxxxxxxxxxxxxxx");
        xseg_shared_budget_close(&second_budget);
    }
    peer_end(&peer);
}

static void write_devices(struct xseg_shared_budget *out, unsigned count)
{
    struct xseg_shared_budget_device devices[XSEG_SHARED_BUDGET_DEVICES];

    for (unsigned i = 0; i < count; i++) {
        devices[i] = budget_file_statistics(i);
        devices[i].uuid[15] = (uint8_t)i;
    }
    assert_ok(xseg_shared_budget_write(out, devices, count));
}

TEST_WITH(each_device_of_64_is_read, join, close_and_remove)
{
    budget_file_join(&second_budget);
    for (unsigned round = 0; round < 2; round++) {
        const unsigned count = round == 0 ? XSEG_SHARED_BUDGET_DEVICES : 17;

        write_devices(&second_budget, count);
        assert_ok(xseg_shared_budget_read(&budget));
        const struct xseg_shared_budget_record *record = &budget.entries[second_budget.slot].record;
        assert_int_equal(record->device_count, count);
        for (unsigned i = 0; i < XSEG_SHARED_BUDGET_DEVICES; i++)
            assert_int_equal(record->devices[i].physical, i < count ? 1000 + i : 0);
    }
}

TEST_WITH(forked_child_holds_no_slot, join, close_and_remove)
{
    budget_file_write_ok(&budget, 1);
    const pid_t child = fork();
    if (child == 0) {
        bool succeeded = !xseg_shared_budget_is_own(&budget) &&
                         fcntl(budget.file.descriptor, F_GETFD) == -1 &&
                         budget_file_write(&budget, 2) == XSEG_ERR_FORKED &&
                         xseg_shared_budget_read(&budget) == XSEG_ERR_FORKED;

        xseg_shared_budget_close(&budget);
        succeeded = succeeded &&
                    xseg_shared_budget_open(&second_budget, budget_file_path) == XSEG_OK &&
                    second_budget.slot == 1 && xseg_shared_budget_read(&second_budget) == XSEG_OK &&
                    budget_file_count(&second_budget) == 2 &&
                    budget_file_matches(&second_budget.entries[0].record, 1);
        _exit(succeeded ? 0 : 1);
    }
    child_expect_success(child);
    /* The process exits, and its child continues. */
    const struct peer peer = peer_start();
    assert_int_equal(peer_call(&peer, 'f', 0), 0);
    budget_file_expect(&budget, 2);
    assert_int_equal(kill(peer.pid, SIGKILL), 0);
    assert_int_equal(waitpid(peer.pid, NULL, 0), peer.pid);
    budget_file_expect(&budget, 1);
    (void)close(peer.socket);
}

static atomic_bool must_stop;

static void *open_and_close(void *unused)
{
    (void)unused;
    while (!atomic_load(&must_stop)) {
        if (xseg_shared_budget_open(&second_budget, budget_file_path) != XSEG_OK)
            return &must_stop;
        xseg_shared_budget_close(&second_budget);
    }
    return NULL;
}

/* Whether a descriptor of this process leads to the file. */
static bool has_descriptor(const struct stat *file)
{
    for (int i = 0; i < 256; i++) {
        struct stat status;

        if (fstat(i, &status) == 0 && status.st_ino == file->st_ino &&
            status.st_dev == file->st_dev)
            return true;
    }
    return false;
}

TEST_WITH(fork_during_open_and_close_holds_no_slot, join, close_and_remove)
{
    void *failure = NULL;
    struct stat file;
    pthread_t thread;

    assert_int_equal(fstat(budget.file.descriptor, &file), 0);
    assert_true(has_descriptor(&file));
    assert_int_equal(pthread_create(&thread, NULL, open_and_close, NULL), 0);
    for (unsigned i = 0; i < 100; i++) {
        const pid_t child = fork();
        if (child == 0)
            _exit(has_descriptor(&file) ? 1 : 0);
        child_expect_success(child);
    }
    atomic_store(&must_stop, true);
    assert_int_equal(pthread_join(thread, &failure), 0);
    assert_null(failure);
}

/* Run a peer with PID 1 in new namespaces. Without permission to create namespaces the response is 254. */
static void execute_in_namespaces(int socket)
{
    unsigned char unsupported = 254;

    if (!namespaces_enter(CLONE_NEWUSER | CLONE_NEWPID))
        _exit(write(socket, &unsupported, 1) == 1 ? 0 : 1);
    if (fork() == 0)
        peer_run(socket);
    (void)close(socket);
    _exit(wait(NULL) > 0 ? 0 : 1);
}

TEST_WITH(members_may_be_in_pid_namespaces, join, close_and_remove)
{
    struct peer peer;
    int sockets[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    peer.pid = fork();
    assert_true(peer.pid >= 0);
    if (peer.pid == 0) {
        (void)close(sockets[0]);
        execute_in_namespaces(sockets[1]);
    }
    (void)close(sockets[1]);
    peer.socket = sockets[0];
    peer.slot = peer_receive(&peer);
    if (peer.slot == 254) {
        print_message("# skipped: this host does not permit user namespaces\n");
    } else {
        assert_int_equal(peer.slot, 1);
        assert_int_equal(peer_call(&peer, 'r', 0), 2);
        assert_int_equal(peer_call(&peer, 'w', 4), 0);
        assert_ok(xseg_shared_budget_read(&budget));
        assert_int_equal(budget.entries[1].record.pid, 1);
        assert_true(budget_file_matches(&budget.entries[1].record, 4));
        /* The peer reads the end of the file, and exits without closing the shared budget file. */
        (void)shutdown(peer.socket, SHUT_WR);
    }
    assert_int_equal(waitpid(peer.pid, NULL, 0), peer.pid);
    (void)close(peer.socket);
    budget_file_expect(&budget, 1);
}

/* --- Readers without a slot. --- */

TEST_WITH(readers_do_not_become_members, NULL, close_and_remove)
{
    const struct peer first = peer_start(), second = peer_start();
    struct stat before, after;

    assert_int_equal(peer_call(&first, 'w', 7), 0);
    assert_int_equal(chmod(budget_file_path, 0440), 0);
    assert_int_equal(stat(budget_file_path, &before), 0);
    assert_ok(xseg_shared_budget_scan(&budget, budget_file_path));
    assert_false(xseg_shared_budget_is_own(&budget));
    assert_int_equal(budget_file_count(&budget), 2);
    assert_int_equal(budget.entries[first.slot].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.entries[first.slot].record, 7));
    assert_int_equal(budget.entries[second.slot].record.pid, second.pid);
    assert_int_equal(peer_call(&first, 'r', 0), 2);
    assert_int_equal(stat(budget_file_path, &after), 0);
    assert_memory_equal(&after.st_mtim, &before.st_mtim, sizeof(after.st_mtim));
    peer_kill(&second);
    assert_ok(xseg_shared_budget_scan(&budget, budget_file_path));
    assert_int_equal(budget_file_count(&budget), 1);
    peer_end(&first);
    /* The slot of the calling process is listed like any other slot. */
    assert_int_equal(chmod(budget_file_path, 0660), 0);
    budget_file_join(&second_budget);
    assert_ok(xseg_shared_budget_scan(&budget, budget_file_path));
    assert_int_equal(budget_file_count(&budget), 1);
    assert_int_equal(budget.entries[0].record.pid, getpid());
}

TEST_WITH(garbage_is_reported_to_readers, NULL, close_and_remove)
{
    const struct peer peer = peer_start();
    put_garbage(peer.slot);
    assert_ok(xseg_shared_budget_scan(&budget, budget_file_path));
    assert_int_equal(budget.entries[peer.slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    peer_end(&peer);
}

TEST_WITH(readers_reject_other_files, NULL, close_and_remove)
{
    static const unsigned char zeros[BUDGET_FILE_SLOT];

    assert_error(xseg_shared_budget_scan(&budget, budget_file_path), FILE, "cannot be opened");
    assert_int_equal(access(budget_file_path, F_OK), -1);
    assert_int_equal(xseg_shared_budget_scan(&budget, ""), XSEG_ERR_ARGUMENT);
    budget_file_overwrite(0, zeros, sizeof(zeros));
    assert_error(xseg_shared_budget_scan(&budget, budget_file_path), BUSY, "still being created");
    budget_file_overwrite(0, "notes", 5);
    assert_error(xseg_shared_budget_scan(&budget, budget_file_path), FILE,
                 "is not a shared budget file");
    assert_int_equal(unlink(budget_file_path), 0);
    assert_int_equal(mkfifo(budget_file_path, 0600), 0);
    assert_error(xseg_shared_budget_scan(&budget, budget_file_path), FILE, "not a regular file");
    assert_false(xseg_shared_budget_is_own(&budget));
}

TEST_GROUP_FIXTURE(budget_files_begin, budget_files_end)
