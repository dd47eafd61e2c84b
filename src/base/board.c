/* SPDX-License-Identifier: MIT */
#include "src/base/board.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/check.h"

#ifndef F_SEAL_FUTURE_WRITE /* glibc before 2.32 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#ifndef MFD_NOEXEC_SEAL /* glibc before 2.38 */
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* Create the file.  Linux 6.3 knows MFD_NOEXEC_SEAL, and with vm.memfd_noexec=2 demands it; kernels before refuse it. */
static int create(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int file = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    return file >= 0 || errno != EINVAL ? file : memfd_create(name, flags);
}

/* Give the file its size, for good, and map it. */
static int fill_in(struct xseg_board *board)
{
    if (ftruncate(board->file, (off_t)board->bytes) != 0)
        return errno;
    board->memory = mmap(NULL, board->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board->file, 0);
    if (board->memory == MAP_FAILED)
        return errno;
    if (madvise(board->memory, board->bytes, MADV_DONTFORK) != 0 ||
        fcntl(board->file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return errno;
    (void)fcntl(board->file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    (void)fcntl(board->file, F_ADD_SEALS, F_SEAL_SEAL);
    return 0;
}

int xseg_board_init(struct xseg_board *board, const char *name, size_t bytes)
{
    XSEG_ASSERT(bytes > 0);
    *board = (struct xseg_board){.memory = MAP_FAILED, .bytes = bytes};
    board->file = create(name);
    const int error = board->file < 0 ? errno : fill_in(board);
    if (error == 0)
        return 0;
    if (board->memory != MAP_FAILED)
        (void)munmap(board->memory, bytes);
    if (board->file >= 0)
        (void)close(board->file);
    *board = (struct xseg_board){.memory = NULL};
    return error;
}

void xseg_board_fini(struct xseg_board *board)
{
    if (board->memory == NULL)
        return;
    (void)munmap(board->memory, board->bytes);
    (void)close(board->file);
    *board = (struct xseg_board){.memory = NULL};
}
