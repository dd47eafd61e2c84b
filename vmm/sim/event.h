/* SPDX-License-Identifier: MIT */
/*
 * Events: markers of the work that a stream has queued so far.
 *
 * A record stores the last work of the stream, or, on a capturing stream, the ID of the capture and the nodes on which
 * the next node of the stream depends.  An event that was recorded in a capture can only be waited for by streams, which
 * thereby join the capture (capture.h); queries, synchronization and timing fail.
 *
 * The time of an event is the end of its work, or the time of the record if that is later.  When the work has completed,
 * the time is stored and the work released, so that an old event does not keep a destroyed stream in memory.
 *
 * An event belongs to the context of its device and is destroyed with it.  Events of other processes (sharing.h) are
 * always complete, because clocks are private to processes.
 *
 * cuEventQuery has a path without the lock for a single-threaded process (sim_is_lock_free()): an allocator polls many
 * events that are not complete.  It returns what the general path returns, and charges the same cost.
 *
 * Invariants: an event with work has capture_id 0; each event is in the list of its device.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_EVENT_H
#define XSEG_SIM_EVENT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/graph.h"

struct sim_stream;
struct sim_work;

struct sim_event {
    uint64_t handle;
    unsigned device;
    bool is_timed;
    bool is_interprocess;
    bool is_recorded;
    uint64_t time;                 /* valid when the work has been released */
    struct sim_work *work;         /* NULL: complete */
    uint64_t capture_id;           /* 0: the last record was not captured */
    struct sim_nodes dependencies; /* nodes of the last captured record */
    struct sim_event *prev, *next;
};

/** Create an event, as cuEventCreate does. */
CUresult sim_event_create(CUevent *out, unsigned flags);

/** Record an event on a stream that is not capturing.  Returns CUDA_ERROR_INVALID_HANDLE for a destroyed event. */
CUresult sim_event_record(CUevent handle, struct sim_stream *stream);

/** Queue a wait for an event on a stream that is not capturing.  Returns as sim_event_record(). */
CUresult sim_event_queue_wait(CUevent handle, struct sim_stream *stream);

/** Check that an event was created for other processes.  Returns CUDA_ERROR_INVALID_HANDLE if not. */
CUresult sim_event_check_interprocess(CUevent handle);

/** Destroy all events of a device. */
void sim_events_destroy(unsigned device);

#endif
