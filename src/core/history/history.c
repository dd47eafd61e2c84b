/* SPDX-License-Identifier: MIT */
#include "src/core/history/history.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/stack.h"
#include "src/base/string_util.h"
#include "src/core/config/config.h"

/* --- Store. --- */

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

/* Frame IDs of a hook before the first sweep. */
#define FIRST_SWEEP 65536u

/* The actions whose call stacks `history_stacks:alloc` records: those that allocate memory. */
#define ALLOCATING_ACTIONS                                                                 \
    (1u << XSEG_HISTORY_ALLOC | 1u << XSEG_HISTORY_SEGMENT_ALLOC |                         \
     1u << XSEG_HISTORY_SEGMENT_MAP | 1u << XSEG_HISTORY_OOM | 1u << XSEG_HISTORY_RESUME | \
     1u << XSEG_HISTORY_BUDGET_REQUEST)
#define ALL_ACTIONS ((1u << XSEG_HISTORY_ACTIONS) - 1)
/* The bits of the settings that are recorded actions. */
#define RECORDED_MASK ((uint64_t)ALL_ACTIONS)

#define INITIAL_POOL_IDS 16u

/* --- Clocks. --- */

/* Whether the time stamp counter has the same constant rate on all CPUs. */
static bool has_invariant_counter(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
#elif defined(__aarch64__)
    return true; /* the generic timer, which Linux makes readable in user mode */
#else
    return false;
#endif
}

static uint64_t read_cycle_counter(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;

    /* As with rdtsc, the CPU may reorder the read with other instructions.  A barrier would cost
     * more than the read. */
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

void xseg_history_store_init(struct xseg_history_store *store, const struct xseg_clock *clock)
{
    static atomic_uint_fast64_t store_count;

    memset(store, 0, sizeof(*store));
    store->serial = atomic_fetch_add(&store_count, 1) + 1;
    /* A thread may load new settings and then an old capacity, so the capacity is never 0. */
    atomic_init(&store->capacity, 1);
    xseg_mutex_init(&store->lock, XSEG_RANK_HISTORY);
    xseg_history_labels_init(&store->labels);
    xseg_mutex_init(&store->sweep_lock, XSEG_RANK_FIRST);
    store->clock = *clock;
    store->uses_cycle_counter = clock->read == NULL && has_invariant_counter();
    atomic_init(&store->sweep_at, UINT64_MAX);
    /* Only ticks of the cycle counter are converted.  The user's clock is not read in advance. */
    if (store->uses_cycle_counter) {
        store->first_ticks = read_cycle_counter();
        store->first_ns = xseg_clock_system();
    }
}

void xseg_history_store_fini(struct xseg_history_store *store)
{
    struct xseg_stack_depot *depot = xseg_history_store_depot(store);

    if (depot != NULL)
        xseg_stack_depot_fini(depot);
    free(depot);
    for (struct xseg_history_hook_node *hook = store->hooks, *older; hook != NULL; hook = older) {
        older = hook->older;
        free(hook);
    }
    xseg_history_labels_fini(&store->labels);
    xseg_mutex_fini(&store->sweep_lock);
    free(store->pool_ids);
    xseg_mutex_fini(&store->lock);
}

/* --- Settings. --- */

static uint64_t settings_of(const struct xseg_config *config)
{
    static const uint32_t stacks[] = {
        [XSEG_HISTORY_STACKS_NONE] = 0,
        [XSEG_HISTORY_STACKS_STATE] = 0,
        [XSEG_HISTORY_STACKS_ALLOC] = ALLOCATING_ACTIONS,
        [XSEG_HISTORY_STACKS_ALL] = ALL_ACTIONS,
    };
    const bool has_origins = config->history != XSEG_HISTORY_NOTHING;
    const uint32_t recorded =
        config->history == XSEG_HISTORY_ALL ? ALL_ACTIONS & ~config->history_skip : 0;
    const uint32_t captured = has_origins ? stacks[config->history_stacks] & recorded : 0;
    uint64_t settings = 0;

    if (has_origins)
        settings |= XSEG_HISTORY_ORIGINS;
    if (has_origins && config->history_stacks != XSEG_HISTORY_STACKS_NONE)
        settings |= XSEG_HISTORY_ORIGIN_STACK;
    if (config->traced)
        settings |= XSEG_HISTORY_TRACED;
    if (config->block_user)
        settings |= XSEG_HISTORY_USERS;
    settings |= recorded | (uint64_t)captured << XSEG_HISTORY_STACKS_SHIFT;
    if (config->block_user || xseg_history_settings_capture(settings))
        settings |= XSEG_HISTORY_GATHERS;
    return settings;
}

/* Add a new version to settings, or the current version if they are the current settings. */
static uint64_t add_version(uint64_t settings, uint64_t current)
{
    static const uint64_t versions = ((uint64_t)1 << (64 - XSEG_HISTORY_VERSION_SHIFT)) - 1;
    static atomic_uint_fast64_t last_version;

    XSEG_ASSERT(settings >> XSEG_HISTORY_VERSION_SHIFT == 0);
    if (settings == 0 || settings == (current & ~(versions << XSEG_HISTORY_VERSION_SHIFT)))
        return settings == 0 ? 0 : current;
    return settings | (atomic_fetch_add(&last_version, 1) % versions + 1)
                          << XSEG_HISTORY_VERSION_SHIFT;
}

void xseg_history_store_configure(struct xseg_history_store *store,
                                  const struct xseg_config *config)
{
    const uint64_t current = xseg_history_store_settings(store);
    const uint64_t settings = add_version(settings_of(config), current);
    if (config->history == XSEG_HISTORY_ALL)
        atomic_store_explicit(&store->capacity, config->history_events, memory_order_relaxed);
    const bool has_new_actions = (settings & ~current & RECORDED_MASK) != 0;
    /* The time is set twice: before the settings, so that no reader combines new settings with an
     * old time; and after them, because the new actions are recorded only from then on. */
    if (has_new_actions)
        atomic_store_explicit(&store->complete_since, xseg_history_store_now(store),
                              memory_order_relaxed);
    atomic_store_explicit(&store->settings, settings, memory_order_release);
    if (has_new_actions)
        atomic_store_explicit(&store->complete_since, xseg_history_store_now(store),
                              memory_order_relaxed);
}

/* --- Stacks and the hook. --- */

struct xseg_stack_depot *xseg_history_store_create_depot(struct xseg_history_store *store)
{
    struct xseg_stack_depot *depot = malloc(sizeof(*depot)), *existing = NULL;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    (void)xseg_stack_prepare();
    if (depot == NULL || !xseg_stack_depot_init(depot, 0)) {
        free(depot);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&store->depot, &existing, depot))
        return depot;
    xseg_stack_depot_fini(depot);
    free(depot);
    return existing;
}

