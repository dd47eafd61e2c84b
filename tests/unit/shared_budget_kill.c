/* SPDX-License-Identifier: MIT */
/* Shared budget files whose processes are killed or stopped at each system call, or whose system calls fail.
 * Concurrent opens, random bytes, and another program that overwrites the file between any two system calls. */
#include <errno.h>
#include <time.h>

#include "tests/support/rng.h"
#include "tests/support/shared_budgets.h"
#include "tests/support/wrapped.h"

int __real_open(const char *path, int flags, ...);
WRAPPED(int, close, int file);
WRAPPED(int, fchmod, int file, mode_t mode);
int __real_fcntl(int file, int command, ...);
WRAPPED(int, nanosleep, const struct timespec *wait, struct timespec *remaining);
WRAPPED(int, posix_fallocate, int file, off_t at, off_t count);
WRAPPED(ssize_t, pread, int file, void *bytes, size_t count, off_t at);
WRAPPED(ssize_t, pwrite, int file, const void *bytes, size_t count, off_t at);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode);
int __wrap_fcntl(int file, int command, void *argument);
int __wrap_fcntl64(int file, int command, void *argument);
int __wrap_posix_fallocate64(int file, off_t at, off_t count);
ssize_t __wrap_pread64(int file, void *bytes, size_t count, off_t at);
ssize_t __wrap_pwrite64(int file, const void *bytes, size_t count, off_t at);

/* The fault of one call of open(), close(), fchmod(), fcntl(), posix_fallocate(), pread() or pwrite(). */
static unsigned fault_countdown; /* the fault is at this call from now on; 0: no fault */
static int fault_signal;         /* the process gets this signal before the call */
static bool fault_is_torn;       /* before the signal, half of a record is written */
static int fault_errno;          /* the call fails; 0: it does not */
static bool fault_overwrites;    /* another program overwrites the file before the call */
static bool was_overwritten;     /* the file existed at that time */

static bool is_disk_full;     /* posix_fallocate() finds no space */
static bool is_sleep_skipped; /* nanosleep() returns immediately */
static unsigned sleep_count;  /* so far */

static const struct peer *closing_peer; /* closes its shared budget file before its slot is read */

/* Fill the file with bytes of another format. */
static void overwrite(void)
{
    static unsigned char bytes[BUDGET_FILE_BYTES];
    const int file = __real_open(budget_file_path, O_WRONLY | O_CLOEXEC, 0);

    if (file < 0)
        return;
    memset(bytes, 'x', sizeof(bytes));
    was_overwritten = __real_pwrite(file, bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes);
    (void)__real_close(file);
}

/* Returns whether the call fails, with errno set. */
static bool inject_fault(void)
{
    if (fault_countdown == 0 || --fault_countdown > 0)
        return false;
    if (fault_overwrites) {
        overwrite();
        return false;
    }
    if (fault_signal != 0)
        (void)raise(fault_signal);
    errno = fault_errno;
    return fault_errno != 0;
}

int __wrap_open(const char *path, int flags, mode_t mode)
{
    return inject_fault() ? -1 : __real_open(path, flags, mode);
}

int __wrap_open64(const char *path, int flags, mode_t mode)
{
    return __wrap_open(path, flags, mode);
}

/* Linux closes a file even if close() fails. */
int __wrap_close(int file)
{
    const bool fails = inject_fault();

    return __real_close(file) != 0 || fails ? -1 : 0;
}

int __wrap_fchmod(int file, mode_t mode)
{
    return !fault_overwrites && inject_fault() ? -1 : __real_fchmod(file, mode);
}

int __wrap_fcntl(int file, int command, void *argument)
{
    return inject_fault() ? -1 : __real_fcntl(file, command, argument);
}

int __wrap_fcntl64(int file, int command, void *argument)
{
    return __wrap_fcntl(file, command, argument);
}

