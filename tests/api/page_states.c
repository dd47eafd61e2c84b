/* SPDX-License-Identifier: MIT */
/*
 * Every call of ranges, pins, descriptors, exports and registrations, in every state of a page, during another call.
 * A case is STATE/CALL/ORIGIN: it brings two granules of a range, or a page of a block, into a state.  While another
 * call runs a callback, that callback or a second thread makes the call.  The case checks
 * - the status: XSEG_ERR_BUSY for granules that another call has claimed (xseg/range.h); a second thread may wait;
 * - that observers and registrars are notified once for each page, and only while it is mapped;
 * - that a failed call has no effect, and a successful call is effective: held and pinned memory is mapped, contents are
 *   kept, memory in use is not unmapped (the simulator ends the process otherwise), and granules can be used later.
 */
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/exported_handles.h"
#include "tests/support/ranges.h"
#include "xseg/register.h"
#include "xseg/share.h"

/* Granules of the range. */
enum { SOURCE = 0, TARGET = 8, COUNT = 2, NEXT = 10, ELSEWHERE = 40, GRANULES = 64 };
/* The pages of a small device, and more pages than it has. */
enum { SHORT_PAGES = 16, MANY = 20 };
#define BLOCK_PAGE  (20 * MIB) /* the pages of blocks */
#define AT(granule) ((granule)*PAGE)
#define RUN         AT(COUNT) /* the granules of a case */

/* Statuses as a set. */
enum { OK = 1, BUSY = 2, ARGUMENT = 4, NOT_ALLOCATED = 8, PAUSED = 16, NO_MEMORY = 32 };

/* The role of a page in a call. */
enum class {
    UNMAPPED,
    MAPPED,
    PENDING,     /* decommitted, and its stream is busy */
    CLAIMED,     /* by a commit; with or without a page */
    MAPPING,     /* mapped, and observers or registrars are notified */
    UNMAPPING,   /* about to be unmapped, and observers or registrars are notified */
    ALIASED,     /* source of an alias call in progress */
    POOL_MOVING, /* its pool is being paused or resumed */
    POOL_PAUSED, /* its pool is paused */
    RELEASED,    /* its range is released */
};

/* The runs that a registration has. */
struct runs {
    uintptr_t begin[16], end[16];
    size_t count;
    unsigned entered;
};

enum event { ON_MAP, ON_UNMAP, LOW_MEMORY, ENTER, LEAVE };

struct env;
struct state {
    const char *name;
    enum class now, after;
    enum event on; /* the callback during which the call is made */
    void (*prepare)(struct env *env);
    xseg_status (*act)(struct env *env);
    int expected; /* status of `act` */
    enum {
        HELD = 1,       /* the granules are held */
        BLOCK = 2,      /* pages of a block instead of a range */
        KEEPS = 4,      /* granules that are mapped afterwards keep their contents */
        SHORT = 8,      /* a device with SHORT_PAGES pages */
        AT_SOURCE = 16, /* the granules at SOURCE, not at TARGET */
    } flags;
};

static bool has(const struct state *state, unsigned flag)
{
    return (state->flags & flag) != 0;
}

struct call {
    const char *name;
    xseg_status (*make)(struct env *env);
    void (*undo)(struct env *env);
    bool of_range;
};

struct env {
    const struct state *state;
    const struct call *call;
    bool by_thread;

    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    unsigned holds;                           /* of the granules */
    struct xseg_range *range, *other, *apart; /* `apart`: in a separate pool */
    unsigned char *base;
    unsigned first; /* granule */
    void *address;  /* argument of the call */
    size_t bytes;
    void *block, *neighbor;
    xseg_stream stream, second;
    bool has_registration;
    struct xseg_registrar registrar;
    uint64_t observer, registration;
    struct runs runs;

    bool is_armed, was_triggered;
    struct child_case_thread thread;
    bool was_during; /* the call returned before the callback did */
    xseg_status status, acted;
    char text[512];
    /* The result of the call. */
    struct runs own_runs;
    uint64_t id, offset;
    int fd;
    struct exported_handles exported;
};

/* --- Callbacks. --- */

/* An assertion that ends the process: cmocka's assertions call longjmp(), which must not skip the library's frames. */
#define CHECK_IN_CALLBACK(condition, ...)       \
    do {                                        \
        if (!(condition)) {                     \
            (void)fprintf(stderr, __VA_ARGS__); \
            (void)fputc('\n', stderr);          \
            _exit(1);                           \
        }                                       \
    } while (0)

