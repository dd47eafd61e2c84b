/* SPDX-License-Identifier: MIT */
/* The files of shared budget files: where a name leads, how they are made and finished, which are refused, and what becomes of a shared budget file
 * whose file is cut or removed. */
#include <errno.h>

#include "tests/support/shared_budgets.h"

static struct xseg_shared_budget budget;

/* The file's bytes, for the caller to free. */
static unsigned char *take_bytes(size_t *count)
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

static int without_a_file(void **state)
{
    (void)state;
    xseg_shared_budget_close(&budget);
    (void)unlink(budget_file_path);
    return 0;
}

TEST_WITH(a_name_leads_to_a_path, NULL, without_a_file)
{
    char path[XSEG_SHARED_BUDGET_PATH], wanted[XSEG_SHARED_BUDGET_PATH],
        name[XSEG_SHARED_BUDGET_PATH + 1];

    assert_int_equal(xseg_shared_budget_path("a-team_1.x", path), XSEG_OK);
    (void)snprintf(wanted, sizeof(wanted), "/dev/shm/xseg-%u-a-team_1.x", (unsigned)geteuid());
    assert_string_equal(path, wanted);
    for (const char **at = (const char *[]){"/", "./x", "/some/where", "../x", NULL}; *at; at++) {
        assert_int_equal(xseg_shared_budget_path(*at, path), XSEG_OK);
        assert_string_equal(path, *at);
    }
    for (const char **at = (const char *[]){"", ".", "..", "a b", "a\n", "\xc3\xa4", NULL}; *at;
         at++) {
        assert_int_equal(xseg_shared_budget_path(*at, path), XSEG_ERR_ARGUMENT);
        assert_said("name of the shared budget file");
        assert_string_equal(path, "");
    }
    memset(name, 'a', sizeof(name));
    name[XSEG_SHARED_BUDGET_NAME] = '\0';
    assert_int_equal(xseg_shared_budget_path(name, path), XSEG_OK);
    name[XSEG_SHARED_BUDGET_NAME] = 'a';
    name[XSEG_SHARED_BUDGET_NAME + 1] = '\0';
    assert_int_equal(xseg_shared_budget_path(name, path), XSEG_ERR_ARGUMENT);
    memset(name, '/', sizeof(name));
    name[XSEG_SHARED_BUDGET_PATH - 1] = '\0';
    assert_int_equal(xseg_shared_budget_path(name, path), XSEG_OK);
    name[XSEG_SHARED_BUDGET_PATH - 1] = '/';
    name[XSEG_SHARED_BUDGET_PATH] = '\0';
    assert_int_equal(xseg_shared_budget_path(name, path), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_shared_budget_open(&budget, name), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_shared_budget_open(&budget, ""), XSEG_ERR_ARGUMENT);
    assert_false(xseg_shared_budget_is_own(&budget));
}

TEST_WITH(a_file_is_made_for_owner_and_group, NULL, without_a_file)
{
    const mode_t before = umask(077);
    struct stat status;

    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    (void)umask(before);
    assert_true(xseg_shared_budget_is_own(&budget));
    assert_int_equal(budget.slot, 0);
    assert_int_equal(stat(budget_file_path, &status), 0);
    assert_int_equal(status.st_mode, S_IFREG | 0660);
    assert_int_equal(status.st_size, BUDGET_FILE_BYTES);
    assert_true(status.st_blocks * 512 >= BUDGET_FILE_BYTES);
    assert_int_equal(fcntl(budget.file.descriptor, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 1);
    assert_int_equal(budget.seen[0].state, XSEG_SHARED_BUDGET_FRESH);
    assert_int_equal(budget.seen[0].record.device_count, 0);
    assert_int_equal(budget.seen[0].record.pid, getpid());
    assert_true(budget.seen[0].record.name[0] != '\0');
    xseg_shared_budget_close(&budget);
    xseg_shared_budget_close(&budget);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FORKED);
    assert_int_equal(budget_file_write(&budget, 1), XSEG_ERR_FORKED);
    assert_int_equal(stat(budget_file_path, &status), 0);
    assert_int_equal(status.st_size, BUDGET_FILE_BYTES);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(budget.slot, 0);
}

