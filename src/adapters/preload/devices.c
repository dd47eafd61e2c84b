/* SPDX-License-Identifier: MIT */
#include "devices.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#define NON_BLOCKING  1
#define NOT_CAPTURING 0
#define RELAXED       2 /* capture mode */
/* Results of the driver. */
#define INVALID_CONTEXT      201
#define CONTEXT_IS_DESTROYED 709
/* The last of the three handles of default streams. */
#define PER_THREAD 2

/* The members after `users` are constant while the device is open. */
struct device {
    atomic_bool is_open;
    atomic_uint users; /* calls that use the allocator, or find that it is not open */
    struct xseg_allocator *allocator;
    void *context; /* the primary context, retained */
    unsigned long long id;
    /* Orders the blocks of EVERY_STREAM.  No work is ever queued on this stream, so every stream can use such a block
     * immediately. */
    xseg_stream order_stream;
};

static struct device devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* opening and resets */
static atomic_bool has_opened;  /* an allocator was opened, or is being opened */
static atomic_bool is_disabled; /* opening the first allocator failed: there is no other attempt */
static atomic_bool is_child;

/* Set during a call, because xseg and the original functions call interposed functions of the driver. */
static __thread bool is_in_call;
/* Bit mask of the devices whose context this call has found unchanged. */
static __thread uint64_t checked_devices;

_Static_assert(DEVICES <= 64, "a device is a bit of `checked_devices`");

/* A driver that the parent has initialized does not work in the child.  Otherwise the child resets the locks, because other
 * threads of the parent may have held them to open an allocator. */
static void after_fork_in_child(void)
{
    if (atomic_load(&has_opened)) {
        atomic_store(&is_child, true);
        return;
    }
    (void)pthread_mutex_init(&lock, NULL);
    for (int i = 0; i < DEVICES; i++)
        atomic_store(&devices[i].users, 0);
}

static __attribute__((constructor)) void register_fork_handler(void)
{
    (void)pthread_atfork(NULL, NULL, after_fork_in_child);
}

bool service_enter(void)
{
    if (is_in_call || atomic_load_explicit(&is_child, memory_order_relaxed))
        return false;
    is_in_call = true;
    checked_devices = 0;
    return true;
}

int service_leave(int result)
{
    is_in_call = false;
    return result;
}

/* --- Contexts. --- */

bool device_is_primary(int device, const void *context)
{
    const struct driver *cu = get_driver();
    void *primary = NULL;
    unsigned flags = 0;
    int is_active = 0;

    /* Retaining an inactive context would create it. */
    if (!cu || cu->primary_state(device, &flags, &is_active) != 0 || !is_active ||
        cu->primary_retain(&primary, device) != 0)
        return false;
    (void)cu->primary_release(device);
    return primary == context;
}

/* Get whether the primary context is still the context of the allocator, according to the driver. */
static bool has_context(const struct driver *cu, const struct device *state, int device)
{
    unsigned long long id = 0;
    unsigned flags = 0;
    int is_active = 0, result;

    if (cu->primary_state(device, &flags, &is_active) == 0 && !is_active)
        return false;
    result = cu->get_id(state->context, &id);
    return result == 0 ? id == state->id
                       : result != INVALID_CONTEXT && result != CONTEXT_IS_DESTROYED;
}

/* Restore the current context of the calling thread.  A failed call is retried once. */
static void pop_context(const struct driver *cu)
{
    void *popped = NULL;

    if (cu->pop_current(&popped) != 0)
        (void)cu->pop_current(&popped);
}

static void release_device(struct device *state)
{
    (void)atomic_fetch_sub(&state->users, 1);
}

static void wait_for_users(struct device *state)
{
    while (atomic_load(&state->users) != 0)
        (void)sched_yield();
}

/* Become a user of a device whose allocator is open, otherwise return NULL.  The context may have been reset. */
static struct device *acquire_unchecked(int device)
{
    struct device *state = &devices[device];

    if (!atomic_load_explicit(&state->is_open, memory_order_relaxed))
        return NULL;
    (void)atomic_fetch_add(&state->users, 1);
    if (atomic_load(&state->is_open))
        return state;
    release_device(state);
    return NULL;
}

/* Get whether the context of an acquired device is unchanged; otherwise abandon the allocator.  Queries the driver once per
 * call and device. */
static bool check_context(struct device *state, int device)
{
    if ((checked_devices >> device & 1) != 0)
        return true;
    if (has_context(get_driver(), state, device)) {
        checked_devices |= (uint64_t)1 << device;
        return true;
    }
    atomic_store(&state->is_open, false);
    return false;
}

/* Become a user of a device whose allocator is open and whose context is unchanged, until release_device().  Returns NULL
 * otherwise. */
static struct device *acquire_device(int device)
{
    struct device *state = acquire_unchecked(device);

    if (!state || check_context(state, device))
        return state;
    release_device(state);
    return NULL;
}

