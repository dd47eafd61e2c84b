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
    /* Orders the blocks for every stream.  No work is ever queued on it, so that a block for every stream is handed out only
     * when no stream uses it. */
    xseg_stream own;
};

static struct device devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* opening and resets */
static atomic_bool is_begun;   /* an allocator was opened, or is being opened */
static atomic_bool is_refused; /* the first one could not be opened: no other attempt is made */
static atomic_bool is_child;

/* Set during a call, because the driver that xseg and the originals call may lead here. */
static __thread int inside;
/* The devices whose context this call has already found unchanged, as bits. */
static __thread uint64_t checked;

_Static_assert(DEVICES <= 64, "a device is a bit of `checked`");

/* A driver that the parent has started does not work in the child.  Otherwise the child starts from nothing, since other
 * threads of the parent may have been about to open an allocator. */
static void after_fork_in_child(void)
{
    if (atomic_load(&is_begun)) {
        atomic_store(&is_child, true);
        return;
    }
    (void)pthread_mutex_init(&lock, NULL);
    for (int i = 0; i < DEVICES; i++)
        atomic_store(&devices[i].users, 0);
}

static __attribute__((constructor)) void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, after_fork_in_child);
}

bool service_enter(void)
{
    if (inside || atomic_load_explicit(&is_child, memory_order_relaxed))
        return false;
    inside = 1;
    checked = 0;
    return true;
}

int service_leave(int result)
{
    inside = 0;
    return result;
}

/* --- Contexts. --- */

bool device_is_primary(int device, const void *context)
{
    const struct driver *cu = driver_found();
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

/* Whether the primary context is still the one that the allocator uses, as far as the driver says. */
static bool has_context(const struct driver *cu, const struct device *at, int device)
{
    unsigned long long id = 0;
    unsigned flags = 0;
    int is_active = 0, result;

    if (cu->primary_state(device, &flags, &is_active) == 0 && !is_active)
        return false;
    result = cu->get_id(at->context, &id);
    return result == 0 ? id == at->id : result != INVALID_CONTEXT && result != CONTEXT_IS_DESTROYED;
}

/* Make the calling thread's own context current again.  A pop that fails is tried once more. */
static void pop(const struct driver *cu)
{
    void *popped = NULL;

    if (cu->pop_current(&popped) != 0)
        (void)cu->pop_current(&popped);
}

static void release(struct device *at)
{
    (void)atomic_fetch_sub(&at->users, 1);
}

static void wait_for_users(struct device *at)
{
    while (atomic_load(&at->users) != 0)
        (void)sched_yield();
}

/* Become a user of a device whose allocator is open; else NULL.  The context may have been reset. */
static struct device *acquire_unchecked(int device)
{
    struct device *at = &devices[device];

    if (!atomic_load_explicit(&at->is_open, memory_order_relaxed))
        return NULL;
    (void)atomic_fetch_add(&at->users, 1);
    if (atomic_load(&at->is_open))
        return at;
    release(at);
    return NULL;
}

/* Whether an acquired device has its context.  Otherwise the allocator is abandoned.  Queries the driver once per call. */
static bool check_context(struct device *at, int device)
{
    if ((checked >> device & 1) != 0)
        return true;
    if (has_context(driver_found(), at, device)) {
        checked |= (uint64_t)1 << device;
        return true;
    }
    atomic_store(&at->is_open, false);
    return false;
}

/* Become a user of a device whose allocator is open and has its context; else NULL.  The caller calls release(). */
static struct device *acquire(int device)
{
    struct device *at = acquire_unchecked(device);

    if (!at || check_context(at, device))
        return at;
    release(at);
    return NULL;
}

/* --- Opening. --- */

/* Set while an allocator other than the first one opens, because its log lines would repeat those of the first. */
static __thread bool is_silent;

static void log_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    if (level != XSEG_LOG_INFO && !is_silent)
        (void)fprintf(stderr, "xseg: %s\n", line);
}