static void make_call(struct env *env)
{
    env->status = env->call->make(env);
    if (env->status != XSEG_OK)
        (void)xseg_error_message(env->text, sizeof(env->text));
    atomic_store(&env->thread.has_returned, true);
}

static void *call_from_thread(void *context)
{
    struct env *env = context;

    atomic_store(&env->thread.number, (int)syscall(SYS_gettid));
    make_call(env);
    return NULL;
}

static pthread_t thread;

/* Make the call.  Wait until a second thread has returned or sleeps, which means that it waits for the other call. */
static void trigger(struct env *env)
{
    env->was_triggered = true;
    env->is_armed = false;
    if (!env->by_thread) {
        make_call(env);
    } else {
        CHECK_IN_CALLBACK(pthread_create(&thread, NULL, call_from_thread, env) == 0,
                          "pthread_create failed");
        child_case_wait_for(&env->thread);
    }
    env->was_during = atomic_load(&env->thread.has_returned);
}

/* Every callback calls this function; the callback of the state makes the call. */
static void notify(struct env *env, enum event event, const void *base, size_t bytes)
{
    CHECK_IN_CALLBACK(event == LOW_MEMORY || env_access_at(base, 0) != 0,
                      "a callback reports %p, which is not mapped", base);
    if (!env->is_armed || event != env->state->on)
        return;
    if (has(env->state, BLOCK) && event != LOW_MEMORY) {
        env->address = (void *)(uintptr_t)base;
        env->bytes = bytes;
    }
    trigger(env);
}

static void on_map(void *context, const struct xseg_mapping *mapping)
{
    notify(context, ON_MAP, mapping->base, mapping->bytes);
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    notify(context, ON_UNMAP, mapping->base, mapping->bytes);
}

static bool on_low_memory(void *context, const struct xseg_oom_info *oom)
{
    (void)oom;
    notify(context, LOW_MEMORY, NULL, 0);
    return false;
}

/* Callbacks of one registration may run in two threads concurrently. */
static pthread_mutex_t runs_lock = PTHREAD_MUTEX_INITIALIZER;

static void add_run(struct runs *runs, const struct xseg_registered *run)
{
    (void)pthread_mutex_lock(&runs_lock);
    const uintptr_t begin = (uintptr_t)run->base, end = begin + run->bytes;

    CHECK_IN_CALLBACK(env_access_at(run->base, 0) != 0, "enter for %p, which is not mapped",
                      run->base);
    for (size_t i = 0; i < runs->count; i++)
        CHECK_IN_CALLBACK(end <= runs->begin[i] || begin >= runs->end[i], "second enter for %p",
                          run->base);
    CHECK_IN_CALLBACK(runs->count < 16, "more than 16 runs");
    runs->begin[runs->count] = begin;
    runs->end[runs->count++] = end;
    runs->entered++;
    (void)pthread_mutex_unlock(&runs_lock);
}

static void remove_run(struct runs *runs, const struct xseg_registered *run)
{
    size_t at = 0;

    (void)pthread_mutex_lock(&runs_lock);
    CHECK_IN_CALLBACK(env_access_at(run->base, 0) != 0, "leave for %p, which is not mapped",
                      run->base);
    while (at < runs->count && runs->begin[at] != (uintptr_t)run->base)
        at++;
    CHECK_IN_CALLBACK(at < runs->count && runs->end[at] == (uintptr_t)run->base + run->bytes,
                      "leave for %p without enter", run->base);
    runs->count--;
    runs->begin[at] = runs->begin[runs->count];
    runs->end[at] = runs->end[runs->count];
    (void)pthread_mutex_unlock(&runs_lock);
}

static bool on_enter(void *context, struct xseg_registered *run)
{
    struct env *env = context;

    add_run(&env->runs, run);
    notify(env, ENTER, run->base, run->bytes);
    return true;
}

static void on_leave(void *context, const struct xseg_registered *run)
{
    struct env *env = context;

    notify(env, LEAVE, run->base, run->bytes);
    remove_run(&env->runs, run);
}

static bool own_enter(void *context, struct xseg_registered *run)
{
    struct env *env = context;

    add_run(&env->own_runs, run);
    return true;
}