int __wrap_nanosleep(const struct timespec *wait, struct timespec *remaining)
{
    sleep_count++;
    return is_sleep_skipped ? 0 : __real_nanosleep(wait, remaining);
}

int __wrap_posix_fallocate(int file, off_t at, off_t count)
{
    if (is_disk_full)
        return ENOSPC;
    return !fault_overwrites && inject_fault() ? fault_errno
                                               : __real_posix_fallocate(file, at, count);
}

int __wrap_posix_fallocate64(int file, off_t at, off_t count)
{
    return __wrap_posix_fallocate(file, at, count);
}

ssize_t __wrap_pread(int file, void *bytes, size_t count, off_t at)
{
    const struct peer *peer = closing_peer;

    if (peer != NULL && at == BUDGET_FILE_SLOTS_AT + (off_t)peer->slot * BUDGET_FILE_SLOT) {
        closing_peer = NULL;
        peer_end(peer);
    }
    return inject_fault() ? -1 : __real_pread(file, bytes, count, at);
}

ssize_t __wrap_pread64(int file, void *bytes, size_t count, off_t at)
{
    return __wrap_pread(file, bytes, count, at);
}

ssize_t __wrap_pwrite(int file, const void *bytes, size_t count, off_t at)
{
    if (fault_is_torn && fault_countdown == 1 && at >= BUDGET_FILE_SLOTS_AT)
        (void)__real_pwrite(file, bytes, count / 2, at);
    return !fault_overwrites && inject_fault() ? -1 : __real_pwrite(file, bytes, count, at);
}

ssize_t __wrap_pwrite64(int file, const void *bytes, size_t count, off_t at)
{
    return __wrap_pwrite(file, bytes, count, at);
}

static struct xseg_shared_budget budget, second_budget;

FIXTURE(close_and_remove)
{
    xseg_shared_budget_close(&budget);
    (void)unlink(budget_file_path);
}

/* All uses of a shared budget file by a process. */
static void use_file(void)
{
    if (xseg_shared_budget_open(&second_budget, budget_file_path) == XSEG_OK) {
        (void)budget_file_write(&second_budget, 1);
        (void)xseg_shared_budget_read(&second_budget);
        (void)budget_file_write(&second_budget, 2);
    }
    xseg_shared_budget_close(&second_budget);
}

/* A child that gets a signal before its n-th call. */
static pid_t start_child(unsigned nth, int signal)
{
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        fault_signal = signal;
        fault_countdown = nth;
        use_file();
        fault_countdown = 0;
        _exit(0);
    }
    return child;
}

/* Expect that the next process can use the shared budget file, and that only it and `peers` other processes have slots. */
static void assert_usable(unsigned peers)
{
    budget_file_join(&budget);
    assert_int_equal(budget.slot, peers);
    budget_file_write_ok(&budget, 9);
    budget_file_expect(&budget, 1 + peers);
    for (unsigned i = 0; i < 1 + peers; i++)
        assert_int_equal(budget.entries[i].state, XSEG_SHARED_BUDGET_FRESH);
    xseg_shared_budget_close(&budget);
}

/* Kill a process at each call, next to `peers` other processes; returns the number of calls. */
static unsigned kill_at_each_call(unsigned peers)
{
    for (unsigned nth = 1;; nth++) {
        int status = 0;
        const pid_t child = start_child(nth, SIGKILL);

        assert_int_equal(waitpid(child, &status, 0), child);
        assert_usable(peers);
        if (peers == 0)
            assert_int_equal(unlink(budget_file_path), 0);
        if (WIFEXITED(status))
            return nth - 1;
    }
}

TEST_WITH(a_kill_during_the_creation_is_harmless, NULL, close_and_remove)
{
    assert_true(kill_at_each_call(0) >= 15);
    fault_is_torn = true;
    (void)kill_at_each_call(0);
    fault_is_torn = false;
}

