/* SPDX-License-Identifier: MIT */
/*
 * Work that keeps a stream busy: on the simulator for ever, until somebody waits for it; on a GPU for
 * some 200 ms, with fills of memory that the process keeps until it ends.
 *
 * How many fills take so long is measured once in a process.  That also loads the driver's own kernels,
 * which could otherwise be loaded, and waited for, in the middle of a check.
 */
#ifndef XSEG_TESTS_GPU_FACTS_WORK_H
#define XSEG_TESTS_GPU_FACTS_WORK_H

#include <cuda.h>

/* A failure, or lack of memory, ends the check. */
void keep_busy(CUstream stream);
void let_rest(CUstream stream);

/* The two halves of keep_busy(). The second does not assert, so any thread may call it. */
void prepare_work(void);
CUresult queue_work(CUstream stream);

/* The context was destroyed, and with it the memory for the fills. */
void forget_work(void);

CUresult end_work(void);

#endif