static void own_leave(void *context, const struct xseg_registered *run)
{
    struct env *env = context;

    remove_run(&env->own_runs, run);
}

/* --- Calls. --- */

static xseg_status act_release(struct env *env);

/* Functions that make or undo a call, which is one expression. */
#define CALL(name, ...)                      \
    static xseg_status name(struct env *env) \
    {                                        \
        return __VA_ARGS__;                  \
    }
#define UNDO(name, ...)               \
    static void name(struct env *env) \
    {                                 \
        __VA_ARGS__;                  \
    }

static uint64_t offset_of(const struct env *env)
{
    return env->first * PAGE;
}

CALL(call_commit, xseg_range_commit(env->range, offset_of(env), RUN, env->stream))
CALL(call_decommit, xseg_range_decommit(env->range, offset_of(env), RUN, env->stream))
CALL(call_hold, xseg_range_hold(env->range, offset_of(env), RUN))
CALL(call_unhold, xseg_range_unhold(env->range, offset_of(env), RUN, env->second))
CALL(call_alias_onto, xseg_range_alias(env->range, offset_of(env), RUN, env->other, 0))
CALL(call_alias_from, xseg_range_alias(env->other, AT(ELSEWHERE), RUN, env->range, offset_of(env)))
UNDO(undo_alias_from, decommit(env->other, ELSEWHERE, COUNT, env->stream))
CALL(call_release, xseg_range_release(env->range))

static xseg_status call_info(struct env *env)
{
    struct xseg_range_info out = {sizeof(out)};

    return xseg_range_query(env->range, &out);
}

CALL(call_prepare, xseg_range_prepare(env->range, PAGE))
CALL(call_quota, xseg_range_set_quota(env->range, 2 * COUNT * PAGE))

static void undo_quota(struct env *env)
{
    if (env->state->act != act_release) /* the range, and so its quota, is destroyed */
        assert_ok(xseg_range_set_quota(env->range, 0));
}

CALL(call_pin, xseg_pin(env->allocator, env->address, env->bytes))
CALL(call_unpin, xseg_unpin(env->allocator, env->address, env->bytes))
UNDO(undo_pin, assert_ok(call_unpin(env)))
CALL(call_dmabuf,
     xseg_dmabuf_open(env->allocator, env->address, env->bytes, 0, &env->fd, &env->offset))
UNDO(undo_dmabuf, assert_int_equal(close(env->fd), 0))
CALL(call_dmabuf_pin, xseg_dmabuf_open(env->allocator, env->address, env->bytes, XSEG_DMABUF_PIN,
                                       &env->fd, &env->offset))

/* The memory is still mapped. */
static void undo_dmabuf_pin(struct env *env)
{
    uint64_t id = 0;

    assert_ok(xseg_sim_register_descriptor(env->fd, 0, env->bytes, &id));
    assert_ok(xseg_sim_unregister(id));
    assert_ok(xseg_dmabuf_close(env->allocator, env->fd));
}

static xseg_status add(struct env *env, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = env, .enter = own_enter,
                                       .leave = own_leave, .pin = pin};

    return xseg_register(env->allocator, env->address, env->bytes, &registrar, &env->id);
}

CALL(call_register, add(env, false))
CALL(call_register_pin, add(env, true))

static void undo_register(struct env *env)
{
    for (size_t i = 0; i < env->own_runs.count; i++)
        assert_int_not_equal(env_access_at((void *)env->own_runs.begin[i], 0), 0);
    assert_ok(xseg_unregister(env->allocator, env->id));
    assert_int_equal(env->own_runs.count, 0);
}

CALL(call_unregister, xseg_unregister(env->allocator, env->registration))

static void undo_unregister(struct env *env)
{
    assert_int_equal(env->runs.count, 0);
    env->has_registration = false;
}

CALL(call_export, export_handles(env->allocator, env->address, XSEG_HANDLE_FD, &env->exported))

static void undo_export(struct env *env)
{
    export_handles_close(&env->exported);
    assert_ok(xseg_export_close(env->allocator, env->address));
}

CALL(call_trim, xseg_trim(env->allocator, NULL, NULL, NULL))

static xseg_status call_pause(struct env *env)
{
    /* A pause waits only for the streams of commits; the second stream is that of a graph. */
    assert_ok(xseg_sim_finish(env->second));
    return xseg_pool_pause(env->pool, XSEG_KEEP_HOST, NULL);
}

