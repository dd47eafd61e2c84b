/* SPDX-License-Identifier: MIT */
/*
 * Contexts: the primary context of each device, and each thread's stack of current ones.
 *
 * A context is active from its first retain until its last release or a reset.  When it ends, its
 * streams, its events and the device's cuMemAlloc memory end with it; virtual memory (physical
 * memory, reservations, mappings) belongs to no context and stays.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_CONTEXT_H
#define XSEG_SIM_CONTEXT_H

#include <cuda.h>

/**
 * The device whose context is current to the calling thread.
 *
 * Returns: CUDA_ERROR_INVALID_CONTEXT without one, CUDA_ERROR_CONTEXT_IS_DESTROYED if it has ended
 */
CUresult sim_context_current(unsigned *device);

/** The handle of a device's context; the same as long as the machine lives. */
CUcontext sim_context_handle(unsigned device);

/** The device of a context handle.  Returns: CUDA_ERROR_INVALID_CONTEXT if it is no active one. */
CUresult sim_context_device(CUcontext context, unsigned *device);

/** End a context and what belongs to it. */
void sim_context_destroy(unsigned device);

#endif
