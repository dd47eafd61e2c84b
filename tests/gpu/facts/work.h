/* SPDX-License-Identifier: MIT */
/*
 * Work that keeps a stream busy: on the simulator until it is completed by a wait; on a GPU for about 200 ms, by fills
 * of memory that the process keeps until it ends.
 *
 * The number of fills is derived from a measurement, once in a process.  The measurement also loads the driver's kernels,
 * which would otherwise block a check.
 */
#ifndef XSEG_TESTS_GPU_FACTS_WORK_H
#define XSEG_TESTS_GPU_FACTS_WORK_H

#include <cuda.h>

/* A failure, or lack of memory, ends the check. */
void keep_busy(CUstream stream);
void wait_for_work(CUstream stream);

/* The two halves of keep_busy(). The second does not assert, so any thread may call it. */
void prepare_work(void);
CUresult queue_work(CUstream stream);

/* Must be called after the context was destroyed, and with it the memory for the fills. */
void discard_work(void);

CUresult end_work(void);

#endif