UNDO(undo_pause, assert_ok(xseg_pool_resume(env->pool)))

static const struct call calls[] = {
    {"commit", call_commit, NULL, true},
    {"decommit", call_decommit, NULL, true},
    {"hold", call_hold, NULL, true},
    {"unhold", call_unhold, NULL, true},
    {"alias_onto", call_alias_onto, NULL, true},
    {"alias_from", call_alias_from, undo_alias_from, true},
    {"release", call_release, NULL, true},
    {"info", call_info, NULL, true},
    {"prepare", call_prepare, NULL, true},
    {"quota", call_quota, undo_quota, true},
    {"pin", call_pin, undo_pin, false},
    {"unpin", call_unpin, NULL, false},
    {"dmabuf", call_dmabuf, undo_dmabuf, false},
    {"dmabuf_pin", call_dmabuf_pin, undo_dmabuf_pin, false},
    {"register", call_register, undo_register, false},
    {"register_pin", call_register_pin, undo_register, false},
    {"unregister", call_unregister, undo_unregister, true},
    {"export", call_export, undo_export, false},
    {"trim", call_trim, NULL, false},
    {"pause", call_pause, undo_pause, false},
};

/* --- The statuses that each call may return. --- */

static bool is_call(const struct env *env, xseg_status (*make)(struct env *env))
{
    return env->call->make == make;
}

/* For pages that no other call has claimed. */
static unsigned allowed_unclaimed(const struct env *env, enum class class)
{
    const bool is_mapped = class == MAPPED;

    if (class == POOL_PAUSED)
        return is_call(env, call_hold) || is_call(env, call_info) || is_call(env, call_trim) ? OK
               : is_call(env, call_unhold) ? (has(env->state, HELD) ? OK : ARGUMENT)
               : is_call(env, call_unpin)  ? ARGUMENT | PAUSED
               : is_call(env, call_export) || is_call(env, call_pin) ? PAUSED | NOT_ALLOCATED
               : is_call(env, call_pause)                            ? ARGUMENT | PAUSED
               : is_call(env, call_unregister)                       ? OK
                                                                     : PAUSED;
    if (class == RELEASED)
        return env->call->of_range                                   ? ARGUMENT
               : is_call(env, call_trim) || is_call(env, call_pause) ? OK
                                                                     : NOT_ALLOCATED;
    if (is_call(env, call_commit) || is_call(env, call_alias_onto))
        return class == UNMAPPED || (class == PENDING && is_call(env, call_commit)) ? OK : ARGUMENT;
    if (is_call(env, call_decommit) || is_call(env, call_alias_from))
        return is_mapped ? OK : ARGUMENT;
    if (is_call(env, call_unhold))
        return has(env->state, HELD) ? OK : ARGUMENT;
    if (is_call(env, call_release))
        return BUSY;
    if (is_call(env, call_pin) || is_call(env, call_export))
        return is_mapped ? OK : NOT_ALLOCATED;
    if (is_call(env, call_unpin))
        return ARGUMENT;
    if (is_call(env, call_pause))
        return class == PENDING ? OK | BUSY : OK;
    if (is_call(env, call_dmabuf) || is_call(env, call_dmabuf_pin) || is_call(env, call_register) ||
        is_call(env, call_register_pin))
        return class == UNMAPPED ? NOT_ALLOCATED : OK;
    return OK;
}

/* For pages that another call has claimed. */
static unsigned allowed_claimed(const struct env *env, enum class class)
{
    const unsigned paused = class == POOL_MOVING ? PAUSED : 0;

    if (is_call(env, call_hold) || is_call(env, call_trim))
        return OK | BUSY;
    if (is_call(env, call_info))
        return OK;
    if (is_call(env, call_unhold))
        return (has(env->state, HELD) ? OK : ARGUMENT) | BUSY;
    if (is_call(env, call_pin) || is_call(env, call_export))
        return BUSY | paused | (class == POOL_MOVING ? NOT_ALLOCATED : 0);
    if (is_call(env, call_unpin))
        return ARGUMENT | BUSY | paused;
    /* Callbacks may open a descriptor of the notified memory, or pin it: a successful pin must be effective. */
    if (is_call(env, call_dmabuf) || is_call(env, call_dmabuf_pin) || is_call(env, call_register) ||
        is_call(env, call_register_pin))
        return OK | NOT_ALLOCATED | BUSY | paused;
    if (is_call(env, call_unregister))
        return BUSY;
    return BUSY | paused;
}

