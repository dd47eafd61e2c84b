/* SPDX-License-Identifier: MIT */
/* The slots of shared budget files: of processes that live, stop and die, with records that cannot be read, forks, namespaces. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "tests/support/namespaces.h"
#include "tests/support/shared_budgets.h"

static struct xseg_shared_budget budget, other;

static int without_a_file(void **state)
{
    (void)state;
    xseg_shared_budget_close(&budget);
    xseg_shared_budget_close(&other);
    (void)unlink(budget_file_path);
    return 0;
}

TEST_WITH(processes_see_each_other, NULL, without_a_file)
{
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(budget_file_write(&budget, 5), XSEG_OK);
    const struct peer peer = peer_start();
    assert_int_equal(peer.slot, 1);
    assert_int_equal(peer_call(&peer, 'r', 0), 2);
    assert_int_equal(peer_call(&peer, 'w', 7), 0);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 2);
    assert_true(budget_file_matches(&budget.seen[0].record, 5));
    assert_int_equal(budget.seen[1].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.seen[1].record, 7));
    assert_int_equal(budget.seen[1].record.pid, peer.pid);
    /* What has not changed is not written. */
    const uint64_t sequence = budget.seen[1].record.sequence;
    assert_int_equal(peer_call(&peer, 'w', 7), 0);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget.seen[1].record.sequence, sequence);
    assert_int_equal(peer_call(&peer, 'w', 8), 0);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget.seen[1].record.sequence, sequence + 1);
    peer_end(&peer);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 1);
}

TEST_WITH(a_slot_ends_with_its_process, NULL, without_a_file)
{
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    const struct peer one = peer_start(), two = peer_start();
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 3);
    peer_kill(&one);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 2);
    assert_int_equal(budget.seen[one.slot].state, XSEG_SHARED_BUDGET_FREE);
    assert_int_equal(peer_call(&two, 'r', 0), 2);
    const struct peer three = peer_start();
    assert_int_equal(three.slot, one.slot);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget.seen[three.slot].record.pid, three.pid);
    peer_end(&two);
    peer_end(&three);
}

TEST_WITH(stopped_process_counts_as_a_member, NULL, without_a_file)
{
    int status = 0;

    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    const struct peer peer = peer_start();
    assert_int_equal(peer_call(&peer, 'w', 9), 0);
    assert_int_equal(kill(peer.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(peer.pid, &status, WUNTRACED), peer.pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget.seen[peer.slot].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.seen[peer.slot].record, 9));
    peer_kill(&peer);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 1);
}

TEST_WITH(all_slots_may_be_in_use, NULL, without_a_file)
{
    struct xseg_shared_budget *many = calloc(XSEG_SHARED_BUDGET_SLOTS, sizeof(*many));

    assert_non_null(many);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++) {
        assert_int_equal(xseg_shared_budget_open(&many[i], budget_file_path), XSEG_OK);
        assert_int_equal(many[i].slot, i);
        assert_int_equal(budget_file_write(&many[i], i), XSEG_OK);
    }
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_ERR_BUSY);
    assert_said("64 processes have \"");
    assert_said(budget_file_path);
    assert_int_equal(xseg_shared_budget_read(&many[30]), XSEG_OK);
    assert_int_equal(budget_file_count(&many[30]), XSEG_SHARED_BUDGET_SLOTS);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        assert_true(budget_file_matches(&many[30].seen[i].record, i));
    /* Every second one, so that the locks have gaps. */
    for (unsigned i = 1; i < XSEG_SHARED_BUDGET_SLOTS; i += 2)
        xseg_shared_budget_close(&many[i]);
    assert_int_equal(xseg_shared_budget_read(&many[30]), XSEG_OK);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        assert_int_equal(many[30].seen[i].state,
                         i % 2 == 0 ? XSEG_SHARED_BUDGET_FRESH : XSEG_SHARED_BUDGET_FREE);
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(budget.slot, 1);
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        xseg_shared_budget_close(&many[i]);
    free(many);
}

