/* SPDX-License-Identifier: MIT */
/* Host memory with special properties: demand-zero, wiped by a fork, shared for statistics. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/host_memory.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/test.h"
#include "tests/support/wrapped.h"

/* --- Demand-zero memory, after large frees of the process. --- */

/* The number of resident pages of an allocation. */
static size_t resident(void *memory, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), offset_in_page = (uintptr_t)memory % page;
    const size_t pages = (offset_in_page + bytes + page - 1) / page;
    unsigned char *residency = malloc(pages);
    size_t count = 0;

    assert_non_null(residency);
    assert_int_equal(mincore((char *)memory - offset_in_page, offset_in_page + bytes, residency),
                     0);
    for (size_t i = 0; i < pages; i++)
        count += residency[i] & 1;
    free(residency);
    return count;
}

/* The C library then serves large allocations from the heap instead of mmap(). */
static void free_large_allocation(void)
{
    char *memory = malloc((size_t)24 << 20);

    assert_non_null(memory);
    memset(memory, 1, (size_t)24 << 20);
    free(memory);
}

TEST(untouched_pages_are_not_resident)
{
    const size_t bytes = (size_t)8 << 20;

    free_large_allocation();
    unsigned char *memory = xseg_demand_zero_alloc(bytes);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(resident(memory, bytes), 0);
    memory[bytes / 2] = 1;
    assert_int_equal(resident(memory, bytes), 1);
    xseg_demand_zero_free(memory, bytes);
}

/* If all allocations started in one cache line of a page, their equal offsets would share one set of the L1 cache. */
TEST(allocations_start_in_different_cache_lines)
{
    enum { PIECES = 64 };
    void *piece[PIECES];
    uint64_t lines = 0;

    for (unsigned i = 0; i < PIECES; i++) {
        piece[i] = xseg_demand_zero_alloc(XSEG_DEMAND_ZERO_LARGE);
        assert_non_null(piece[i]);
        lines |= (uint64_t)1 << (uintptr_t)piece[i] % 4096 / 64;
    }
    assert_int_equal(lines, UINT64_MAX);
    for (unsigned i = 0; i < PIECES; i++)
        xseg_demand_zero_free(piece[i], XSEG_DEMAND_ZERO_LARGE);
}

TEST(every_byte_is_zero)
{
    static const size_t sizes[] = {1, 4096, XSEG_DEMAND_ZERO_LARGE - 1, XSEG_DEMAND_ZERO_LARGE,
                                   XSEG_DEMAND_ZERO_LARGE + 1};

    for (unsigned round = 0; round < 3; round++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            unsigned char *memory = xseg_demand_zero_alloc(sizes[i]);

            assert_non_null(memory);
            for (size_t at = 0; at < sizes[i]; at++)
                assert_int_equal(memory[at], 0);
            memset(memory, 0xff, sizes[i]);
            xseg_demand_zero_free(memory, sizes[i]);
        }
    xseg_demand_zero_free(NULL, 1);
    xseg_demand_zero_free(NULL, XSEG_DEMAND_ZERO_LARGE);
}

/* --- Detection of a fork, with and without a page that the kernel zeroes in the child. --- */

static bool holds_in_child(bool (*condition)(struct xseg_fork_guard *guard),
                           struct xseg_fork_guard *guard)
{
    int status = 0;
    const pid_t child = fork();

    if (child == 0)
        _exit(condition(guard) ? 0 : 1);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
}

static bool is_child(struct xseg_fork_guard *guard)
{
    return xseg_fork_guard_is_child(guard);
}

TEST(child_is_detected_by_the_wiped_page)
{
    struct xseg_fork_guard guard = {0};

    assert_true(xseg_fork_guard_init(&guard));
    assert_non_null((const void *)(uintptr_t)guard.marker);
    guard.owner = 0; /* not read */
    assert_false(xseg_fork_guard_is_child(&guard));
    assert_true(holds_in_child(is_child, &guard));
    assert_false(xseg_fork_guard_is_child(&guard));
    xseg_fork_guard_fini(&guard);
    /* Without the page, as on a kernel without MADV_WIPEONFORK or after fini, the guard compares process IDs. */
    assert_true(xseg_fork_guard_init(&guard));
    for (unsigned i = 0; i < 2; i++) {
        xseg_fork_guard_fini(&guard);
        assert_null((const void *)(uintptr_t)guard.marker);
        assert_false(xseg_fork_guard_is_child(&guard));
        assert_true(holds_in_child(is_child, &guard));
    }
}

static bool init_fails(struct xseg_fork_guard *guard)
{
    const struct rlimit none = {0, 0};

    return setrlimit(RLIMIT_AS, &none) == 0 && !xseg_fork_guard_init(guard) &&
           guard->marker == NULL;
}

TEST(init_fails_without_host_memory)
{
    struct xseg_fork_guard guard = {0};

    if (skip_in_emulator("memory has no limit"))
        return;
    assert_true(holds_in_child(init_fails, &guard));
}

/* --- Shared statistics regions: access by others, and failures of each system call. --- */

WRAPPED(int, madvise, void *address, size_t bytes, int advice);
WRAPPED(int, memfd_create, const char *name, unsigned flags);
WRAPPED(void *, mmap, void *address, size_t bytes, int protection, int flags, int file,
        off_t offset);
