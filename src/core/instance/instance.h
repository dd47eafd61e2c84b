/* SPDX-License-Identifier: MIT */
/*
 * An allocator from open to close: its devices, configuration, background thread and housekeeping.
 *
 *     xseg_open()    configuration, driver, background thread
 *     a device       opened by the first call that names it: context, probes of page properties
 *     xseg_close()   check that nothing is allocated, release memory, stop the background thread,
 *                    release contexts, free
 *
 * The state that modules keep of an allocator or a device is one host allocation, which is freed if
 * opening fails.  Closing runs each step on all devices before the next step.
 * If a step fails, the previous steps are undone, the handle stays usable, and xseg_close() can be
 * called again.
 *
 * The background thread exists only with the key background_thread or budget_file.  It runs decay
 * passes (decay.h) on every open device, so that memory is released while the program makes no
 * calls, and rounds of the budget (budget.h).  It blocks all signals, and stops before the
 * allocator is freed.  A forked child has no background thread, and cannot use the allocator.
 *
 * Deferred housekeeping is work that slow-path calls and the background thread run at their end; a
 * hit never runs it.  Housekeeping notifies observers of events, and publishes statistics.
 *
 * Invariants:
 *   - A configuration is complete when it is published, and is not changed afterwards.
 *   - Entries of the stream lookup cache that a configuration invalidates are dropped before
 *     xseg_config_set() returns.
 *   - If opening an allocator or a device fails, all of its effects are undone.
 *
 * Locking: DRIVER is locked here, for opening devices and for changes of the configuration; the
 * thread is started and stopped under DRIVER.  The background thread holds BUDGET or the device
 * memory lock.  The caller holds no lock, unless a function states otherwise.
 */
#ifndef XSEG_CORE_INSTANCE_H
#define XSEG_CORE_INSTANCE_H

#include <pthread.h>

#include "src/core/device/device.h"
#include "src/core/history/history.h"
#include "src/core/report/memory_stats.h"

/* --- Open and close. --- */

/* Implement xseg_open() of the public header. */
xseg_status xseg_allocator_open(const char *config, const char *driver, const struct xseg_log *log,
                                const struct xseg_clock *clock, struct xseg_allocator **out);

/* Implement xseg_close() of the public header. */
xseg_status xseg_allocator_close(struct xseg_allocator *allocator);

/*
 * Get a device by its ordinal; the first call opens it.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (no such device), or an error of xseg_device_open()
 */
xseg_status xseg_allocator_device(struct xseg_allocator *allocator, int ordinal,
                                  struct xseg_device **out);

/*
 * Open a device.  The caller holds DRIVER.
 *
 * reason: set to the reason why virtual memory management is unavailable; "" if it is available
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_NO_MEMORY, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_open(struct xseg_allocator *allocator, int ordinal, char *reason,
                             size_t reason_bytes, struct xseg_device **out);

/*
 * The steps of closing a device, in this order; each may be called again after an error.
 *
 * check_none_allocated: XSEG_ERR_BUSY if blocks are allocated; the error message names some
 * release_memory:       release all memory to the driver: XSEG_OK, XSEG_ERR_DRIVER
 * release_context:      XSEG_OK, XSEG_ERR_DRIVER; only the two steps below may follow
 * retain_context:       undo release_context; on failure the device is lost
 * free:                 free the device
 */
xseg_status xseg_device_check_none_allocated(struct xseg_device *device);
xseg_status xseg_device_release_memory(struct xseg_device *device);
xseg_status xseg_device_release_context(struct xseg_device *device);
void xseg_device_retain_context(struct xseg_device *device);
void xseg_device_free(struct xseg_device *device);

/* Create a private pool with one reference.  Returns XSEG_ERR_UNSUPPORTED if the pool requests a
 * property of pages that is unavailable. */
xseg_status xseg_device_create_pool(struct xseg_device *device,
                                    const struct xseg_pool_options *options,
                                    struct xseg_pool **out);

/* --- Configuration, limits, observers. --- */

/* Implement xseg_config_set() of the public header. */
xseg_status xseg_allocator_set_config(struct xseg_allocator *allocator, const char *config);

/* Publish a version whose derived members are set. */
void xseg_allocator_apply_config(struct xseg_allocator *allocator,
                                 struct xseg_config_version *version);

/* Log the keys of a configuration string that are set without effect.  named: set of the string's
 * keys */
void xseg_allocator_log_unused_keys(struct xseg_allocator *allocator, uint64_t named);

/* Log a warning, once per process, if the settings of the history capture stacks and libunwind
 * cannot be loaded. */
void xseg_allocator_log_stack_method(const struct xseg_log *log, uint64_t settings);