/* The file is refused with these words, and stays as it is. */
static void assert_refused(const char *words)
{
    struct stat before, after;
    size_t bytes_before = 0, bytes_after = 0;
    unsigned char *old = take_bytes(&bytes_before);

    assert_int_equal(stat(budget_file_path, &before), 0);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_false(xseg_shared_budget_is_own(&budget));
    assert_said(words);
    assert_said(budget_file_path);
    assert_int_equal(stat(budget_file_path, &after), 0);
    assert_int_equal(after.st_mode, before.st_mode);
    unsigned char *new = take_bytes(&bytes_after);
    assert_int_equal(bytes_after, bytes_before);
    assert_memory_equal(new, old, bytes_before);
    free(old);
    free(new);
}

/* A shared budget file that was used, and is used by nobody. */
static void leave_a_budget_file(void)
{
    (void)unlink(budget_file_path);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    const struct peer peer = peer_start();
    peer_kill(&peer);
    xseg_shared_budget_close(&budget);
}

TEST_WITH(files_of_other_contents_are_refused, NULL, without_a_file)
{
    static const unsigned char one = 1;

    budget_file_put(0, "hello", 5);
    assert_refused("not a shared budget file");
    leave_a_budget_file();
    budget_file_put(3, "x", 1);
    assert_refused("not a shared budget file");
    leave_a_budget_file();
    budget_file_put(16, "\x63", 1);
    assert_refused("does not match, 99 in ");
    leave_a_budget_file();
    budget_file_put(24, "\x01", 1);
    assert_refused("instead of 528384");
    leave_a_budget_file();
    budget_file_put(BUDGET_FILE_BYTES, "", 1);
    assert_refused("528385 bytes");
    leave_a_budget_file();
    assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES - 1), 0);
    assert_refused("528383 bytes");
    /* Zeros, but for one byte; and zeros, but too many. */
    assert_int_equal(truncate(budget_file_path, 0), 0);
    budget_file_put(BUDGET_FILE_BYTES - 1, &one, 1);
    assert_refused("not a shared budget file");
    assert_int_equal(truncate(budget_file_path, 0), 0);
    assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES + 1), 0);
    assert_refused("not a shared budget file");
}

TEST_WITH(files_of_another_kind_are_refused, NULL, without_a_file)
{
    char second[sizeof(budget_file_path) + 8];

    (void)snprintf(second, sizeof(second), "%s.2", budget_file_path);
    assert_int_equal(mkdir(budget_file_path, 0700), 0);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_said("directory");
    assert_int_equal(rmdir(budget_file_path), 0);
    assert_int_equal(mkfifo(budget_file_path, 0600), 0);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_said("is not a regular file");
    leave_a_budget_file();
    assert_int_equal(link(budget_file_path, second), 0);
    assert_refused("second name");
    assert_int_equal(unlink(budget_file_path), 0);
    assert_int_equal(symlink(second, budget_file_path), 0);
    assert_refused("symbolic link");
    assert_int_equal(unlink(second), 0);
    /* One that leads nowhere makes no file there. */
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_int_equal(access(second, F_OK), -1);
    assert_int_equal(xseg_shared_budget_open(&budget, "./no-folder/ledger"), XSEG_ERR_FILE);
    assert_said("./no-folder/ledger");
}