WRAPPED(void *, mmap64, void *address, size_t bytes, int protection, int flags, int file,
        off_t offset);
WRAPPED(int, ftruncate, int file, off_t bytes);
WRAPPED(int, ftruncate64, int file, off_t bytes);

static unsigned failing_call; /* counts down to the call that fails; 0: none fails */

static bool fails(int error)
{
    if (failing_call == 0 || --failing_call > 0)
        return false;
    errno = error;
    return true;
}

int __wrap_madvise(void *address, size_t bytes, int advice)
{
    return fails(EINVAL) ? -1 : __real_madvise(address, bytes, advice);
}

#define NOEXEC_SEAL 0x0008u /* MFD_NOEXEC_SEAL, absent from headers before Linux 6.3 */

static bool is_old_kernel;   /* the kernel does not support NOEXEC_SEAL */
static unsigned memfd_flags; /* of the last memfd_create() */

int __wrap_memfd_create(const char *name, unsigned flags)
{
    if (is_old_kernel && (flags & NOEXEC_SEAL) != 0) {
        errno = EINVAL;
        return -1;
    }
    memfd_flags = flags;
    /* The kernel of the host may not support the flag. */
    flags &= ~NOEXEC_SEAL;
    return fails(EMFILE) ? -1 : __real_memfd_create(name, flags);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return fails(ENOMEM) ? MAP_FAILED
                         : __real_mmap(address, bytes, protection, flags, file, offset);
}

void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return __wrap_mmap(address, bytes, protection, flags, file, offset);
}

int __wrap_ftruncate(int file, off_t bytes)
{
    return fails(ENOSPC) ? -1 : __real_ftruncate(file, bytes);
}

int __wrap_ftruncate64(int file, off_t bytes)
{
    return __wrap_ftruncate(file, bytes);
}

static struct xseg_shared_region region;

FIXTURE(make_region)
{
    assert_int_equal(xseg_shared_region_init(&region, "region", 10000), 0);
}

FIXTURE(free_region)
{
    xseg_shared_region_fini(&region);
}

TEST_WITH(other_processes_read_the_written_bytes, make_region, free_region)
{
    char target[64] = "", byte = 0;
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", region.file);
    assert_true(readlink(path, target, sizeof(target) - 1) > 0);
    assert_string_equal(target, "/memfd:region (deleted)");
    ((char *)region.memory)[9999] = 'x';
    /* Open the file again, as another process would. */
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(file, &byte, 1, 9999), 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(pread(file, &byte, 1, 0), 1);
    assert_int_equal(byte, 0);
    assert_int_equal(lseek(file, 0, SEEK_END), 10000);
    assert_int_equal(close(file), 0);
    xseg_shared_region_fini(&region);
    assert_null(region.memory);
}

TEST_WITH(size_of_a_region_is_sealed, make_region, free_region)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

    assert_int_equal(fcntl(region.file, F_GET_SEALS) & seals, seals);
    assert_int_equal(ftruncate(region.file, 0), -1);
    assert_int_equal(ftruncate(region.file, 20000), -1);
}

/* With vm.memfd_noexec=2 the kernel rejects files that could be executed. */
TEST_WITH(region_is_not_executable_where_supported, make_region, free_region)
{
    assert_int_equal(memfd_flags & NOEXEC_SEAL, NOEXEC_SEAL);
    xseg_shared_region_fini(&region);
    is_old_kernel = true;
    assert_int_equal(xseg_shared_region_init(&region, "region", 10000), 0);
    is_old_kernel = false;
    assert_int_equal(memfd_flags & NOEXEC_SEAL, 0);
}

/* Whether a byte of the memory is readable: a system call reports that without a fault. */
static bool is_mapped(const void *memory)
{
    int ends[2];
    const bool is_readable = pipe(ends) == 0 && write(ends[1], memory, 1) == 1;

    (void)close(ends[0]);
    (void)close(ends[1]);
    return is_readable;
}

TEST_WITH(child_cannot_access_the_region, make_region, free_region)
{
    assert_true(is_mapped(region.memory));
    const pid_t child = fork();
    if (child == 0)
        _exit(is_mapped(region.memory) ? 1 : 0);
    child_expect_success(child);
    assert_int_equal(fcntl(region.file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(failed_calls_are_rolled_back)
{
    /* Of memfd_create(), ftruncate(), mmap() and madvise(). */
    static const int expected[] = {EMFILE, ENOSPC, ENOMEM, EINVAL};

    for (unsigned nth = 1; nth <= 4; nth++) {
        const int next_fd = dup(0);

        assert_int_equal(close(next_fd), 0);
        failing_call = nth;
        assert_int_equal(xseg_shared_region_init(&region, "region", 10000), expected[nth - 1]);
        assert_int_equal(failing_call, 0);
        assert_null(region.memory);
        xseg_shared_region_fini(&region);
        /* No descriptor remains open. */
        assert_int_equal(dup(0), next_fd);
        assert_int_equal(close(next_fd), 0);
    }
    assert_int_equal(xseg_shared_region_init(&region, "region", 10000), 0);
    xseg_shared_region_fini(&region);
}