/* --- Opening. --- */

/* Set while an allocator after the first one opens, because its log lines would repeat those of the first. */
static __thread bool is_silent;

static void log_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    if (level != XSEG_LOG_INFO && !is_silent)
        (void)fprintf(stderr, "xseg: %s\n", line);
}

/* Open an allocator.  If the first one opened, a later failure is transient, and the next call retries. */
static bool open_allocator(struct xseg_allocator **out)
{
    const bool is_first = !atomic_exchange(&has_opened, true);
    struct xseg_options options = {sizeof(options)};
    char message[1024] = "";

    options.log = log_line;
    is_silent = !is_first;
    const xseg_status status = xseg_open(NULL, &options, out);
    is_silent = false;
    if (status == XSEG_OK)
        return true;
    if (is_first) {
        (void)xseg_error_message(message, sizeof(message));
        (void)fprintf(stderr,
                      "xseg-preload: cannot open an allocator, CUDA serves all requests: %s\n",
                      message);
        atomic_store(&is_disabled, true);
    }
    return false;
}

/* Retain the primary context and create `order_stream` in it.  On failure the context is released. */
static bool prepare_context(struct device *state, int device)
{
    const struct driver *cu = get_driver();
    bool is_ready;

    if (!cu || cu->primary_retain(&state->context, device) != 0)
        return false;
    is_ready = cu->push_current(state->context) == 0;
    if (is_ready) {
        is_ready = cu->get_id(state->context, &state->id) == 0 &&
                   cu->stream_create(&state->order_stream, NON_BLOCKING) == 0;
        pop_context(cu);
    }
    if (!is_ready)
        (void)cu->primary_release(device);
    return is_ready;
}

/* As acquire_device(), but open the allocator if necessary. */
static struct device *acquire_or_open(int device)
{
    struct device *state = device >= 0 && device < DEVICES ? acquire_device(device) : NULL;

    if (state || device < 0 || device >= DEVICES || atomic_load(&is_disabled))
        return state;
    state = &devices[device];
    (void)pthread_mutex_lock(&lock);
    if (!atomic_load(&state->is_open) && !atomic_load(&is_disabled)) {
        wait_for_users(state);
        if (open_allocator(&state->allocator)) {
            if (prepare_context(state, device))
                atomic_store(&state->is_open, true);
            else
                (void)!xseg_close(state->allocator);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return acquire_device(device);
}

/* --- Closing. --- */

static bool free_visited(void *context, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED)
        (void)!xseg_free(context, block->base);
    return true;
}

void device_reset_begin(int device)
{
    const struct driver *cu = get_driver();
    struct device *state = device >= 0 && device < DEVICES ? &devices[device] : NULL;

    if (state && atomic_load(&state->is_open))
        (void)device_synchronize(device);
    (void)pthread_mutex_lock(&lock);
    if (!state || !atomic_exchange(&state->is_open, false))
        return;
    wait_for_users(state);
    if (!has_context(cu, state, device))
        return;
    (void)!xseg_for_each_block(state->allocator, NULL, free_visited, state->allocator);
    /* An allocator that does not close is abandoned; its context is about to be destroyed. */
    (void)!xseg_close(state->allocator);
    (void)cu->stream_destroy(state->order_stream);
    (void)cu->primary_release(device);
}

void device_reset_end(void)
{
    (void)pthread_mutex_unlock(&lock);
}

/* --- Streams. --- */

static bool is_default(xseg_stream stream)
{
    return (uintptr_t)stream <= PER_THREAD;
}

int device_of_stream(xseg_stream stream, int current)
{
    const struct driver *cu = get_driver();
    void *context = NULL;
    int device = -1;

    if (is_default(stream) || !cu)
        return current;
    if (cu->stream_get_context(stream, &context) != 0)
        return -1;
    if (context && context == device_context(current))
        return current;
    if (cu->push_current(context) != 0)
        return -1;
    if (cu->get_device(&device) != 0)
        device = -1;
    pop_context(cu);
    return device >= 0 && context && device_is_primary(device, context) ? device : -1;
}

bool device_is_capturing(int device, xseg_stream stream)
{
    const struct driver *cu = get_driver();
    struct device *state = acquire_or_open(device);
    int status = NOT_CAPTURING, result = -1;

    if (!state)
        return false;
    if (cu->push_current(state->context) == 0) {
        result = cu->stream_is_capturing(stream, &status);
        pop_context(cu);
    }
    release_device(state);
    return result != 0 || status != NOT_CAPTURING;
}

/* Wait for a stream without invalidating captures of other streams.  `current` is the device of default streams.  Returns the
 * driver's result. */
static int synchronize_stream(xseg_stream stream, int current)
{
    const struct driver *cu = get_driver();
    void *context = is_default(stream) ? device_context(current) : NULL;
    int mode = RELAXED, result = 0;

    if (!is_default(stream))
        result = cu->stream_get_context(stream, &context);
    if (result == 0 && context)
        result = cu->push_current(context);
    if (result != 0)
        return result;
    result = cu->exchange_mode(&mode);
    if (result == 0) {
        result = cu->stream_synchronize(stream);
        (void)cu->exchange_mode(&mode);
    }
    if (context)
        pop_context(cu);
    return result;
}

void device_retire_stream(xseg_stream stream)
{
    for (int device = 0; device < DEVICES && !is_default(stream); device++) {
        struct device *state = acquire_device(device);

        if (!state)
            continue;
        const xseg_status status = xseg_stream_retire(state->allocator, device, stream);
        release_device(state);
        /* A new stream may reuse the handle, and must not get memory that this stream still uses. */
        if (status != XSEG_OK && status != XSEG_ERR_BUSY)
            (void)synchronize_stream(stream, device);
    }
}

/* --- Memory. --- */

bool device_alloc(int device, size_t bytes, xseg_stream stream, void **out)
{
    struct device *state = acquire_or_open(device);

    if (!state)
        return false;
    const xseg_status status =
        xseg_alloc(state->allocator, device, bytes,
                   stream == EVERY_STREAM ? state->order_stream : stream, out);
    release_device(state);
    return status == XSEG_OK;
}

enum ownership device_find(void *ptr, int *device)
{
    static __thread int last; /* the device of the previous block of this thread */