/* Open an allocator.  After the first one only a fault of the moment prevents that, so the next call tries again. */
static bool open_allocator(struct xseg_allocator **out)
{
    const bool is_first = !atomic_exchange(&is_begun, true);
    struct xseg_options options = {sizeof(options)};
    char text[1024] = "";

    options.log = log_line;
    is_silent = !is_first;
    const xseg_status status = xseg_open(NULL, &options, out);
    is_silent = false;
    if (status == XSEG_OK)
        return true;
    if (is_first) {
        (void)xseg_error_message(text, sizeof(text));
        (void)fprintf(
            stderr, "xseg-preload: cannot open an allocator, CUDA serves all requests: %s\n", text);
        atomic_store(&is_refused, true);
    }
    return false;
}

/* Retain the primary context and create the device's own stream in it.  Nothing is left behind on failure. */
static bool prepare_context(struct device *at, int device)
{
    const struct driver *cu = driver_found();
    bool is_ready;

    if (!cu || cu->primary_retain(&at->context, device) != 0)
        return false;
    is_ready = cu->push_current(at->context) == 0;
    if (is_ready) {
        is_ready =
            cu->get_id(at->context, &at->id) == 0 && cu->stream_create(&at->own, NON_BLOCKING) == 0;
        pop(cu);
    }
    if (!is_ready)
        (void)cu->primary_release(device);
    return is_ready;
}

/* acquire(), and open the allocator if necessary. */
static struct device *acquire_open(int device)
{
    struct device *at = device >= 0 && device < DEVICES ? acquire(device) : NULL;

