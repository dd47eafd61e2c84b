/* SPDX-License-Identifier: MIT */
#include "src/base/barrier.h"

#include <linux/membarrier.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool membarrier(int command)
{
    return syscall(__NR_membarrier, command, 0, 0) == 0;
}

bool xseg_barrier_register(void)
{
    return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

/*
 * A page that goes out of use interrupts the processors that run this process, as they must forget its
 * address, and an interrupt is a barrier.  Some processors are told without one; by the end of the sleep
 * their stores have been seen all the same, since none is kept back for a thousandth of that time.
 */
static void interrupt_others(void)
{
    const struct timespec moment = {0, 2000000};
    void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page != MAP_FAILED) {
        *(volatile char *)page = 1;
        (void)munmap(page, 1);
    }
    (void)nanosleep(&moment, NULL);
}

void xseg_barrier_pass(void)
{
    if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) && !membarrier(MEMBARRIER_CMD_GLOBAL))
        interrupt_others();
}