TEST_WITH(garbage_in_a_slot_is_unreadable, NULL, without_a_file)
{
    static const unsigned char garbage[BUDGET_FILE_SLOT] = {1, 2, 3};

    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    const struct peer one = peer_start(), two = peer_start();
    assert_int_equal(peer_call(&one, 'w', 1), 0);
    assert_int_equal(peer_call(&two, 'w', 2), 0);
    assert_int_equal(xseg_shared_budget_open(&other, budget_file_path), XSEG_OK);
    assert_int_equal(xseg_shared_budget_read(&other), XSEG_OK);
    budget_file_put(BUDGET_FILE_SLOTS_AT + (off_t)one.slot * BUDGET_FILE_SLOT, garbage,
                    sizeof(garbage));
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget.seen[one.slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    assert_int_equal(budget.seen[two.slot].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.seen[two.slot].record, 2));
    assert_int_equal(budget_file_count(&budget), 4);
    /* Who has seen a good one keeps it, as often as it looks. */
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(xseg_shared_budget_read(&other), XSEG_OK);
        assert_int_equal(other.seen[one.slot].state, XSEG_SHARED_BUDGET_KEPT);
        assert_true(budget_file_matches(&other.seen[one.slot].record, 1));
    }
    /* The process notices, and writes again what has not changed. */
    assert_int_equal(peer_call(&one, 'r', 0), 4);
    assert_int_equal(peer_call(&one, 'w', 1), 0);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget.seen[one.slot].state, XSEG_SHARED_BUDGET_FRESH);
    /* What another process had in the slot does not outlive it. */
    peer_kill(&one);
    assert_int_equal(xseg_shared_budget_read(&other), XSEG_OK);
    const struct peer three = peer_start();
    assert_int_equal(three.slot, one.slot);
    budget_file_put(BUDGET_FILE_SLOTS_AT + (off_t)one.slot * BUDGET_FILE_SLOT, garbage,
                    sizeof(garbage));
    assert_int_equal(xseg_shared_budget_read(&other), XSEG_OK);
    assert_int_equal(other.seen[one.slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    peer_end(&two);
    peer_end(&three);
}

/* Put a record into a slot with the checksum of its devices that belongs to it: FNV-1a. */
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
    budget_file_put(at, &sum, sizeof(sum));
    budget_file_put(at + BUDGET_FILE_RECORD_AT, record, sizeof(*record));
}

TEST_WITH(numbers_out_of_range_are_unreadable, NULL, without_a_file)
{
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    const struct peer peer = peer_start();
    for (unsigned wrong = 0; wrong < 9; wrong++) {
        struct xseg_shared_budget_record record = {.sequence = 1, .device_count = 2};
        struct xseg_shared_budget_device *device = &record.devices[1];

        record.devices[0] = budget_file_statistics(1);
        *device = budget_file_statistics(2);
        device->uuid[15] = 1;
        memset(record.name, 'x', sizeof(record.name));
        switch (wrong) {
        case 1:
            device->physical = XSEG_SHARED_BUDGET_BYTES_BOUND;
            break;
        case 2:
            device->idle = device->physical + 1;
            break;
        case 3:
            device->demand = XSEG_SHARED_BUDGET_BYTES_BOUND;
            break;
        case 4:
            device->floor = UINT64_MAX;
            break;
        case 5:
            device->share = XSEG_SHARED_BUDGET_WHOLE_SHARE + 1;
            break;
        case 6:
            device->uuid[15] = 0;
            break;
        case 7:
            record.device_count = XSEG_SHARED_BUDGET_DEVICES + 1;
            break;
        case 8:
            record.device_count = UINT32_MAX;
            break;
        default:
            break;
        }
        put_record(peer.slot, &record);
        assert_int_equal(xseg_shared_budget_open(&other, budget_file_path), XSEG_OK);
        assert_int_equal(xseg_shared_budget_read(&other), XSEG_OK);
        assert_int_equal(other.seen[peer.slot].state,
                         wrong == 0 ? XSEG_SHARED_BUDGET_FRESH : XSEG_SHARED_BUDGET_UNREADABLE);
        if (wrong == 0)
            assert_string_equal(other.seen[peer.slot].record.name, "xxxxxxxxxxxxxxx");
        xseg_shared_budget_close(&other);
    }
    peer_end(&peer);
}