TEST_WITH(files_of_other_modes_are_refused, NULL, without_a_file)
{
    int status = 1;

    leave_a_budget_file();
    assert_int_equal(chmod(budget_file_path, 0666), 0);
    assert_refused("every user");
    assert_int_equal(chmod(budget_file_path, 0440), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char text[1024] = "";

        /* The superuser may open it. */
        if (geteuid() == 0 && (chmod(budget_file_folder, 0711) != 0 || seteuid(65534) != 0))
            _exit(0);
        status = xseg_shared_budget_open(&budget, budget_file_path);
        (void)xseg_error_message(text, sizeof(text));
        _exit(status == XSEG_ERR_FILE && strstr(text, "allow this process") != NULL ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

TEST_WITH(an_unfinished_file_is_finished, NULL, without_a_file)
{
    static const off_t sizes[] = {0, 1, 4096, 5000, BUDGET_FILE_BYTES};
    struct stat status;

    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const int file = open(budget_file_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

        assert_true(file >= 0);
        assert_int_equal(ftruncate(file, sizes[i]), 0);
        assert_int_equal(close(file), 0);
        assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
        assert_int_equal(stat(budget_file_path, &status), 0);
        assert_int_equal(status.st_size, BUDGET_FILE_BYTES);
        assert_int_equal(status.st_mode, S_IFREG | 0660);
        const struct peer peer = peer_start();
        assert_int_equal(peer_call(&peer, 'r', 0), 2);
        peer_end(&peer);
        (void)without_a_file(NULL);
    }
}

TEST_WITH(file_may_be_truncated_while_open, NULL, without_a_file)
{
    static const off_t sizes[] = {0, 10, BUDGET_FILE_SLOTS_AT + 100, BUDGET_FILE_BYTES + 1};

    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const bool has_header = sizes[i] >= BUDGET_FILE_SLOTS_AT;

        assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
        const struct peer peer = peer_start();
        assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
        assert_int_equal(truncate(budget_file_path, sizes[i]), 0);
        assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FILE);
        assert_said("has changed to ");
        assert_int_equal(budget_file_count(&budget), 2);
        assert_int_equal(budget_file_write(&budget, 3), XSEG_ERR_FILE);
        assert_said(budget_file_path);
        /* With its size back, and the header, it is a shared budget file again for those that have it open; what was cut is written
         * again. */
        assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES), 0);
        assert_int_equal(peer_call(&peer, 'r', 0), has_header ? 2 : 255);
        assert_int_equal(peer_call(&peer, 'w', 0), has_header ? 0 : 255);
        assert_int_equal(budget_file_write(&budget, 3), has_header ? XSEG_OK : XSEG_ERR_FILE);
        if (has_header) {
            assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
            assert_true(budget_file_matches(&budget.seen[peer.slot].record, 0));
            assert_int_equal(budget.seen[peer.slot].state, XSEG_SHARED_BUDGET_FRESH);
        } else {
            /* A file of zeros becomes a shared budget file again when a process opens it; one with a part of a header does not. */
            xseg_shared_budget_close(&budget);
            assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path),
                             sizes[i] == 0 ? XSEG_OK : XSEG_ERR_FILE);
            assert_int_equal(peer_call(&peer, 'w', 0), sizes[i] == 0 ? 0 : 255);
            if (sizes[i] != 0) {
                (void)unlink(budget_file_path);
                assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
            }
        }
        assert_int_equal(unlink(budget_file_path), 0);
        assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FILE);
        assert_said("has been removed");
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
    budget_file_put(0, text, bytes);
    free(text);
}

static void overwrite_with_less(void)
{
    overwrite(10000);
}

static void overwrite_with_as_much(void)
{
    overwrite(BUDGET_FILE_BYTES);
}

static void overwrite_with_more(void)
{
    overwrite(BUDGET_FILE_BYTES + 1000);
}

static void empty_it(void)
{
    assert_int_equal(truncate(budget_file_path, 0), 0);
}

static void fill_with_zeros(void)
{
    empty_it();
    assert_int_equal(truncate(budget_file_path, BUDGET_FILE_BYTES), 0);
}

static void damage_magic(void)
{
    budget_file_put(3, "x", 1);
}

static void change_version(void)
{
    budget_file_put(16, "\x02", 1);
}

static void damage_bytes(void)
{
    budget_file_put(24, "\x01", 1);
}

static void let_everybody_write(void)
{
    assert_int_equal(chmod(budget_file_path, 0666), 0);
}

static char second_path[sizeof(budget_file_path) + 8];

static void link_it(void)
{
    assert_int_equal(link(budget_file_path, second_path), 0);
}