/* Implement xseg_limits_get() and xseg_limits_set() for an open device. */
void xseg_allocator_limits_get(struct xseg_allocator *allocator, const struct xseg_device *device,
                               struct xseg_limits *out);
xseg_status xseg_allocator_limits_set(struct xseg_allocator *allocator, struct xseg_device *device,
                                      const struct xseg_limits *limits);

/* Implement xseg_observer_add() and xseg_observer_remove() of the public header. */
xseg_status xseg_allocator_add_observer(struct xseg_allocator *allocator,
                                        const struct xseg_observer *observer, uint64_t *id);
xseg_status xseg_allocator_remove_observer(struct xseg_allocator *allocator, uint64_t id);

/* --- Background thread. --- */

struct xseg_background {
    pthread_t thread;
    pthread_mutex_t lock; /* guards is_stopping; nothing is locked inside */
    pthread_cond_t wake;
    bool is_running, is_stopping;
};

/*
 * Start the thread, unless it is running.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY (the thread cannot be created)
 */
xseg_status xseg_background_start(struct xseg_allocator *allocator);

/* Stop the thread, if it is running, and join it. */
void xseg_background_stop(struct xseg_allocator *allocator);

/* --- Housekeeping.  errno and the error message of the calling thread are preserved. --- */

/* Publish statistics that changed since their last publication, if the key publish is set. */
static inline void xseg_housekeeping_run(struct xseg_allocator *allocator)
{
    if (__builtin_expect(xseg_allocator_config(allocator)->publish, 0))
        xseg_publisher_run(allocator);
}

/* End a call that may have mapped or unmapped memory: notify observers with `on_trace`, then run
 * the housekeeping. */
static inline void xseg_housekeeping_end_call(struct xseg_allocator *allocator)
{
    xseg_allocator_deliver(allocator);
    xseg_housekeeping_run(allocator);
}

/* --- Audit. --- */

/* Host bytes that a device uses for bookkeeping. */
uint64_t xseg_device_host_bytes(struct xseg_device *device);

/* Audit a device and all its arenas. */
bool xseg_device_audit(struct xseg_device *device, struct xseg_violation *violation);

/* --- History sweep. --- */

/*
 * The history sweep: a mark-and-sweep collection of labels and of the frame IDs that the
 * application's hook returned; and the labels of threads.
 *
 * The roots are the contexts of threads, the events in rings and the allocated blocks.  Marking
 * needs no write barrier.  A label is attached to events and blocks only from the context of a
 * thread, and a label that a thread sets during the sweep is created marked (labels.h).  Frame
 * IDs follow the same rule: IDs that were gathered after the previous sweep began are not
 * discarded.
 *
 * A sweep runs when a table is full: labels.h counts new labels, history.h counts frame IDs of the
 * hook.  If a sweep becomes due when a call gathers its context, the call runs the sweep before it
 * does anything else.  A sweep is O(events + blocks + labels).  Both limits grow with the number of
 * survivors of the last sweep, so the amortized cost of each new label is constant.
 *
 * When the table of labels is full, unused labels are dropped; while all are in use, a new label is
 * XSEG_HISTORY_LABELS_OTHER.
 *
 * Locking: the caller holds no lock.  SWEEP covers marking and dropping.  A sweep locks the device
 * memory lock for the blocks of a device, HISTORY for a batch of events, and LABELS to begin and to
 * drop; it locks no arena.  The hook is called without a lock.
 */

/* Sweep labels and frame IDs.  The hook's `discard` is not called while another thread runs it, or
 * after a host allocation failure.  Labels are not dropped while there are readers (labels.h). */
void xseg_history_sweep(struct xseg_allocator *allocator);

/* Sweep because the hook returned many frame IDs.  Does nothing while another thread sweeps. */
void xseg_history_sweep_frames(struct xseg_allocator *allocator);

/* Run xseg_history_gather() for a call of an allocator, and a sweep if one is due. */
static inline void xseg_allocator_gather(struct xseg_allocator *allocator, const void *user)
{
    if (__builtin_expect(xseg_history_gather(&allocator->history, user), 0))
        xseg_history_sweep_frames(allocator);
}

/*
 * Set the label of the calling thread; NULL: none.
 *
 * previous: NULL, or set to the previous label of the thread, whose string is retained until the
 *           thread restores it
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_label_set(struct xseg_allocator *allocator, const char *text,
                           const char **previous);

/* Write an annotation into the history of a device.  Returns: as xseg_label_set(); XSEG_OK if
 * annotations are not recorded */
xseg_status xseg_label_annotate(struct xseg_allocator *allocator, struct xseg_device *device,
                                const char *text);

#endif