    if (at || device < 0 || device >= DEVICES || atomic_load(&is_refused))
        return at;
    at = &devices[device];
    (void)pthread_mutex_lock(&lock);
    if (!atomic_load(&at->is_open) && !atomic_load(&is_refused)) {
        wait_for_users(at);
        if (open_allocator(&at->allocator)) {
            if (prepare_context(at, device))
                atomic_store(&at->is_open, true);
            else
                (void)!xseg_close(at->allocator);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return acquire(device);
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
    const struct driver *cu = driver_found();
    struct device *at = device >= 0 && device < DEVICES ? &devices[device] : NULL;

    if (at && atomic_load(&at->is_open))
        (void)device_synchronize(device);
    (void)pthread_mutex_lock(&lock);
    if (!at || !atomic_exchange(&at->is_open, false))
        return;
    wait_for_users(at);
    if (!has_context(cu, at, device))
        return;
    (void)!xseg_for_each_block(at->allocator, NULL, free_visited, at->allocator);
    /* An allocator that does not close is abandoned; its context is about to be destroyed. */
    (void)!xseg_close(at->allocator);
    (void)cu->stream_destroy(at->own);
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

int device_of_stream(xseg_stream stream, int here)
{
    const struct driver *cu = driver_found();
    void *context = NULL;
    int device = -1;

    if (is_default(stream) || !cu)
        return here;
    if (cu->stream_get_context(stream, &context) != 0)
        return -1;
    if (context && context == device_context(here))
        return here;
    if (cu->push_current(context) != 0)
        return -1;
    if (cu->get_device(&device) != 0)
        device = -1;
    pop(cu);
    return device >= 0 && context && device_is_primary(device, context) ? device : -1;
}

bool device_is_capturing(int device, xseg_stream stream)
{
    const struct driver *cu = driver_found();
    struct device *at = acquire_open(device);
    int status = NOT_CAPTURING, result = -1;

    if (!at)
        return false;
    if (cu->push_current(at->context) == 0) {
        result = cu->stream_is_capturing(stream, &status);
        pop(cu);
    }
    release(at);
    return result != 0 || status != NOT_CAPTURING;
}

/* Wait for a stream with the driver, without disturbing a capture elsewhere.  here: the device that has the default
 * streams.  Returns the driver's result. */
static int synchronize_stream(xseg_stream stream, int here)
{
    const struct driver *cu = driver_found();
    void *context = is_default(stream) ? device_context(here) : NULL;
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
        pop(cu);
    return result;
}

void device_retire_stream(xseg_stream stream)
{
    for (int device = 0; device < DEVICES && !is_default(stream); device++) {
        struct device *at = acquire(device);

        if (!at)
            continue;
        const xseg_status status = xseg_stream_retire(at->allocator, device, stream);
        release(at);
        /* The handle may be reused for another stream, which must not get memory that this stream still uses. */
        if (status != XSEG_OK && status != XSEG_ERR_BUSY)
            (void)synchronize_stream(stream, device);
    }
}

/* --- Memory. --- */

bool device_alloc(int device, size_t bytes, xseg_stream stream, void **out)
{
    struct device *at = acquire_open(device);

    if (!at)
        return false;
    const xseg_status status =
        xseg_alloc(at->allocator, device, bytes, stream == EVERY_STREAM ? at->own : stream, out);
    release(at);
    return status == XSEG_OK;
}

enum ownership device_find(void *ptr, int *device)
{
    static __thread int last; /* the device of the block that this thread found before */

    for (int i = 0; i < DEVICES; i++) {
        struct xseg_block_info info = {sizeof(info)};
        struct device *at;

        *device = (last + i) % DEVICES;
        at = acquire_unchecked(*device);
        if (!at)
            continue;
        const bool is_found = xseg_block_query(at->allocator, ptr, &info) == XSEG_OK;
        const bool is_here = is_found && check_context(at, *device);
        release(at);
        if (!is_here)
            continue;
        last = *device;
        return info.base == ptr && info.state == XSEG_BLOCK_ALLOCATED ? LIVE : DEAD;
    }
    return FOREIGN;
}

bool device_free(int device, void *ptr)
{
    struct device *at = acquire(device);

    if (!at)
        return false;
    const xseg_status status = xseg_free(at->allocator, ptr);
    release(at);
    return status == XSEG_OK;
}

bool device_free_after(int device, void *ptr, xseg_stream stream, int here)
{
    struct device *at = NULL;
    bool is_freed = false;

    if (device_of_stream(stream, here) == device)
        at = acquire(device);
    if (at) {
        is_freed = xseg_record_stream(at->allocator, ptr, stream) == XSEG_OK &&
                   xseg_free(at->allocator, ptr) == XSEG_OK;
        release(at);
    }
    /* A stream of another device or context, or an event that the driver denied. */
    return is_freed || (synchronize_stream(stream, here) == 0 && device_free(device, ptr));
}

void *device_context(int device)
{
    struct device *at = device >= 0 && device < DEVICES ? acquire(device) : NULL;
    void *context = at ? at->context : NULL;

    if (at)
        release(at);
    return context;
}

int device_synchronize(int device)
{
    const struct driver *cu = driver_found();
    void *context = device_context(device);
    int result = context ? cu->push_current(context) : 0;

    if (result != 0 || !context)
        return result;
    result = cu->synchronize();
    pop(cu);
    return result;
}

/* --- Free memory. --- */

struct usage {
    uint64_t physical, live;
};

static struct usage usage_of(int device)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics now = {sizeof(now)};
    struct usage usage = {0, 0};
    struct device *at = device >= 0 && device < DEVICES ? acquire(device) : NULL;

    if (!at)
        return usage;
    where.device = device;
    if (xseg_stats_get(at->allocator, &where, &now) == XSEG_OK) {
        usage.physical = now.physical_bytes;
        usage.live = now.allocated_bytes[XSEG_STAT_ALL].current;
    }
    release(at);
    return usage;
}

int device_memory_info(int device, int (*query)(size_t *, size_t *), size_t *free_bytes,
                       size_t *total)
{
    enum { ATTEMPTS = 8 };
    struct usage before, after = usage_of(device);
    uint64_t others, held;
    unsigned attempt = 0;

    /* Memory that moves between the driver and the cache during the query would count twice, or not at all. */
    do {
        before = after;
        const int result = query(free_bytes, total);
        if (result != 0 || !free_bytes || !total)
            return result;
        after = usage_of(device);
    } while (after.physical != before.physical && ++attempt < ATTEMPTS);
    if (after.physical > before.physical)
        after.physical = before.physical;
    /* Memory of others and allocated blocks are not free. */
    others = *total > *free_bytes ? *total - *free_bytes : 0;
    others = others > after.physical ? others - after.physical : 0;
    held = others + after.live;
    *free_bytes = *total > held ? *total - (size_t)held : 0;
    return 0;
}