    for (int i = 0; i < DEVICES; i++) {
        struct xseg_block_info info = {sizeof(info)};
        struct device *state;

        *device = (last + i) % DEVICES;
        state = acquire_unchecked(*device);
        if (!state)
            continue;
        const bool is_found = xseg_block_query(state->allocator, ptr, &info) == XSEG_OK;
        const bool is_owner = is_found && check_context(state, *device);
        release_device(state);
        if (!is_owner)
            continue;
        last = *device;
        return info.base == ptr && info.state == XSEG_BLOCK_ALLOCATED ? ALLOCATED : NOT_ALLOCATED;
    }
    return FOREIGN;
}

bool device_free(int device, void *ptr)
{
    struct device *state = acquire_device(device);

    if (!state)
        return false;
    const xseg_status status = xseg_free(state->allocator, ptr);
    release_device(state);
    return status == XSEG_OK;
}

bool device_free_after(int device, void *ptr, xseg_stream stream, int current)
{
    struct device *state = NULL;
    bool is_freed = false;

    if (device_of_stream(stream, current) == device)
        state = acquire_device(device);
    if (state) {
        is_freed = xseg_record_stream(state->allocator, ptr, stream) == XSEG_OK &&
                   xseg_free(state->allocator, ptr) == XSEG_OK;
        release_device(state);
    }
    /* The stream belongs to another device or context, or the driver could not record an event. */
    return is_freed || (synchronize_stream(stream, current) == 0 && device_free(device, ptr));
}

void *device_context(int device)
{
    struct device *state = device >= 0 && device < DEVICES ? acquire_device(device) : NULL;
    void *context = state ? state->context : NULL;

    if (state)
        release_device(state);
    return context;
}

int device_synchronize(int device)
{
    const struct driver *cu = get_driver();
    void *context = device_context(device);
    int result = context ? cu->push_current(context) : 0;

    if (result != 0 || !context)
        return result;
    result = cu->synchronize();
    pop_context(cu);
    return result;
}

/* --- Free memory. --- */

struct usage {
    uint64_t physical, allocated;
};

static struct usage get_usage(int device)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};
    struct usage usage = {0, 0};
    struct device *state = device >= 0 && device < DEVICES ? acquire_device(device) : NULL;

    if (!state)
        return usage;
    scope.device = device;
    if (xseg_stats_get(state->allocator, &scope, &stats) == XSEG_OK) {
        usage.physical = stats.physical_bytes;
        usage.allocated = stats.allocated_bytes[XSEG_STAT_ALL].current;
    }
    release_device(state);
    return usage;
}

int device_memory_info(int device, int (*query)(size_t *, size_t *), size_t *free_bytes,
                       size_t *total)
{
    enum { ATTEMPTS = 8 };
    struct usage before, after = get_usage(device);
    uint64_t others, in_use;
    unsigned attempt = 0;

    /* Retry, because memory that xseg maps or releases during the query would count twice, or not at all. */
    do {
        before = after;
        const int result = query(free_bytes, total);
        if (result != 0 || !free_bytes || !total)
            return result;
        after = get_usage(device);
    } while (after.physical != before.physical && ++attempt < ATTEMPTS);
    if (after.physical > before.physical)
        after.physical = before.physical;
    /* Memory of other users of the device and allocated blocks are in use. */
    others = *total > *free_bytes ? *total - *free_bytes : 0;
    others = others > after.physical ? others - after.physical : 0;
    in_use = others + after.allocated;
    *free_bytes = *total > in_use ? *total - (size_t)in_use : 0;
    return 0;
}