static unsigned allowed(const struct env *env, enum class class)
{
    /* These calls have no granules as arguments. */
    if ((is_call(env, call_prepare) || is_call(env, call_quota)) && class != RELEASED)
        return OK | NO_MEMORY | (env->state->act == act_release ? BUSY | ARGUMENT : 0) |
               (class == POOL_MOVING || class == POOL_PAUSED ? PAUSED | BUSY : 0);
    switch (class) {
    case UNMAPPED:
    case MAPPED:
    case PENDING:
    case POOL_PAUSED:
    case RELEASED:
        return allowed_unclaimed(env, class);
    case ALIASED:
        return allowed_unclaimed(env, MAPPED) | BUSY;
    default:
        return allowed_claimed(env, class);
    }
}

static unsigned set_of(xseg_status status)
{
    switch (status) {
    case XSEG_OK:
        return OK;
    case XSEG_ERR_BUSY:
        return BUSY;
    case XSEG_ERR_ARGUMENT:
        return ARGUMENT;
    case XSEG_ERR_NOT_ALLOCATED:
        return NOT_ALLOCATED;
    case XSEG_ERR_PAUSED:
        return PAUSED;
    case XSEG_ERR_NO_MEMORY:
    case XSEG_ERR_LIMIT:
        return NO_MEMORY;
    default:
        return 0;
    }
}

/* --- States. --- */

static void fill(const struct env *env)
{
    for (unsigned i = 0; i < COUNT; i++)
        env->base[(env->first + i) * PAGE] = (unsigned char)(i + 7);
}

static void nothing(struct env *env)
{
    (void)env;
}

static void mapped(struct env *env)
{
    commit(env->range, env->first, COUNT, env->stream);
    fill(env);
}

static void held(struct env *env)
{
    assert_ok(call_hold(env));
    env->holds = 1;
}

static void pending(struct env *env)
{
    mapped(env);
    env_launch_at(env->stream, env->address, env->bytes);
    decommit(env->range, env->first, COUNT, env->stream);
}

/* Held memory of a graph that has been launched on the second stream. */
static void mapped_and_held(struct env *env)
{
    mapped(env);
    held(env);
    env_launch_at(env->second, env->address, env->bytes);
}

static void pending_and_held(struct env *env)
{
    mapped_and_held(env);
    decommit(env->range, env->first, COUNT, env->stream);
}

static void aliased(struct env *env)
{
    assert_ok(xseg_range_alias(env->range, offset_of(env), RUN, env->range, AT(SOURCE)));
}

static void registered_at(struct env *env, const void *address, size_t bytes)
{
    env->registrar = (struct xseg_registrar){sizeof(struct xseg_registrar), .context = env,
                                             .enter = on_enter, .leave = on_leave};
    env->has_registration = true;
    assert_ok(xseg_register(env->allocator, address, bytes, &env->registrar, &env->registration));
}

static void registered(struct env *env)
{
    registered_at(env, env->base, GRANULES * PAGE);
}

static void mapped_and_registered(struct env *env)
{
    mapped(env);
    registered(env);
}

/* The pause moves the whole pool, including memory that is committed during the pause. */
static void paused(struct env *env)
{
    mapped(env);
    assert_ok(call_pause(env));
}

/* A callback for memory other than the granules. */
CALL(act_elsewhere, xseg_range_commit(env->apart, 0, PAGE, NULL))

/* A commit that includes unmapped granules, so observers are notified. */
CALL(act_commit_more, xseg_range_commit(env->range, offset_of(env), 2 * COUNT * PAGE, env->stream))
CALL(act_commit_many, xseg_range_commit(env->range, offset_of(env), AT(MANY), env->stream))

static xseg_status act_trim(struct env *env)
{
    assert_ok(xseg_sim_finish(env->stream));
    return call_trim(env);
}

CALL(act_alias, xseg_range_alias(env->range, AT(TARGET), RUN, env->range, AT(SOURCE)))
CALL(act_resume, xseg_pool_resume(env->pool))

static void paused_and_registered(struct env *env)
{
    mapped_and_registered(env);
    assert_ok(call_pause(env));
}