/* Devices of a record with as many as there can be. */
static void say_devices(struct xseg_shared_budget *out, unsigned count)
{
    struct xseg_shared_budget_device devices[XSEG_SHARED_BUDGET_DEVICES];

    for (unsigned i = 0; i < count; i++) {
        devices[i] = budget_file_statistics(i);
        devices[i].uuid[15] = (uint8_t)i;
    }
    assert_int_equal(xseg_shared_budget_write(out, devices, count), XSEG_OK);
}

TEST_WITH(each_device_of_64_is_read, NULL, without_a_file)
{
    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(xseg_shared_budget_open(&other, budget_file_path), XSEG_OK);
    for (unsigned round = 0; round < 2; round++) {
        const unsigned count = round == 0 ? XSEG_SHARED_BUDGET_DEVICES : 17;

        say_devices(&other, count);
        assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
        const struct xseg_shared_budget_record *record = &budget.seen[other.slot].record;
        assert_int_equal(record->device_count, count);
        for (unsigned i = 0; i < XSEG_SHARED_BUDGET_DEVICES; i++)
            assert_int_equal(record->devices[i].physical, i < count ? 1000 + i : 0);
    }
}

TEST_WITH(forked_child_holds_no_slot, NULL, without_a_file)
{
    int status = 1;

    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(budget_file_write(&budget, 1), XSEG_OK);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool fine = !xseg_shared_budget_is_own(&budget) &&
                    fcntl(budget.file.descriptor, F_GETFD) == -1 &&
                    budget_file_write(&budget, 2) == XSEG_ERR_FORKED &&
                    xseg_shared_budget_read(&budget) == XSEG_ERR_FORKED;

        xseg_shared_budget_close(&budget);
        fine = fine && xseg_shared_budget_open(&other, budget_file_path) == XSEG_OK &&
               other.slot == 1 && xseg_shared_budget_read(&other) == XSEG_OK &&
               budget_file_count(&other) == 2 && budget_file_matches(&other.seen[0].record, 1);
        _exit(fine ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    /* The process dies, and its child lives on. */
    const struct peer peer = peer_start();
    assert_int_equal(peer_call(&peer, 'f', 0), 0);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 2);
    assert_int_equal(kill(peer.pid, SIGKILL), 0);
    assert_int_equal(waitpid(peer.pid, NULL, 0), peer.pid);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 1);
    (void)close(peer.socket);
}

static atomic_bool is_over;

