/* SPDX-License-Identifier: MIT */
/*
 * The few driver calls that a replay makes itself: streams to replay on, and one event to let one
 * stream wait for another.
 *
 * The driver is opened by name, so that the tool needs no driver to start and no header of it to
 * build.  The calls work in the primary context of device 0, which stays current on the calling
 * thread between gpu_open() and gpu_close().
 *
 * Locking: none; all calls come from the thread that opened it.
 */
#ifndef TOOLS_GPU_H
#define TOOLS_GPU_H

#include <stdbool.h>
#include <stddef.h>

struct gpu;
struct CUstream_st;

/*
 * A driver is named by its library, as xseg_options.driver takes it.  GPU_SIMULATED stands for the
 * simulator of simulator.h, whose clock and scene the tool has in hand; the same library by its path is a
 * driver like any other.
 */
#define GPU_SIMULATED NULL

/* What `--driver` names: NULL (not given) and "sim" are GPU_SIMULATED, "cuda" is this machine's driver. */
const char *gpu_driver_of(const char *text);

/* The path or name of a driver's library; NULL if the simulator is meant and not open. */
const char *gpu_library(const char *driver);

/*
 * Open a driver and device 0 of it.  Returns NULL on failure; `problem` is then a sentence.
 */
struct gpu *gpu_open(const char *driver, char *problem, size_t problem_bytes);

/* Destroy what was made and let go of the context.  NULL is fine. */
void gpu_close(struct gpu *gpu);

/* The calls below return false when the driver refuses. */

/* A stream that does not wait for the default stream.  It lives until gpu_close(). */
bool gpu_stream(struct gpu *gpu, struct CUstream_st **out);

/* Whether all work on a stream has finished. */
bool gpu_idle(struct gpu *gpu, struct CUstream_st *stream, bool *out);

/* Let the host wait for a stream that is not captured, or, while nothing is, for everything in the context. */
bool gpu_finish(struct gpu *gpu, struct CUstream_st *stream);
bool gpu_finish_all(struct gpu *gpu);

/* Let `stream` wait for what is queued on `other` so far. */
bool gpu_wait(struct gpu *gpu, struct CUstream_st *stream, struct CUstream_st *other);

/* Whether a stream is being captured. */
bool gpu_is_captured(struct gpu *gpu, struct CUstream_st *stream, bool *out);

/* Begin a capture, in the mode that forbids most; end it, and destroy its graph. */
bool gpu_capture_begin(struct gpu *gpu, struct CUstream_st *stream);
bool gpu_capture_end(struct gpu *gpu, struct CUstream_st *stream);

/* Queue a write of `bytes` bytes at a device address. */
bool gpu_touch(struct gpu *gpu, struct CUstream_st *stream, void *address, size_t bytes);

#endif