static xseg_status act_release(struct env *env)
{
    decommit(env->range, SOURCE, COUNT, NULL);
    env->is_armed = true;
    return xseg_range_release(env->range);
}

/* Pages of the granules are remapped to another range; the commit waits for their stream. */
CALL(act_remap, xseg_range_commit(env->other, AT(TARGET), (SHORT_PAGES - 2 * COUNT) * PAGE, NULL))

/* A block that `act` frees, so that it is cached. */
static void cached(struct env *env)
{
    env->block = env_alloc_in(env->allocator, env->pool, 4 * MIB, NULL);
    env->address = env->block;
    env->bytes = 4 * MIB;
}

static void cached_and_registered(struct env *env)
{
    cached(env);
    registered_at(env, env->block, 4 * MIB);
}

static xseg_status act_free(struct env *env)
{
    env_free(env->allocator, env->block);
    env->block = NULL;
    return xseg_trim(env->allocator, env_scope(.device = -1, .pool = env->pool), NULL, NULL);
}

CALL(act_alloc, env_try_alloc_in(env->allocator, env->pool, 4 * MIB, &env->block))

/* A registration of memory of which a part is not yet mapped. */
static void registered_partly_mapped(struct env *env)
{
    env->neighbor = env_alloc_in(env->allocator, env->pool, BLOCK_PAGE, NULL);
    registered_at(env, env->neighbor, 2 * BLOCK_PAGE);
}

CALL(act_alloc_registered, env_try_alloc_in(env->allocator, env->pool, BLOCK_PAGE, &env->block))

static const struct state states[] = {
    {"unmapped", UNMAPPED, UNMAPPED, ON_MAP, nothing, act_elsewhere, OK, 0},
    {"mapped", MAPPED, MAPPED, ON_MAP, mapped, act_elsewhere, OK, KEEPS},
    {"pending", PENDING, PENDING, ON_MAP, pending, act_elsewhere, OK, KEEPS},
    {"held_unmapped", UNMAPPED, UNMAPPED, ON_MAP, held, act_elsewhere, OK, HELD},
    {"held_mapped", MAPPED, MAPPED, ON_MAP, mapped_and_held, act_elsewhere, OK, HELD | KEEPS},
    {"held_pending", PENDING, PENDING, ON_MAP, pending_and_held, act_elsewhere, OK, HELD | KEEPS},
    {"aliased", MAPPED, MAPPED, ON_MAP, aliased, act_elsewhere, OK, 0},
    {"commit_short", CLAIMED, UNMAPPED, LOW_MEMORY, nothing, act_commit_many, NO_MEMORY, SHORT},
    {"commit_short_held", CLAIMED, UNMAPPED, LOW_MEMORY, held, act_commit_many, NO_MEMORY,
     HELD | SHORT},
    {"recommit_short", CLAIMED, PENDING, LOW_MEMORY, pending, act_commit_many, NO_MEMORY, SHORT},
    {"recommit_short_held", CLAIMED, PENDING, LOW_MEMORY, pending_and_held, act_commit_many,
     NO_MEMORY, HELD | KEEPS | SHORT},
    {"recommit_notified", CLAIMED, MAPPED, ON_MAP, pending, act_commit_more, OK, KEEPS},
    {"recommit_notified_held", CLAIMED, MAPPED, ON_MAP, pending_and_held, act_commit_more, OK,
     HELD | KEEPS},
    {"commit_notified", MAPPING, MAPPED, ON_MAP, nothing, call_commit, OK, 0},
    {"commit_notified_held", MAPPING, MAPPED, ON_MAP, held, call_commit, OK, HELD},
    {"commit_entering", MAPPING, MAPPED, ENTER, registered, call_commit, OK, 0},
    {"alias_notified", MAPPING, MAPPED, ON_MAP, nothing, act_alias, OK, 0},
    {"alias_notified_held", MAPPING, MAPPED, ON_MAP, held, act_alias, OK, HELD},
    {"alias_entering", MAPPING, MAPPED, ENTER, registered, act_alias, OK, 0},
    {"alias_source", ALIASED, MAPPED, ON_MAP, nothing, act_alias, OK, AT_SOURCE},
    {"decommit_notified", UNMAPPING, UNMAPPED, ON_UNMAP, mapped, call_decommit, OK, 0},
    {"decommit_leaving", UNMAPPING, UNMAPPED, LEAVE, mapped_and_registered, call_decommit, OK, 0},
    {"trim_notified", UNMAPPING, UNMAPPED, ON_UNMAP, pending, act_trim, OK, 0},
    {"remap_notified", UNMAPPING, UNMAPPED, ON_UNMAP, pending, act_remap, OK, SHORT},
    {"release_notified", UNMAPPING, RELEASED, ON_UNMAP, pending, act_release, OK, 0},
    {"pause_notified", POOL_MOVING, POOL_PAUSED, ON_UNMAP, mapped, call_pause, OK, KEEPS},
    {"pause_leaving", POOL_MOVING, POOL_PAUSED, LEAVE, mapped_and_registered, call_pause, OK,
     KEEPS},
    {"resume_notified", POOL_MOVING, MAPPED, ON_MAP, paused, act_resume, OK, KEEPS},
    {"resume_entering", POOL_MOVING, MAPPED, ENTER, paused_and_registered, act_resume, OK, KEEPS},
    {"block_trim_notified", UNMAPPING, UNMAPPED, ON_UNMAP, cached, act_free, OK, BLOCK},
    {"block_trim_leaving", UNMAPPING, UNMAPPED, LEAVE, cached_and_registered, act_free, OK, BLOCK},
    {"block_growth_notified", MAPPING, MAPPED, ON_MAP, nothing, act_alloc, OK, BLOCK},
    {"block_growth_entering", MAPPING, MAPPED, ENTER, registered_partly_mapped,
     act_alloc_registered, OK, BLOCK},
};