TEST_WITH(a_kill_next_to_another_process_is_harmless, NULL, close_and_remove)
{
    const struct peer peer = peer_start();
    assert_true(kill_at_each_call(1) >= 10);
    fault_is_torn = true;
    (void)kill_at_each_call(1);
    fault_is_torn = false;
    assert_int_equal(peer_call(&peer, 'r', 0), 1);
    peer_end(&peer);
}

/* While a process is stopped, another process can use the shared budget file, or gets the error that the file is being
 * created. */
TEST_WITH(stop_at_each_call_blocks_no_process, NULL, close_and_remove)
{
    unsigned busy = 0;

    is_sleep_skipped = true;
    for (unsigned nth = 1, has_ended = 0; !has_ended; nth++) {
        int status = 0;
        const pid_t child = start_child(nth, SIGSTOP);

        assert_int_equal(waitpid(child, &status, WUNTRACED), child);
        has_ended = WIFEXITED(status);
        sleep_count = 0;
        const xseg_status opened = xseg_shared_budget_open(&budget, budget_file_path);
        if (opened == XSEG_ERR_BUSY) {
            assert_error_message("is being created by another process");
            assert_int_equal(sleep_count, 199); /* between the HEADER_TRIES attempts, 200 */
            busy++;
        } else {
            assert_int_equal(opened, XSEG_OK);
            assert_int_equal(sleep_count, 0);
            assert_ok(xseg_shared_budget_read(&budget));
            assert_int_equal(budget.entries[budget.slot].state, XSEG_SHARED_BUDGET_FRESH);
            for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
                assert_int_not_equal(budget.entries[i].state, XSEG_SHARED_BUDGET_UNREADABLE);
            xseg_shared_budget_close(&budget);
        }
        if (!has_ended) {
            assert_int_equal(kill(child, SIGKILL), 0);
            assert_int_equal(waitpid(child, &status, 0), child);
        }
        assert_usable(0);
        assert_int_equal(unlink(budget_file_path), 0);
    }
    is_sleep_skipped = false;
    /* The open fails at each call that the child makes with the header lock: a few, and one for each page of zeros. */
    assert_in_range(busy, 3, 10 + BUDGET_FILE_BYTES / 4096);
}

/* Another program overwrites the file before each call; its bytes must remain. Calls that write are excluded, because a check
 * and the following write are not atomic. */
TEST_WITH(a_file_that_is_overwritten_at_any_call_is_not_written, NULL, close_and_remove)
{
    unsigned overwritten = 0;
    bool has_ended = false;

    fault_overwrites = true;
    for (unsigned nth = 1; !has_ended; nth++) {
        struct stat status;

        was_overwritten = false;
        fault_countdown = nth;
        use_file();
        has_ended = fault_countdown > 0;
        fault_countdown = 0;
        assert_int_equal(stat(budget_file_path, &status), 0);
        const int file = __real_open(budget_file_path, O_RDONLY | O_CLOEXEC, 0);
        assert_true(file >= 0);
        if (was_overwritten) {
            static unsigned char bytes[BUDGET_FILE_BYTES];

            assert_int_equal(status.st_size, BUDGET_FILE_BYTES);
            assert_int_equal(__real_pread(file, bytes, sizeof(bytes), 0), BUDGET_FILE_BYTES);
            for (size_t i = 0; i < sizeof(bytes); i++)
                if (bytes[i] != 'x')
                    fail_msg("overwritten before call %u: byte %zu was written", nth, i);
            overwritten++;
        }
        assert_int_equal(__real_close(file), 0);
        assert_int_equal(unlink(budget_file_path), 0);
    }
    fault_overwrites = false;
    assert_true(overwritten > 20);
}