static void rename_it(void)
{
    assert_int_equal(rename(budget_file_path, second_path), 0);
}

/* A foreign file is moved to the path, and the shared budget file is kept under another name. */
static void put_another_in_its_place(void)
{
    rename_it();
    budget_file_put(0, "hello", 5);
}

/* Bytes of all files of the folder. */
static uint64_t sum_files(void)
{
    char saved[sizeof(budget_file_path)];
    uint64_t sum = 0;

    memcpy(saved, budget_file_path, sizeof(saved));
    for (unsigned i = 0; i < 2; i++) {
        size_t count = 0;

        (void)snprintf(budget_file_path, sizeof(budget_file_path), "%.120s%s", saved,
                       i == 0 ? "" : ".2");
        if (access(budget_file_path, F_OK) == 0) {
            unsigned char *bytes = take_bytes(&count);

            for (size_t k = 0; k < count; k++)
                sum = (sum ^ bytes[k]) * 0x100000001b3u;
            sum = sum * 31 + count;
            free(bytes);
        }
        memcpy(budget_file_path, saved, sizeof(saved));
    }
    return sum;
}

TEST_WITH(replaced_file_is_never_written, NULL, without_a_file)
{
    static const struct {
        void (*becomes)(void);
        const char *words;
    } ways[] = {
        {overwrite_with_less, "is not a shared budget file and remains unchanged"},
        {overwrite_with_as_much, "is not a shared budget file and remains unchanged"},
        {overwrite_with_more, "is not a shared budget file and remains unchanged"},
        {empty_it, "has changed to 0 bytes"},
        {fill_with_zeros, "is not a shared budget file"},
        {damage_magic, "is not a shared budget file"},
        {change_version, "does not match, 2 in "},
        {damage_bytes, "instead of 528384"},
        {let_everybody_write, "every user"},
        {link_it, "second name"},
        {rename_it, "has been renamed or replaced"},
        {put_another_in_its_place, "has been renamed or replaced"},
    };

    (void)snprintf(second_path, sizeof(second_path), "%s.2", budget_file_path);
    for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
        assert_int_equal(budget_file_write(&budget, 1), XSEG_OK);
        const struct peer peer = peer_start();
        ways[i].becomes();
        const uint64_t before = sum_files();
        /* A member publishes, reads, and leaves; so does another one. */
        assert_int_equal(budget_file_write(&budget, 2), XSEG_ERR_FILE);
        assert_said(budget_file_path);
        assert_said(ways[i].words);
        assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FILE);
        assert_int_equal(peer_call(&peer, 'w', 3), 255);
        peer_end(&peer);
        (void)xseg_fail(XSEG_ERR_ARGUMENT, "an earlier message");
        xseg_shared_budget_close(&budget);
        assert_said("an earlier message");
        if (sum_files() != before)
            fail_msg("a file that became foreign in way %u was written", i);
        (void)unlink(budget_file_path);
        (void)unlink(second_path);
    }
}

/* A program may close all descriptors that it does not know, and have others in their place. */
TEST_WITH(a_descriptor_may_be_closed, NULL, without_a_file)
{
    char other_path[sizeof(budget_file_path) + 8], byte = 0;
    int status = 1;

    (void)snprintf(other_path, sizeof(other_path), "%s.2", budget_file_path);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    const int file = open(other_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    assert_int_equal(dup2(file, budget.file.descriptor), budget.file.descriptor);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FILE);
    assert_said("has been closed by the program");
    assert_int_equal(budget_file_write(&budget, 1), XSEG_ERR_FILE);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(fcntl(budget.file.descriptor, F_GETFD) >= 0 ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    xseg_shared_budget_close(&budget);
    assert_false(xseg_shared_budget_is_own(&budget));
    assert_int_equal(close(budget.file.descriptor), 0);
    assert_int_equal(pread(file, &byte, 1, 0), 0);
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(other_path), 0);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(close(budget.file.descriptor), 0);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_ERR_FILE);
}

TEST_GROUP_FIXTURE(budget_files_begin, budget_files_end)