/* --- A case. --- */

static void set_up(struct env *env)
{
    env->allocator = env_open_sim_with_clock(
        "expandable_segments:True",
        .memory_bytes = (has(env->state, SHORT) ? SHORT_PAGES : GRANULES) * PAGE,
        .real_bytes = true);
    env->pool = env_pool_of(env->allocator, .exportable = true, .rdma = true);
    struct xseg_range_options options = {sizeof(options), .pool = env->pool};
    assert_ok(xseg_range_reserve(env->allocator, 0, GRANULES * PAGE, &options, &env->range));
    assert_ok(xseg_range_reserve(env->allocator, 0, GRANULES * PAGE, &options, &env->other));
    assert_ok(xseg_range_reserve(env->allocator, 0, PAGE, NULL, &env->apart));
    env->base = info(env->range).base;
    env->first = has(env->state, AT_SOURCE) ? SOURCE : TARGET;
    env->address = env->base + env->first * PAGE;
    env->bytes = COUNT * PAGE;
    env->stream = env_stream();
    env->second = env_stream();
    commit(env->range, SOURCE, COUNT, NULL);
    commit(env->other, 0, COUNT, NULL);
    env->fd = -1;
    env->observer = env_observe(env->allocator, .context = env, .on_map = on_map,
                                .on_unmap = on_unmap, .on_low_memory = on_low_memory);
}

/* The state of the granules after both calls. */
static enum class state_after(const struct env *env) {
    if (env->status == XSEG_OK &&
        (is_call(env, call_commit) || is_call(env, call_alias_onto))) return MAPPED;
    if (env->status == XSEG_OK && is_call(env, call_decommit)) return PENDING;
    return env->state->after == POOL_PAUSED ? MAPPED : env->state->after; /* resumed by now */
}

static void check_contents(const struct env *env)
{
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(env->base[(env->first + i) * PAGE], i + 7);
}

/* The granules have the state that the other call guarantees, and can be used. */
static void check_granules(struct env *env)
{
    const bool keeps_contents =
        has(env->state, KEEPS) || (is_call(env, call_hold) && env->status == XSEG_OK &&
                                   env->was_during && env->state->now == UNMAPPING);

    /* Memory that is pending unmap is released; the simulator ends the process if work uses it. */
    commit(env->range, GRANULES - 1, 1, NULL);
    decommit(env->range, GRANULES - 1, 1, NULL);
    if (state_after(env) != MAPPED)
        commit(env->range, env->first, COUNT, env->stream);
    if (keeps_contents && !(is_call(env, call_decommit) && env->status == XSEG_OK))
        check_contents(env);
    env_stream_wait(env->stream, env->second);
    decommit(env->range, env->first, COUNT, env->stream);
}

