/* SPDX-License-Identifier: MIT */
/*
 * Devices, primary contexts and peer access.
 *
 * Devices have the attributes of an A100; settings determine some of them.  An attribute that the table lacks is an
 * invalid value.
 *
 * A device has one context, its primary context, so a context is identified by its device.  The context is active from
 * the first cuDevicePrimaryCtxRetain to the last release or a reset.  Its end destroys its streams and events and frees
 * the cuMemAlloc memory of the device.  Physical memory, reservations and mappings belong to no context and remain.
 * Each thread has a stack of current contexts.
 *
 * Peer access (cuCtxEnablePeerAccess) concerns allocations of cuMemAlloc only.  Mappings have separate access rights
 * (cuMemSetAccess), which peer access does not change.
 *
 * Invariants: retained is not 0 only for a context that is active or was reset; the peers of an inactive context are 0.
 *
 * Locking: the machine lock; the context stack is thread-local.
 */
#ifndef XSEG_SIM_CONTEXT_H
#define XSEG_SIM_CONTEXT_H

#include <cuda.h>

/**
 * Get the device of the current context.
 *
 * Returns CUDA_ERROR_INVALID_CONTEXT if there is none, CUDA_ERROR_CONTEXT_IS_DESTROYED if it is not active.
 */
CUresult sim_context_current(unsigned *device);

/** Get the handle of the primary context of a device, constant until a reset of the machine. */
CUcontext sim_context_handle(unsigned device);

/** Get the device of a context.  Returns CUDA_ERROR_INVALID_CONTEXT if the context is not active. */
CUresult sim_context_device(CUcontext context, unsigned *device);

/** Destroy the primary context of a device. */
void sim_context_destroy(unsigned device);

#endif