/* If any call fails, no descriptor remains open, and the error message contains the path. */
TEST_WITH(failed_calls_leave_no_descriptor, NULL, close_and_remove)
{
    bool has_ended = false;

    is_sleep_skipped = true;
    for (unsigned nth = 1; !has_ended; nth++) {
        const int lowest_free = dup(0);

        assert_int_equal(__real_close(lowest_free), 0);
        fault_errno = EIO;
        fault_countdown = nth;
        const xseg_status opened = xseg_shared_budget_open(&second_budget, budget_file_path);
        if (opened != XSEG_OK) {
            assert_error(opened, FILE, budget_file_path);
            assert_error_message("Input/output error");
            assert_false(xseg_shared_budget_is_own(&second_budget));
        } else {
            if (budget_file_write(&second_budget, 1) != XSEG_OK)
                assert_error_message("Input/output error");
            if (xseg_shared_budget_read(&second_budget) != XSEG_OK)
                assert_error_message("Input/output error");
            /* A record that could not be written is written by the next call. */
            const unsigned remaining = fault_countdown;
            fault_countdown = 0;
            budget_file_write_ok(&second_budget, 1);
            assert_ok(xseg_shared_budget_read(&second_budget));
            fault_countdown = remaining;
            assert_true(budget_file_matches(&second_budget.entries[second_budget.slot].record, 1));
        }
        xseg_shared_budget_close(&second_budget);
        has_ended = fault_countdown > 0;
        fault_countdown = 0;
        fault_errno = 0;
        assert_int_equal(dup(0), lowest_free);
        assert_int_equal(__real_close(lowest_free), 0);
        assert_usable(0);
        assert_int_equal(unlink(budget_file_path), 0);
    }
    is_sleep_skipped = false;
}

TEST_WITH(full_file_system_is_reported, NULL, close_and_remove)
{
    is_disk_full = true;
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_FILE);
    is_disk_full = false;
    assert_error_message("(No space left on device); free 528384 bytes");
    assert_usable(0);
}

/* Open the file concurrently with other processes, and keep it open until all have opened it. */
static _Noreturn void open_concurrently(int begin, int opened, int end)
{
    char byte = 0;

    (void)!read(begin, &byte, 1);
    byte = xseg_shared_budget_open(&second_budget, budget_file_path) == XSEG_OK ? 'y' : 'n';
    (void)!write(opened, &byte, 1);
    (void)!read(end, &byte, 1);
    _exit(0);
}

TEST_WITH(processes_that_open_concurrently_share_one_file, NULL, close_and_remove)
{
    enum { PROCESSES = 3, ROUNDS = 60 };

    for (unsigned round = 0; round < ROUNDS; round++) {
        int begin[2], opened[2], end[2];
        pid_t children[PROCESSES];
        char byte = 0;

        assert_int_equal(pipe(begin) | pipe(opened) | pipe(end), 0);
        for (unsigned i = 0; i < PROCESSES; i++) {
            children[i] = fork();
            assert_true(children[i] >= 0);
            if (children[i] == 0) {
                (void)close(begin[1]);
                (void)close(end[1]);
                open_concurrently(begin[0], opened[1], end[0]);
            }
        }
        (void)close(begin[1]);
        for (unsigned i = 0; i < PROCESSES; i++) {
            assert_int_equal(read(opened[0], &byte, 1), 1);
            assert_int_equal(byte, 'y');
        }
        budget_file_join(&budget);
        assert_int_equal(budget.slot, PROCESSES);
        budget_file_expect(&budget, PROCESSES + 1);
        (void)close(end[1]);
        for (unsigned i = 0; i < PROCESSES; i++)
            assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
        (void)close(begin[0]);
        (void)close(opened[0]);
        (void)close(opened[1]);
        (void)close(end[0]);
        (void)close_and_remove(NULL);
    }
}