static void tear_down(struct env *env)
{
    if (env->has_registration)
        assert_ok(xseg_unregister(env->allocator, env->registration));
    assert_int_equal(env->runs.count, 0);
    env_free(env->allocator, env->block, env->neighbor);
    while (env->holds-- != 0)
        assert_ok(call_unhold(env));
    if (env->state->act == act_alias && has(env->state, AT_SOURCE))
        decommit(env->range, TARGET, COUNT, NULL);
    if (env->state->act == act_commit_more)
        decommit(env->range, NEXT, COUNT, env->stream);
    if (env->state->act == act_elsewhere)
        decommit(env->apart, 0, 1, NULL);
    if (env->first != SOURCE && env->state->act != act_release)
        decommit(env->range, SOURCE, COUNT, NULL);
    decommit(env->other, 0, COUNT, NULL);
    assert_ok(xseg_observer_remove(env->allocator, env->observer));
    xseg_sim_finish_all();
    if (env->range != NULL)
        release(env->range);
    release(env->other);
    release(env->apart);
    assert_ok(xseg_pool_release(env->pool));
    env_close(env->allocator, env->stream, env->second);
}

struct page_case {
    const struct state *state;
    const struct call *call;
    bool by_thread;
};

static void run_case(const void *argument)
{
    const struct page_case *page_case = argument;
    static struct env env;

    env = (struct env){
        .state = page_case->state, .call = page_case->call, .by_thread = page_case->by_thread};
    set_up(&env);
    env.state->prepare(&env);
    env.is_armed = env.state->act != act_release;
    child_case_begin();
    env.acted = env.state->act(&env);
    if (env.by_thread && env.was_triggered)
        assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(env.was_triggered);

    const unsigned statuses = allowed(&env, env.was_during ? env.state->now : env.state->after);
    if ((set_of(env.status) & statuses) == 0)
        fail_msg("%s %s: %s: %s", env.call->name,
                 env.was_during ? "during the other call" : "afterwards",
                 xseg_status_name(env.status), env.text);
    /* A call that succeeded before the other call ended may block the other call. */
    if (set_of(env.acted) != (unsigned)env.state->expected)
        assert_true(env.state->now >= UNMAPPING && env.status == XSEG_OK && env.was_during);
    if (env.status == XSEG_OK)
        env.holds += (unsigned)is_call(&env, call_hold) - (unsigned)is_call(&env, call_unhold);
    if (env.status == XSEG_OK && env.call->undo != NULL)
        env.call->undo(&env);
    if (env.state->act == call_pause && env.acted == XSEG_OK)
        assert_ok(xseg_pool_resume(env.pool));
    if (env.state->act == act_remap && env.acted == XSEG_OK)
        decommit(env.other, TARGET, SHORT_PAGES - 2 * COUNT, NULL);
    if (env.state->act == act_release && env.acted == XSEG_OK)
        env.range = NULL;
    if (!has(env.state, BLOCK) && env.range != NULL)
        check_granules(&env);
    tear_down(&env);
}

/* Whether a call applies to a state. */
static bool is_applicable(const struct state *state, const struct call *call)
{
    const bool has_registration = state->on == ENTER || state->on == LEAVE;

    if (has(state, BLOCK) && call->of_range)
        return false;
    if (call->make == call_unregister)
        return has_registration && !has(state, BLOCK);
    return true;
}

int main(int argc, char **argv)
{
    enum { STATES = COUNT_OF(states), CALLS = COUNT_OF(calls) };
    static struct child_case cases[STATES * CALLS * 2];
    static struct page_case page[STATES * CALLS * 2];
    static char name[STATES * CALLS * 2][64];
    size_t count = 0;

    for (size_t i = 0; i < STATES; i++)
        for (size_t j = 0; j < CALLS * 2; j++) {
            const struct call *call = &calls[j / 2];

            if (!is_applicable(&states[i], call))
                continue;
            page[count] = (struct page_case){&states[i], call, j % 2 == 1};
            (void)snprintf(name[count], sizeof(name[count]), "%s/%s/%s", states[i].name, call->name,
                           j % 2 == 1 ? "thread" : "callback");
            cases[count] = (struct child_case){name[count], run_case, &page[count]};
            count++;
        }
    return child_case_main(argc, argv, cases, count);
}