/* The number of innermost frames that are in the library, which is the module of the first frame.
 * 0 if all frames are in that module, as in a program that is linked with the static library. */
static uint32_t count_library_frames(const struct xseg_stack_depot *depot, uint32_t stack,
                                     uint32_t count)
{
    struct xseg_stack_frame first, frame;

    if (!xseg_stack_depot_frame(depot, stack, 0, &first) || first.path == NULL)
        return 0;
    for (uint32_t i = 1; i < count && xseg_stack_depot_frame(depot, stack, i, &frame); i++)
        if (frame.path == NULL || strcmp(frame.path, first.path) != 0)
            return i;
    return 0;
}

void xseg_history_store_print_stack(struct xseg_history_store *store, uint32_t stack, unsigned max,
                                    const char *lead, struct xseg_strbuf *text)
{
    const struct xseg_stack_depot *depot = xseg_history_store_depot(store);
    struct xseg_stack_view view;

    if (depot == NULL || !xseg_stack_depot_get(depot, stack, &view))
        return;
    xseg_strbuf_printf(text, "%s", lead);
    xseg_stack_depot_describe(depot, stack, count_library_frames(depot, stack, view.count), max,
                              text);
}

bool xseg_history_store_set_hook(struct xseg_history_store *store,
                                 const struct xseg_history_hook *calls)
{
    struct xseg_history_hook_node *hook = calls == NULL ? NULL : malloc(sizeof(*hook));

    if (calls != NULL && hook == NULL)
        return false;
    xseg_mutex_lock(&store->lock);
    if (hook != NULL) {
        *hook = (struct xseg_history_hook_node){*calls, store->hooks};
        store->hooks = hook;
    }
    atomic_store_explicit(&store->gather_count, 0, memory_order_relaxed);
    atomic_store_explicit(&store->sweep_at,
                          calls != NULL && calls->discard != NULL ? FIRST_SWEEP : UINT64_MAX,
                          memory_order_relaxed);
    atomic_store_explicit(&store->hook, hook, memory_order_release);
    xseg_mutex_unlock(&store->lock);
    return true;
}