static void *open_and_close(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_over)) {
        if (xseg_shared_budget_open(&other, budget_file_path) != XSEG_OK)
            return &is_over;
        xseg_shared_budget_close(&other);
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

TEST_WITH(fork_during_open_and_close_holds_no_slot, NULL, without_a_file)
{
    void *failure = NULL;
    struct stat file;
    pthread_t thread;

    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(fstat(budget.file.descriptor, &file), 0);
    assert_true(has_descriptor(&file));
    assert_int_equal(pthread_create(&thread, NULL, open_and_close, NULL), 0);
    for (unsigned i = 0; i < 100; i++) {
        int status = 1;
        const pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0)
            _exit(has_descriptor(&file) ? 1 : 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    atomic_store(&is_over, true);
    assert_int_equal(pthread_join(thread, &failure), 0);
    assert_null(failure);
}

/* A peer of pid 1 in namespaces of its own.  A process that cannot enter any answers 254. */
static void obey_in_namespaces(int socket)
{
    unsigned char cannot = 254;

    if (!namespaces_enter(CLONE_NEWUSER | CLONE_NEWPID))
        _exit(write(socket, &cannot, 1) == 1 ? 0 : 1);
    if (fork() == 0)
        peer_run(socket);
    (void)close(socket);
    _exit(wait(NULL) > 0 ? 0 : 1);
}

TEST_WITH(pid_namespaces_make_no_difference, NULL, without_a_file)
{
    struct peer peer;
    int sockets[2];

    assert_int_equal(xseg_shared_budget_open(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    peer.pid = fork();
    assert_true(peer.pid >= 0);
    if (peer.pid == 0) {
        (void)close(sockets[0]);
        obey_in_namespaces(sockets[1]);
    }
    (void)close(sockets[1]);
    peer.socket = sockets[0];
    peer.slot = peer_answer(&peer);
    if (peer.slot == 254) {
        print_message("# this system lets no process enter a user namespace: nothing was tried\n");
    } else {
        assert_int_equal(peer.slot, 1);
        assert_int_equal(peer_call(&peer, 'r', 0), 2);
        assert_int_equal(peer_call(&peer, 'w', 4), 0);
        assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
        assert_int_equal(budget.seen[1].record.pid, 1);
        assert_true(budget_file_matches(&budget.seen[1].record, 4));
        /* It reads an end of file, and ends without closing the shared budget file. */
        (void)shutdown(peer.socket, SHUT_WR);
    }
    assert_int_equal(waitpid(peer.pid, NULL, 0), peer.pid);
    (void)close(peer.socket);
    assert_int_equal(xseg_shared_budget_read(&budget), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 1);
}

/* --- Looking without a slot. --- */

TEST_WITH(readers_do_not_become_members, NULL, without_a_file)
{
    const struct peer one = peer_start(), two = peer_start();
    struct stat before, after;

    assert_int_equal(peer_call(&one, 'w', 7), 0);
    assert_int_equal(chmod(budget_file_path, 0440), 0);
    assert_int_equal(stat(budget_file_path, &before), 0);
    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_OK);
    assert_false(xseg_shared_budget_is_own(&budget));
    assert_int_equal(budget_file_count(&budget), 2);
    assert_int_equal(budget.seen[one.slot].state, XSEG_SHARED_BUDGET_FRESH);
    assert_true(budget_file_matches(&budget.seen[one.slot].record, 7));
    assert_int_equal(budget.seen[two.slot].record.pid, two.pid);
    assert_int_equal(peer_call(&one, 'r', 0), 2);
    assert_int_equal(stat(budget_file_path, &after), 0);
    assert_memory_equal(&after.st_mtim, &before.st_mtim, sizeof(after.st_mtim));
    peer_kill(&two);
    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 1);
    peer_end(&one);
    /* The own process's slot is seen as any other. */
    assert_int_equal(chmod(budget_file_path, 0660), 0);
    assert_int_equal(xseg_shared_budget_open(&other, budget_file_path), XSEG_OK);
    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(budget_file_count(&budget), 1);
    assert_int_equal(budget.seen[0].record.pid, getpid());
}

TEST_WITH(garbage_is_reported_to_readers, NULL, without_a_file)
{
    static const unsigned char garbage[BUDGET_FILE_SLOT] = {1, 2, 3};

    const struct peer one = peer_start();
    budget_file_put(BUDGET_FILE_SLOTS_AT + (off_t)one.slot * BUDGET_FILE_SLOT, garbage,
                    sizeof(garbage));
    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_OK);
    assert_int_equal(budget.seen[one.slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    peer_end(&one);
}

TEST_WITH(readers_reject_other_files, NULL, without_a_file)
{
    static const unsigned char zeros[BUDGET_FILE_SLOT];

    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_said("cannot be opened");
    assert_int_equal(access(budget_file_path, F_OK), -1);
    assert_int_equal(xseg_shared_budget_scan(&budget, ""), XSEG_ERR_ARGUMENT);
    budget_file_put(0, zeros, sizeof(zeros));
    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_ERR_BUSY);
    assert_said("still being created");
    budget_file_put(0, "notes", 5);
    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_said("is not a shared budget file");
    assert_int_equal(unlink(budget_file_path), 0);
    assert_int_equal(mkfifo(budget_file_path, 0600), 0);
    assert_int_equal(xseg_shared_budget_scan(&budget, budget_file_path), XSEG_ERR_FILE);
    assert_said("not a regular file");
    assert_false(xseg_shared_budget_is_own(&budget));
}

TEST_GROUP_FIXTURE(budget_files_begin, budget_files_end)
