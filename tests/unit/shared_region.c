/* SPDX-License-Identifier: MIT */
/* Boards: what others may do with them, what a child has of them, and each system call that fails. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/host_memory.h"
#include "tests/support/test.h"

int __real_madvise(void *address, size_t bytes, int advice);
int __real_memfd_create(const char *name, unsigned flags);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__real_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_ftruncate(int file, off_t bytes);
int __real_ftruncate64(int file, off_t bytes);
int __wrap_madvise(void *address, size_t bytes, int advice);
int __wrap_memfd_create(const char *name, unsigned flags);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int __wrap_ftruncate(int file, off_t bytes);
int __wrap_ftruncate64(int file, off_t bytes);

static unsigned until; /* calls until one fails; 0: none does */

static bool fails(int error)
{
    if (until == 0 || --until > 0)
        return false;
    errno = error;
    return true;
}

int __wrap_madvise(void *address, size_t bytes, int advice)
{
    return fails(EINVAL) ? -1 : __real_madvise(address, bytes, advice);
}

#define NOEXEC_SEAL 0x0008u /* MFD_NOEXEC_SEAL, which headers before Linux 6.3 do not have */

static bool is_old;           /* the kernel: it does not know NOEXEC_SEAL */
static unsigned created_with; /* flags of the last file */

int __wrap_memfd_create(const char *name, unsigned flags)
{
    if (is_old && (flags & NOEXEC_SEAL) != 0) {
        errno = EINVAL;
        return -1;
    }
    created_with = flags;
    /* The kernel that the test runs on may be an old one itself. */
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

/* Open the board's file once more, as another process would. */
static int open_again(const struct xseg_shared_region *board, int flags)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", board->file);
    return open(path, flags | O_CLOEXEC);
}

TEST(other_processes_read_the_written_bytes)
{
    struct xseg_shared_region board;
    char target[64] = "", byte = 0;
    char path[64];

    assert_int_equal(xseg_shared_region_init(&board, "board", 10000), 0);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", board.file);
    assert_true(readlink(path, target, sizeof(target) - 1) > 0);
    assert_string_equal(target, "/memfd:board (deleted)");
    ((char *)board.memory)[9999] = 'x';
    const int file = open_again(&board, O_RDONLY);
    assert_int_equal(pread(file, &byte, 1, 9999), 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(pread(file, &byte, 1, 0), 1);
    assert_int_equal(byte, 0);
    assert_int_equal(lseek(file, 0, SEEK_END), 10000);
    assert_int_equal(close(file), 0);
    xseg_shared_region_fini(&board);
    assert_null(board.memory);
    xseg_shared_region_fini(&board);
}

TEST(its_size_is_sealed)
{
    struct xseg_shared_region board;

    assert_int_equal(xseg_shared_region_init(&board, "board", 10000), 0);
    assert_int_equal(fcntl(board.file, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(ftruncate(board.file, 0), -1);
    assert_int_equal(ftruncate(board.file, 20000), -1);
    xseg_shared_region_fini(&board);
}

/* Where vm.memfd_noexec is 2, a file that could be executed is refused. */
TEST(region_is_not_executable_where_supported)
{
    struct xseg_shared_region board;

    assert_int_equal(xseg_shared_region_init(&board, "board", 10000), 0);
    assert_int_equal(created_with & NOEXEC_SEAL, NOEXEC_SEAL);
    xseg_shared_region_fini(&board);
    is_old = true;
    assert_int_equal(xseg_shared_region_init(&board, "board", 10000), 0);
    is_old = false;
    assert_int_equal(created_with & NOEXEC_SEAL, 0);
    xseg_shared_region_fini(&board);
}

/* Whether a byte of the memory can be read: a system call says so without a fault. */
static bool is_mapped(const void *memory)
{
    int ends[2];
    const bool fine = pipe(ends) == 0 && write(ends[1], memory, 1) == 1;

    (void)close(ends[0]);
    (void)close(ends[1]);
    return fine;
}

TEST(a_child_cannot_write_to_it)
{
    struct xseg_shared_region board;
    int status = 0;

    assert_int_equal(xseg_shared_region_init(&board, "board", 10000), 0);
    assert_true(is_mapped(board.memory));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(is_mapped(board.memory) ? 1 : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(fcntl(board.file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    xseg_shared_region_fini(&board);
}

TEST(each_call_may_fail)
{
    static const int wanted[] = {EMFILE, ENOSPC, ENOMEM, EINVAL};
    struct xseg_shared_region board;

    for (unsigned nth = 1; nth <= 4; nth++) {
        const int next = dup(0);

        assert_int_equal(close(next), 0);
        until = nth;
        assert_int_equal(xseg_shared_region_init(&board, "board", 10000), wanted[nth - 1]);
        assert_int_equal(until, 0);
        assert_null(board.memory);
        xseg_shared_region_fini(&board);
        /* No descriptor stays open. */
        assert_int_equal(dup(0), next);
        assert_int_equal(close(next), 0);
    }
    assert_int_equal(xseg_shared_region_init(&board, "board", 10000), 0);
    xseg_shared_region_fini(&board);
}