/* --- IDs of pools. --- */

static bool reserve_pool_id(struct xseg_history_store *store)
{
    const size_t capacity =
        store->pool_id_capacity == 0 ? INITIAL_POOL_IDS : 2 * store->pool_id_capacity;
    struct xseg_pool_id *grown;

    if (store->pool_id_count < store->pool_id_capacity)
        return true;
    grown = realloc(store->pool_ids, capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    store->pool_ids = grown;
    store->pool_id_capacity = capacity;
    return true;
}

/* Find the index of the first ID whose pool is not below `pool`. */
static size_t lower_bound_pool_id(const struct xseg_history_store *store, uint32_t pool)
{
    size_t low = 0, high = store->pool_id_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (store->pool_ids[middle].pool < pool)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool xseg_history_store_add_pool_id(struct xseg_history_store *store, uint32_t pool,
                                    const uint64_t id[2])
{
    XSEG_ASSERT(pool != 0 && (id[0] | id[1]) != 0);
    xseg_mutex_lock(&store->lock);
    const bool has_capacity = reserve_pool_id(store);
    if (has_capacity) {
        struct xseg_pool_id *const ids = store->pool_ids;
        size_t index = store->pool_id_count++;

        /* Pool IDs of several devices are assigned concurrently, so they may be added out of
         * order. */
        for (; index > 0 && ids[index - 1].pool > pool; index--)
            ids[index] = ids[index - 1];
        ids[index] = (struct xseg_pool_id){pool, {id[0], id[1]}};
    }
    xseg_mutex_unlock(&store->lock);
    return has_capacity;
}

void xseg_history_store_get_pool_id(struct xseg_history_store *store, uint32_t pool, uint64_t id[2])
{
    id[0] = id[1] = 0;
    if (pool == 0)
        return;
    xseg_mutex_lock(&store->lock);
    const size_t index = lower_bound_pool_id(store, pool);
    if (index < store->pool_id_count && store->pool_ids[index].pool == pool) {
        id[0] = store->pool_ids[index].id[0];
        id[1] = store->pool_ids[index].id[1];
    }
    xseg_mutex_unlock(&store->lock);
}

/* --- Time. --- */

uint64_t xseg_history_store_now(const struct xseg_history_store *store)
{
    return store->uses_cycle_counter ? read_cycle_counter() : xseg_clock_fine(&store->clock);
}

struct xseg_history_moment xseg_history_store_moment(const struct xseg_history_store *store)
{
    const uint64_t ticks = xseg_history_store_now(store);

    return (struct xseg_history_moment){ticks,
                                        store->uses_cycle_counter ? xseg_clock_system() : ticks};
}

uint64_t xseg_history_store_ns(const struct xseg_history_store *store,
                               const struct xseg_history_moment *moment, uint64_t ticks)
{
    if (!store->uses_cycle_counter || moment->ticks <= store->first_ticks ||
        ticks <= store->first_ticks)
        return store->uses_cycle_counter ? store->first_ns : ticks;
    /* The product of an hour in ticks and an hour in nanoseconds has more than 64 bits. */
    __extension__ const unsigned __int128 elapsed = ticks - store->first_ticks;

    return store->first_ns + (uint64_t)(elapsed * (moment->ns - store->first_ns) /
                                        (moment->ticks - store->first_ticks));
}

/* --- Contexts of threads. --- */

static _Thread_local struct xseg_history_context this_context;

/* The registered contexts. */
static struct {
    pthread_once_t once;
    pthread_mutex_t lock;
    pthread_key_t key;
    bool has_key;
    struct xseg_list all;
} contexts = {
    .once = PTHREAD_ONCE_INIT,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .all = {&contexts.all, &contexts.all},
};

/* Unregister the context of a thread that ends.  Code that runs later in the thread, such as other
 * destructors, has no label, because a sweep would not see the label. */
static void unregister_context(void *self)
{
    struct xseg_history_context *context = self;

    (void)pthread_mutex_lock(&contexts.lock);
    xseg_list_remove(&context->link);
    context->labels[0].store = 0;
    context->saved_count = 0;
    context->is_registered = false;
    context->has_ended = true;
    (void)pthread_mutex_unlock(&contexts.lock);
}

static void create_context_key(void)
{
    contexts.has_key = pthread_key_create(&contexts.key, unregister_context) == 0;
}

bool xseg_history_context_register(void)
{
    if (this_context.is_registered || this_context.has_ended)
        return this_context.is_registered;
    (void)pthread_once(&contexts.once, create_context_key);
    if (!contexts.has_key || pthread_setspecific(contexts.key, &this_context) != 0)
        return false;
    xseg_list_init(&this_context.link);
    (void)pthread_mutex_lock(&contexts.lock);
    xseg_list_insert(&contexts.all, &this_context.link);
    this_context.is_registered = true;
    (void)pthread_mutex_unlock(&contexts.lock);
    return true;
}

void xseg_history_for_each_root(const struct xseg_history_store *store,
                                void (*visit)(void *self, uint32_t frames, uint32_t label),
                                void *self)
{
    (void)pthread_mutex_lock(&contexts.lock);
    XSEG_LIST_FOR(node, &contexts.all)
    {
        struct xseg_history_context *context =
            XSEG_CONTAINER(node, struct xseg_history_context, link);

        for (unsigned i = 0; i < XSEG_HISTORY_DEPTH; i++)
            visit(self, atomic_load_explicit(&context->frames_in_use[i], memory_order_acquire), 0);
        for (unsigned i = 0; i < XSEG_HISTORY_LABELS && context->labels[i].store != 0; i++)
            if (context->labels[i].store == store->serial)
                visit(self, 0, context->labels[i].label);
        for (uint32_t i = 0; i < context->saved_count; i++)
            if (context->saved_labels[i].store == store->serial)
                visit(self, 0, context->saved_labels[i].label);
    }
    (void)pthread_mutex_unlock(&contexts.lock);
}

static __attribute__((noinline)) struct xseg_history_context *
query_thread_id(struct xseg_history_context *context)
{
    context->thread = (uint32_t)syscall(SYS_gettid); /* gettid() requires glibc 2.30 */
    return context;
}

struct xseg_history_context *xseg_history_context(void)
{
    struct xseg_history_context *context = &this_context;

    /* The thread ID is queried once, because the query is a system call. */
    return __builtin_expect(context->thread == 0, 0) ? query_thread_id(context) : context;
}

struct xseg_history_gathered xseg_history_context_save(void)
{
    this_context.depth++;
    return this_context.gathered;
}

void xseg_history_context_restore(const struct xseg_history_gathered *gathered)
{
    XSEG_ASSERT(this_context.depth != 0);
    this_context.depth--;
    this_context.gathered = *gathered;
}

/* --- Labels. --- */

/* Save a label as that of the innermost scope.  If all entries are occupied, the outermost label is
 * dropped. */
static void push_saved_label(uint64_t store, uint32_t label)
{
    if (this_context.saved_count == XSEG_HISTORY_SCOPES)
        memmove(&this_context.saved_labels[0], &this_context.saved_labels[1],
                --this_context.saved_count * sizeof(this_context.saved_labels[0]));
    this_context.saved_labels[this_context.saved_count++] =
        (struct xseg_history_thread_label){store, label};
}

/* Remove the innermost saved copy of a label, and the labels of the scopes inside it. */
static void pop_saved_label(uint64_t store, uint32_t label)
{
    for (uint32_t i = this_context.saved_count; i-- > 0;)
        if (this_context.saved_labels[i].store == store &&
            this_context.saved_labels[i].label == label) {
            this_context.saved_count = i;
            return;
        }
}

static void set_current_label(uint64_t store, uint32_t label)
{
    unsigned index = 0;

    /* Find the entry of the store, else the first free entry, else the last one.  The new label
     * becomes the first entry, and the entries before the found one move up by one. */
    while (index < XSEG_HISTORY_LABELS - 1 && this_context.labels[index].store != 0 &&
           this_context.labels[index].store != store)
        index++;
    for (; index > 0; index--)
        this_context.labels[index] = this_context.labels[index - 1];
    this_context.labels[0] = (struct xseg_history_thread_label){store, label};
}

uint32_t xseg_history_set_label(struct xseg_history_store *store, uint32_t label, const char *text,
                                bool saves_last)
{
    const uint32_t last = xseg_history_label_of(&this_context, store);

    (void)pthread_mutex_lock(&contexts.lock);
    if (saves_last && last != 0)
        push_saved_label(store->serial, last);
    else if (text != NULL && text == xseg_history_labels_text(&store->labels, label))
        pop_saved_label(store->serial, label);
    if (label != last)
        set_current_label(store->serial, label);
    (void)pthread_mutex_unlock(&contexts.lock);
    return last;
}

void xseg_history_retain_label(struct xseg_history_store *store, uint32_t label)
{
    (void)pthread_mutex_lock(&contexts.lock);
    push_saved_label(store->serial, label);
    (void)pthread_mutex_unlock(&contexts.lock);
}

void xseg_history_release_label(struct xseg_history_store *store, uint32_t label)
{
    (void)pthread_mutex_lock(&contexts.lock);
    pop_saved_label(store->serial, label);
    (void)pthread_mutex_unlock(&contexts.lock);
}

void xseg_history_set_user(const struct xseg_history_store *store, uint64_t user)
{
    if (xseg_history_context_matches(&this_context, xseg_history_store_settings(store)))
        this_context.gathered.user = user;
}

/* --- Gathering. --- */

/* Capture the call stack of the calling thread.  Returns 0 on host allocation failure.  The
 * function is inline so that it has no frame in the stack. */
static inline __attribute__((always_inline)) uint32_t
capture_stack(struct xseg_history_store *store)
{
    void *frames[XSEG_STACK_FRAMES];
    struct xseg_stack_depot *depot = xseg_history_store_depot(store);

    if (__builtin_expect(depot == NULL, 0))
        depot = xseg_history_store_create_depot(store);
    return depot == NULL
               ? 0
               : xseg_stack_depot_add(depot, frames, xseg_stack_capture(frames, XSEG_STACK_FRAMES));
}

/* Publish the frame ID of the current call to sweeps.  The store is a release, so that a sweep that
 * no longer finds the ID of the last call finds the events and blocks of that call. */
static void publish_frames(uint32_t frames)
{
    (void)xseg_history_context_register();
    atomic_store_explicit(
        &this_context.frames_in_use[xseg_min(this_context.depth, XSEG_HISTORY_DEPTH - 1)], frames,
        memory_order_release);
}

__attribute__((noinline)) bool xseg_history_gather_all(struct xseg_history_store *store,
                                                       uint64_t settings, uint64_t user)
{
    const bool captures = xseg_history_settings_capture(settings);
    const struct xseg_history_hook *hook = captures ? xseg_history_store_hook(store) : NULL;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    const uint32_t stack = captures ? capture_stack(store) : 0;
    /* The hook may call another allocator, whose call gathers into the same context. */
    const uint32_t frames = hook == NULL ? 0 : hook->gather(hook->context);
    this_context.gathered = (struct xseg_history_gathered){
        .version = xseg_history_settings_version(settings),
        .stack = stack,
        .frames = frames,
        .user = user,
    };
    if (hook == NULL)
        return false;
    publish_frames(frames);
    return xseg_history_store_count_gather(store);
}

/* --- Devices. --- */

/* Maximum number of frames of a call stack in a message about a free. */
#define MAX_PRINTED_FRAMES 6u

void xseg_history_init(struct xseg_history *history, struct xseg_history_store *store,
                       struct xseg_observers *observers, int device)
{
    memset(history, 0, sizeof(*history));
    history->store = store;
    history->observers = observers;
    history->device = device;
}

void xseg_history_fini(struct xseg_history *history)
{
    struct xseg_history_ring *ring = atomic_load(&history->rings), *next;

    for (; ring != NULL; ring = next) {
        next = ring->next;
        xseg_history_ring_destroy(ring);
    }
    atomic_store(&history->rings, NULL);
}

/* --- Appending. --- */

/* Create a ring, and publish it to readers. */
static struct xseg_history_ring *create_ring(struct xseg_history *history, uint64_t capacity)
{
    struct xseg_history_ring *ring = xseg_history_ring_create(capacity);

    if (ring == NULL)
        return NULL;
    ring->next = atomic_load_explicit(&history->rings, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&history->rings, &ring->next, ring,
                                                  memory_order_release, memory_order_relaxed)) {
    }
    return ring;
}

struct xseg_history_ring *xseg_history_prepare_ring(struct xseg_history *history,
                                                    struct xseg_history_ring **ring,
                                                    uint64_t capacity)
{
    XSEG_ASSERT(capacity != 0);
    if (*ring == NULL) {
        *ring = create_ring(history, capacity);
        return *ring;
    }
    xseg_mutex_lock(&history->store->lock);
    (void)xseg_history_ring_resize(*ring, capacity);
    xseg_mutex_unlock(&history->store->lock);
    return *ring;
}

void xseg_history_append_with_user(struct xseg_history *history, struct xseg_history_ring **ring,
                                   uint64_t settings, const struct xseg_history_context *context,
                                   struct xseg_history_event *event, uint64_t user)
{
    const uint64_t capacity = atomic_load_explicit(&history->store->capacity, memory_order_relaxed);

    XSEG_ASSERT(capacity != 0 && event->action < XSEG_HISTORY_ACTIONS);
    if (*ring == NULL || (*ring)->capacity != capacity)
        (void)xseg_history_prepare_ring(history, ring, capacity);
    if (*ring == NULL)
        return;
    if ((*ring)->users == NULL && user != 0) {
        xseg_mutex_lock(&history->store->lock);
        (void)xseg_history_ring_add_users(*ring);
        xseg_mutex_unlock(&history->store->lock);
    }
    xseg_history_complete_event(history, settings, context, event);
    xseg_history_ring_append_with_user(*ring, event, user);
}

bool xseg_history_append_to_device(struct xseg_history *history, uint64_t capacity,
                                   uint64_t settings, struct xseg_history_event *event)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (history->device_ring == NULL)
        history->device_ring = create_ring(history, capacity);
    if (history->device_ring == NULL)
        return false;
    xseg_history_complete_event(history, settings, xseg_history_context(), event);
    xseg_history_ring_append(history->device_ring, event);
    return true;
}