TEST_WITH(no_record_is_torn, NULL, close_and_remove)
{
    uint64_t last = 0;

    budget_file_join(&budget);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (xseg_shared_budget_open(&second_budget, budget_file_path) != XSEG_OK)
            _exit(1);
        for (uint64_t i = 1;; i++)
            (void)budget_file_write(&second_budget, i);
    }
    for (unsigned i = 0; i < 100000 && last < 2000; i++) {
        const struct xseg_shared_budget_entry *entry = &budget.entries[1];

        assert_ok(xseg_shared_budget_read(&budget));
        if (entry->state != XSEG_SHARED_BUDGET_FRESH || entry->record.device_count == 0)
            continue;
        assert_true(budget_file_matches(&entry->record, entry->record.devices[0].idle));
        assert_true(entry->record.devices[0].idle >= last);
        last = entry->record.devices[0].idle;
    }
    assert_true(last > 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

TEST_WITH(a_process_may_close_the_file_during_a_read, NULL, close_and_remove)
{
    budget_file_join(&budget);
    const struct peer peer = peer_start();
    assert_ok(xseg_shared_budget_read(&budget));
    assert_int_equal(budget.entries[peer.slot].state, XSEG_SHARED_BUDGET_FRESH);
    closing_peer = &peer;
    assert_ok(xseg_shared_budget_read(&budget));
    assert_null(closing_peer);
    assert_int_equal(budget.entries[peer.slot].state, XSEG_SHARED_BUDGET_FREE);
}

/* Put random bytes anywhere, sometimes in the whole file, and sometimes change its size. */
static void corrupt(int file, uint64_t *random)
{
    static unsigned char bytes[BUDGET_FILE_BYTES];
    const uint64_t kind = rng_next(random) % 16;
    const size_t count = kind == 0 ? sizeof(bytes) : 1 + rng_next(random) % 64;
    const off_t at = kind == 0 ? 0
                     : kind < 8
                         ? (off_t)(rng_next(random) % (BUDGET_FILE_BYTES - 64))
                         : (off_t)(BUDGET_FILE_SLOTS_AT + rng_next(random) % 2 * BUDGET_FILE_SLOT +
                                   rng_next(random) % 256);

    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)rng_next(random);
    assert_int_equal(__real_pwrite(file, bytes, count, at), count);
    if (kind == 1)
        assert_int_equal(ftruncate(file, (off_t)(rng_next(random) % (2 * BUDGET_FILE_BYTES))), 0);
}

TEST_WITH(random_bytes_in_the_file_are_tolerated, NULL, close_and_remove)
{
    unsigned char header[64];
    uint64_t random = 1;
    unsigned unreadable = 0;

    budget_file_join(&budget);
    const struct peer peer = peer_start();
    const int file = __real_open(budget_file_path, O_RDWR | O_CLOEXEC, 0);
    assert_true(file >= 0);
    assert_int_equal(__real_pread(file, header, sizeof(header), 0), sizeof(header));
    for (unsigned round = 0; round < 500; round++) {
        corrupt(file, &random);
        if (xseg_shared_budget_read(&budget) == XSEG_OK) {
            const enum xseg_shared_budget_state slot_state = budget.entries[peer.slot].state;

            assert_int_equal(budget_file_count(&budget), 2);
            assert_true(slot_state == XSEG_SHARED_BUDGET_UNREADABLE ||
                        budget_file_matches(&budget.entries[peer.slot].record, 0) ||
                        budget_file_matches(&budget.entries[peer.slot].record, round - 1));
            unreadable += slot_state != XSEG_SHARED_BUDGET_FRESH;
        }
        (void)budget_file_write(&budget, round);
        if (xseg_shared_budget_open(&second_budget, budget_file_path) == XSEG_OK) {
            budget_file_expect(&second_budget, 3);
            xseg_shared_budget_close(&second_budget);
        }
        /* Occasionally the file is restored. */
        if (round % 10 == 9) {
            assert_int_equal(ftruncate(file, BUDGET_FILE_BYTES), 0);
            assert_int_equal(__real_pwrite(file, header, sizeof(header), 0), sizeof(header));
            (void)peer_call(&peer, 'r', 0);
            assert_int_equal(peer_call(&peer, 'w', 0), 0);
        }
    }
    assert_true(unreadable > 10);
    (void)close(file);
    peer_end(&peer);
}

TEST_GROUP_FIXTURE(budget_files_begin, budget_files_end)
