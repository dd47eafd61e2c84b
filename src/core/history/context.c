/* SPDX-License-Identifier: MIT */
#include "src/core/history/context.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/stack.h"

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
    context->thread = (uint32_t)syscall(SYS_gettid); /* gettid() came with glibc 2.30 */
    return context;
}

struct xseg_history_context *xseg_history_context(void)
{
    struct xseg_history_context *context = &this_context;

    /* The ID of a thread costs a system call, and never changes. */
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

/* Save a label as that of the innermost scope.  If there are too many, the outermost is dropped. */
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
    unsigned at = 0;

    /* Find the entry of the store, the first free entry, or the last one.  The new label becomes
     * the first entry, and the entries before the found one move up. */
    while (at < XSEG_HISTORY_LABELS - 1 && this_context.labels[at].store != 0 &&
           this_context.labels[at].store != store)
        at++;
    for (; at > 0; at--)
        this_context.labels[at] = this_context.labels[at - 1];
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
    if (xseg_history_context_is_of(&this_context, xseg_history_store_settings(store)))
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