uint64_t xseg_history_host_bytes(const struct xseg_history *history)
{
    uint64_t bytes = 0;

    xseg_mutex_lock(&history->store->lock);
    for (const struct xseg_history_ring *ring = atomic_load(&history->rings); ring != NULL;
         ring = ring->next)
        bytes += xseg_history_ring_host_bytes(ring);
    xseg_mutex_unlock(&history->store->lock);
    return bytes;
}

/* --- The last free of an address. --- */

/* Find the newest free in a ring that contains an address and is not older than *out. */
static bool find_free_in_ring(const struct xseg_history_ring *ring, uint64_t address,
                              struct xseg_history_event *out)
{
    struct xseg_history_event event;
    uint64_t first, end;

    xseg_history_ring_range(ring, &first, &end);
    while (end > first) {
        if (!xseg_history_ring_read(ring, --end, &event) || event.time < out->time)
            return false;
        if (event.action == XSEG_HISTORY_FREE_REQUESTED &&
            address - event.base < xseg_history_event_bytes(&event)) {
            *out = event;
            return true;
        }
    }
    return false;
}

/* Find the last recorded free of a block that contains an address. */
static bool find_free(struct xseg_history *history, uint64_t address,
                      struct xseg_history_event *out)
{
    bool found = false;

    *out = (struct xseg_history_event){.time = 0};
    xseg_mutex_lock(&history->store->lock);
    for (const struct xseg_history_ring *ring =
             atomic_load_explicit(&history->rings, memory_order_acquire);
         ring != NULL; ring = ring->next)
        found = find_free_in_ring(ring, address, out) || found;
    xseg_mutex_unlock(&history->store->lock);
    return found;
}

