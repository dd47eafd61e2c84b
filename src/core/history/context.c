/* SPDX-License-Identifier: MIT */
#include "src/core/history/context.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/stack.h"

static _Thread_local struct xseg_history_context here;

/* The contexts of threads that have gathered frames of a hook, or had a label; a thread leaves the list when it ends. */
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

/* What runs in a thread behind this, such as other destructors, has no label: nobody would see it. */
static void leave(void *self)
{
    struct xseg_history_context *context = self;

    (void)pthread_mutex_lock(&contexts.lock);
    xseg_list_remove(&context->link);
    context->labels[0].store = 0;
    context->scopes = 0;
    context->is_listed = false;
    context->is_gone = true;
    (void)pthread_mutex_unlock(&contexts.lock);
}

static void make_key(void)
{
    contexts.has_key = pthread_key_create(&contexts.key, leave) == 0;
}

bool xseg_history_join_contexts(void)
{
    if (here.is_listed || here.is_gone)
        return here.is_listed;
    (void)pthread_once(&contexts.once, make_key);
    if (!contexts.has_key || pthread_setspecific(contexts.key, &here) != 0)
        return false;
    xseg_list_init(&here.link);
    (void)pthread_mutex_lock(&contexts.lock);
    xseg_list_insert(&contexts.all, &here.link);
    here.is_listed = true;
    (void)pthread_mutex_unlock(&contexts.lock);
    return true;
}

void xseg_history_contexts_visit(const struct xseg_history_store *store,
                                 void (*visit)(void *self, uint32_t frames, uint32_t label),
                                 void *self)
{
    (void)pthread_mutex_lock(&contexts.lock);
    XSEG_LIST_FOR(node, &contexts.all)
    {
        struct xseg_history_context *context =
            XSEG_CONTAINER(node, struct xseg_history_context, link);

        for (unsigned i = 0; i < XSEG_HISTORY_DEPTH; i++)
            visit(self, atomic_load_explicit(&context->shown[i], memory_order_acquire), 0);
        for (unsigned i = 0; i < XSEG_HISTORY_LABELS && context->labels[i].store != 0; i++)
            if (context->labels[i].store == store->serial)
                visit(self, 0, context->labels[i].label);
        for (uint32_t i = 0; i < context->scopes; i++)
            if (context->before[i].store == store->serial)
                visit(self, 0, context->before[i].label);
    }
    (void)pthread_mutex_unlock(&contexts.lock);
}

static __attribute__((noinline)) struct xseg_history_context *
number(struct xseg_history_context *context)
{
    context->thread = (uint32_t)syscall(SYS_gettid); /* gettid() came with glibc 2.30 */
    return context;
}

struct xseg_history_context *xseg_history_context(void)
{
    struct xseg_history_context *context = &here;

    /* A system call; a thread keeps its number. */
    return __builtin_expect(context->thread == 0, 0) ? number(context) : context;
}

struct xseg_history_gathered xseg_history_defer(void)
{
    here.depth++;
    return here.gathered;
}

void xseg_history_resume(const struct xseg_history_gathered *gathered)
{
    XSEG_ASSERT(here.depth != 0);
    here.depth--;
    here.gathered = *gathered;
}

/* --- Labels. --- */

/* Keep a label behind those of outer scopes; the outermost is forgotten where there are too many. */
static void push(uint64_t store, uint32_t label)
{
    if (here.scopes == XSEG_HISTORY_SCOPES)
        memmove(&here.before[0], &here.before[1], --here.scopes * sizeof(here.before[0]));
    here.before[here.scopes++] = (struct xseg_history_held){store, label};
}

/* Forget a label that was kept, and those of the scopes inside. */
static void pop(uint64_t store, uint32_t label)
{
    for (uint32_t i = here.scopes; i-- > 0;)
        if (here.before[i].store == store && here.before[i].label == label) {
            here.scopes = i;
            return;
        }
}

static void put(uint64_t store, uint32_t label)
{
    unsigned at = 0;

    /* The store's place, the first free one, or the last one; those in front of it move up. */
    while (at < XSEG_HISTORY_LABELS - 1 && here.labels[at].store != 0 &&
           here.labels[at].store != store)
        at++;
    for (; at > 0; at--)
        here.labels[at] = here.labels[at - 1];
    here.labels[0] = (struct xseg_history_held){store, label};
}

uint32_t xseg_history_set_label(struct xseg_history_store *store, uint32_t label, const char *text,
                                bool keeps_last)
{
    const uint32_t last = xseg_history_label_of(&here, store);

    (void)pthread_mutex_lock(&contexts.lock);
    if (keeps_last && last != 0)
        push(store->serial, last);
    else if (text != NULL && text == xseg_history_labels_text(&store->labels, label))
        pop(store->serial, label);
    if (label != last)
        put(store->serial, label);
    (void)pthread_mutex_unlock(&contexts.lock);
    return last;
}

void xseg_history_retain_label(struct xseg_history_store *store, uint32_t label)
{
    (void)pthread_mutex_lock(&contexts.lock);
    push(store->serial, label);
    (void)pthread_mutex_unlock(&contexts.lock);
}

void xseg_history_release_label(struct xseg_history_store *store, uint32_t label)
{
    (void)pthread_mutex_lock(&contexts.lock);
    pop(store->serial, label);
    (void)pthread_mutex_unlock(&contexts.lock);
}

void xseg_history_set_user(const struct xseg_history_store *store, uint64_t user)
{
    if (xseg_history_context_is_of(&here, xseg_history_store_settings(store)))
        here.gathered.user = user;
}

/* Take the calling thread's stack; 0 without host memory for it.  In line, so that the stack has no frame of it. */
static inline __attribute__((always_inline)) uint32_t take_stack(struct xseg_history_store *store)
{
    void *frames[XSEG_STACK_FRAMES];
    struct xseg_stack_depot *depot = xseg_history_store_depot(store);

    if (__builtin_expect(depot == NULL, 0))
        depot = xseg_history_store_make_depot(store);
    return depot == NULL
               ? 0
               : xseg_stack_depot_add(depot, frames, xseg_stack_capture(frames, XSEG_STACK_FRAMES));
}

/* Let others see the frames that this thread has gathered.  Who sees them instead of those before also sees the events
 * and blocks that name those before. */
static void show(uint32_t frames)
{
    (void)xseg_history_join_contexts();
    atomic_store_explicit(&here.shown[xseg_min(here.depth, XSEG_HISTORY_DEPTH - 1)], frames,
                          memory_order_release);
}

__attribute__((noinline)) bool xseg_history_gather_all(struct xseg_history_store *store,
                                                       uint64_t settings, uint64_t user)
{
    const bool takes = xseg_history_settings_capture(settings);
    const struct xseg_history_hook *hook = takes ? xseg_history_store_hook(store) : NULL;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    const uint32_t stack = takes ? take_stack(store) : 0;
    /* The hook may call another allocator, which gathers as well. */
    const uint32_t frames = hook == NULL ? 0 : hook->gather(hook->context);
    here.gathered = (struct xseg_history_gathered){
        .version = xseg_history_settings_version(settings),
        .stack = stack,
        .frames = frames,
        .user = user,
    };
    if (hook == NULL)
        return false;
    show(frames);
    return xseg_history_store_count_gather(store);
}