/* Print the frames that the application's hook captured. */
static void print_hook_frames(const struct xseg_history_store *store, uint32_t frames,
                              struct xseg_strbuf *text)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(store);
    char name[384] = "";

    if (frames != 0 && hook != NULL && hook->name != NULL &&
        hook->name(hook->context, frames, name, sizeof(name)))
        xseg_strbuf_printf(text, ", in %.*s", (int)sizeof(name) - 1, name);
}

bool xseg_history_print_free(struct xseg_history *history, uint64_t address, const char *lead,
                             struct xseg_strbuf *text)
{
    const struct xseg_history_moment now = xseg_history_store_moment(history->store);
    struct xseg_history_event event;

    if (!find_free(history, address, &event))
        return false;
    const uint64_t freed_ns = xseg_history_store_ns(history->store, &now, event.time);
    /* The difference is 0 if another thread freed the block after the clock was read. */
    const uint64_t age_ns = now.ns - xseg_min(now.ns, freed_ns);
    xseg_strbuf_printf(text,
                       "%sfreed %" PRIu64 ".%03" PRIu64 " ms ago by thread %" PRIu32
                       " with the block of %" PRIu64 " bytes at %#" PRIx64,
                       lead, age_ns / 1000000, age_ns / 1000 % 1000, event.thread,
                       xseg_history_event_bytes(&event), (uint64_t)event.base);
    xseg_history_store_print_stack(history->store, event.stack, MAX_PRINTED_FRAMES, ", from ",
                                   text);
    print_hook_frames(history->store, event.frames, text);
    return true;
}
