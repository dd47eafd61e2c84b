/* SPDX-License-Identifier: MIT */
/*
 * Every call of ranges, pins, descriptors, exports and registrations, in every state of a page, during another call.
 * A case is STATE/CALL/ORIGIN: it brings two granules of a range, or a page of a block, into a state, and makes the outer
 * call of the state.  While the outer call runs a callback, that callback or a second thread makes the tested call.  The case
 * checks
 * - the status: XSEG_ERR_BUSY for granules that the outer call has claimed (xseg/range.h); a second thread may wait;
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

/* Runs of COUNT granules of a range, and the granules of each range.  The granules of a case are at TARGET or at SOURCE. */
enum { SOURCE = 0, TARGET = 8, COUNT = 2, NEXT = TARGET + COUNT, ALIAS = 40, GRANULES = 64 };
/* The pages of a small device, and more pages than it has. */
enum { SMALL_DEVICE_PAGES = 16, TOO_MANY_PAGES = 20 };
#define BLOCK_PAGE  (20 * MIB) /* page size of blocks */
#define AT(granule) ((granule)*PAGE)
#define RUN         AT(COUNT) /* size of a run */

/* Sets of statuses. */
enum { OK = 1, BUSY = 2, ARGUMENT = 4, NOT_ALLOCATED = 8, PAUSED = 16, NO_MEMORY = 32 };

/* The state of the granules, during and after the outer call.  From UNMAPPING on, a tested call that succeeds during the outer
 * call can be a reason why the outer call fails. */
enum class {
    UNMAPPED,
    MAPPED,
    PENDING,     /* decommitted, and its stream is busy */
    CLAIMED,     /* by a commit, with or without a page */
    MAPPING,     /* mapped, and observers or registrars are notified */
    UNMAPPING,   /* about to be unmapped, and observers or registrars are notified */
    ALIASED,     /* source of an alias call in progress */
    POOL_MOVING, /* its pool is being paused or resumed */
    POOL_PAUSED, /* its pool is paused */
    RELEASED,    /* its range is released */
};

/* The registered runs of a registration. */
struct runs {
    uintptr_t begin[16], end[16];
    size_t count;
    unsigned entered;
};

enum event { ON_MAP, ON_UNMAP, LOW_MEMORY, ENTER, LEAVE };

struct env;
struct state {
    const char *name;
    enum class during, after;
    enum event on; /* the callback during which the tested call is made */
    void (*prepare)(struct env *env);
    xseg_status (*outer_call)(struct env *env);
    int expected; /* status of `outer_call` */
    enum {
        HELD = 1,         /* the granules are held */
        BLOCK = 2,        /* pages of a block instead of a range */
        KEEPS = 4,        /* granules that are mapped after the outer call keep their contents */
        SMALL_DEVICE = 8, /* the device has SMALL_DEVICE_PAGES pages */
        AT_SOURCE = 16,   /* the granules are at SOURCE, not at TARGET */
    } flags;
};

static bool has_flag(const struct state *state, unsigned flag)
{
    return (state->flags & flag) != 0;
}

struct call {
    const char *name;
    xseg_status (*make)(struct env *env);
    void (*undo)(struct env *env); /* after a successful call; may be NULL */
    bool of_range;                 /* the call does not apply to blocks */
};

struct env {
    const struct state *state;
    const struct call *call;
    bool by_thread; /* a second thread makes the tested call */

    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    unsigned holds;            /* of the granules */
    struct xseg_range *range;  /* has the granules of the case */
    struct xseg_range *second; /* of the same pool */
    struct xseg_range *apart;  /* of a separate pool */
    unsigned char *base;       /* of `range` */
    unsigned first;            /* first granule of the case */
    void *address;             /* arguments of calls that are not calls of ranges */
    size_t bytes;
    void *block, *neighbor;
    xseg_stream stream, graph_stream; /* of commits and decommits, and of launched graphs */
    bool has_registration;            /* registered before the outer call */
    struct xseg_registrar registrar;
    uint64_t observer, registration;
    struct runs runs; /* of `registration` */

    bool is_armed, was_triggered; /* the tested call is to be made, was made */
    struct child_case_thread thread;
    bool returned_in_callback; /* the tested call returned before the callback did */
    xseg_status status, outer_status;
    char message[512];
    /* The results of the tested call. */
    struct runs tested_runs;
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
        (void)xseg_error_message(env->message, sizeof(env->message));
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

/* Make the tested call.  Wait until a second thread has returned or sleeps, which means that it waits for the outer call. */
static void make_tested_call(struct env *env)
{
    env->was_triggered = true;
    env->is_armed = false;
    if (!env->by_thread) {
        make_call(env);
    } else {
        CHECK_IN_CALLBACK(pthread_create(&thread, NULL, call_from_thread, env) == 0,
                          "pthread_create failed");
        child_case_wait_for_thread(&env->thread);
    }
    env->returned_in_callback = atomic_load(&env->thread.has_returned);
}

/* Every callback calls this function; the callback of the state makes the tested call. */
static void notify(struct env *env, enum event event, const void *base, size_t bytes)
{
    CHECK_IN_CALLBACK(event == LOW_MEMORY || env_access_at(base, 0) != 0,
                      "a callback reports %p, which is not mapped", base);
    if (!env->is_armed || event != env->state->on)
        return;
    if (has_flag(env->state, BLOCK) && event != LOW_MEMORY) {
        env->address = (void *)(uintptr_t)base;
        env->bytes = bytes;
    }
    make_tested_call(env);
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
    size_t i = 0;

    (void)pthread_mutex_lock(&runs_lock);
    CHECK_IN_CALLBACK(env_access_at(run->base, 0) != 0, "leave for %p, which is not mapped",
                      run->base);
    while (i < runs->count && runs->begin[i] != (uintptr_t)run->base)
        i++;
    CHECK_IN_CALLBACK(i < runs->count && runs->end[i] == (uintptr_t)run->base + run->bytes,
                      "leave for %p without enter", run->base);
    runs->count--;
    runs->begin[i] = runs->begin[runs->count];
    runs->end[i] = runs->end[runs->count];
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

static bool on_tested_enter(void *context, struct xseg_registered *run)
{
    struct env *env = context;

    add_run(&env->tested_runs, run);
    return true;
}

static void on_tested_leave(void *context, const struct xseg_registered *run)
{
    struct env *env = context;

    remove_run(&env->tested_runs, run);
}

/* --- Calls. --- */

static xseg_status outer_release(struct env *env);

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
CALL(call_unhold, xseg_range_unhold(env->range, offset_of(env), RUN, env->graph_stream))
CALL(call_alias_onto, xseg_range_alias(env->range, offset_of(env), RUN, env->second, 0))
CALL(call_alias_from, xseg_range_alias(env->second, AT(ALIAS), RUN, env->range, offset_of(env)))
UNDO(undo_alias_from, decommit(env->second, ALIAS, COUNT, env->stream))
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
    if (env->state->outer_call != outer_release) /* the range, and so its quota, is destroyed */
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

static xseg_status register_tested(struct env *env, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = env, .enter = on_tested_enter,
                                       .leave = on_tested_leave, .pin = pin};

    return xseg_register(env->allocator, env->address, env->bytes, &registrar, &env->id);
}

CALL(call_register, register_tested(env, false))
CALL(call_register_pin, register_tested(env, true))

static void undo_register(struct env *env)
{
    for (size_t i = 0; i < env->tested_runs.count; i++)
        assert_int_not_equal(env_access_at((void *)env->tested_runs.begin[i], 0), 0);
    assert_ok(xseg_unregister(env->allocator, env->id));
    assert_int_equal(env->tested_runs.count, 0);
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
    /* A pause does not check the work of a graph, which the program must synchronize. */
    assert_ok(xseg_sim_finish(env->graph_stream));
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

/* --- The statuses that each tested call may return. --- */

static bool is_call(const struct env *env, xseg_status (*make)(struct env *env))
{
    return env->call->make == make;
}

/* For granules that no call has claimed. */
static unsigned allowed_unclaimed(const struct env *env, enum class class)
{
    const bool is_mapped = class == MAPPED;

    if (class == POOL_PAUSED)
        return is_call(env, call_hold) || is_call(env, call_info) || is_call(env, call_trim) ? OK
               : is_call(env, call_unhold) ? (has_flag(env->state, HELD) ? OK : ARGUMENT)
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
        return has_flag(env->state, HELD) ? OK : ARGUMENT;
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

/* For granules that the outer call has claimed. */
static unsigned allowed_claimed(const struct env *env, enum class class)
{
    const unsigned paused = class == POOL_MOVING ? PAUSED : 0;

    if (is_call(env, call_hold) || is_call(env, call_trim))
        return OK | BUSY;
    if (is_call(env, call_info))
        return OK;
    if (is_call(env, call_unhold))
        return (has_flag(env->state, HELD) ? OK : ARGUMENT) | BUSY;
    if (is_call(env, call_pin) || is_call(env, call_export))
        return BUSY | paused | (class == POOL_MOVING ? NOT_ALLOCATED : 0);
    if (is_call(env, call_unpin))
        return ARGUMENT | BUSY | paused;
    /* A callback may open a descriptor of the notified memory, or pin it; undo functions check that the pin is effective. */
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
        return OK | NO_MEMORY | (env->state->outer_call == outer_release ? BUSY | ARGUMENT : 0) |
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

static unsigned set_of_status(xseg_status status)
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

/* --- States and outer calls. --- */

static void fill(const struct env *env)
{
    for (unsigned i = 0; i < COUNT; i++)
        env->base[(env->first + i) * PAGE] = (unsigned char)(i + 7);
}

static void make_unmapped(struct env *env)
{
    (void)env;
}

static void make_mapped(struct env *env)
{
    commit(env->range, env->first, COUNT, env->stream);
    fill(env);
}

static void make_held(struct env *env)
{
    assert_ok(call_hold(env));
    env->holds = 1;
}

static void make_pending(struct env *env)
{
    make_mapped(env);
    env_launch_at(env->stream, env->address, env->bytes);
    decommit(env->range, env->first, COUNT, env->stream);
}

/* Granules that are held for a graph, which has been launched. */
static void make_mapped_and_held(struct env *env)
{
    make_mapped(env);
    make_held(env);
    env_launch_at(env->graph_stream, env->address, env->bytes);
}

static void make_pending_and_held(struct env *env)
{
    make_mapped_and_held(env);
    decommit(env->range, env->first, COUNT, env->stream);
}

static void make_aliased(struct env *env)
{
    assert_ok(xseg_range_alias(env->range, offset_of(env), RUN, env->range, AT(SOURCE)));
}

static void register_memory(struct env *env, const void *address, size_t bytes)
{
    env->registrar = (struct xseg_registrar){sizeof(struct xseg_registrar), .context = env,
                                             .enter = on_enter, .leave = on_leave};
    env->has_registration = true;
    assert_ok(xseg_register(env->allocator, address, bytes, &env->registrar, &env->registration));
}

static void make_registered(struct env *env)
{
    register_memory(env, env->base, GRANULES * PAGE);
}

static void make_mapped_and_registered(struct env *env)
{
    make_mapped(env);
    make_registered(env);
}

static void make_paused(struct env *env)
{
    make_mapped(env);
    assert_ok(call_pause(env));
}

/* Notifies observers of memory that is not in the granules. */
CALL(outer_commit_apart, xseg_range_commit(env->apart, 0, PAGE, NULL))

/* A commit that includes the unmapped granules at NEXT, so that observers are notified. */
CALL(outer_commit_more,
     xseg_range_commit(env->range, offset_of(env), 2 * COUNT * PAGE, env->stream))
CALL(outer_commit_too_many,
     xseg_range_commit(env->range, offset_of(env), AT(TOO_MANY_PAGES), env->stream))

static xseg_status outer_trim(struct env *env)
{
    assert_ok(xseg_sim_finish(env->stream));
    return call_trim(env);
}

CALL(outer_alias, xseg_range_alias(env->range, AT(TARGET), RUN, env->range, AT(SOURCE)))
CALL(outer_resume, xseg_pool_resume(env->pool))

static void make_paused_and_registered(struct env *env)
{
    make_mapped_and_registered(env);
    assert_ok(call_pause(env));
}

static xseg_status outer_release(struct env *env)
{
    decommit(env->range, SOURCE, COUNT, NULL);
    env->is_armed = true;
    return xseg_range_release(env->range);
}

/* A commit in the second range needs all other pages of the device: it waits for the stream of the granules, and remaps their
 * pages. */
CALL(outer_remap,
     xseg_range_commit(env->second, AT(TARGET), (SMALL_DEVICE_PAGES - 2 * COUNT) * PAGE, NULL))

/* A block that outer_free() frees. */
static void make_block(struct env *env)
{
    env->block = env_alloc_in(env->allocator, env->pool, 4 * MIB, NULL);
    env->address = env->block;
    env->bytes = 4 * MIB;
}

static void make_registered_block(struct env *env)
{
    make_block(env);
    register_memory(env, env->block, 4 * MIB);
}

static xseg_status outer_free(struct env *env)
{
    env_free(env->allocator, env->block);
    env->block = NULL;
    return xseg_trim(env->allocator, env_scope(.device = -1, .pool = env->pool), NULL, NULL);
}

CALL(outer_alloc, env_try_alloc_in(env->allocator, env->pool, 4 * MIB, &env->block))

/* A registration of a block and of the unmapped addresses after it, in which outer_alloc_registered() maps memory. */
static void make_partly_mapped_registration(struct env *env)
{
    env->neighbor = env_alloc_in(env->allocator, env->pool, BLOCK_PAGE, NULL);
    register_memory(env, env->neighbor, 2 * BLOCK_PAGE);
}

CALL(outer_alloc_registered, env_try_alloc_in(env->allocator, env->pool, BLOCK_PAGE, &env->block))

static const struct state states[] = {
    {"unmapped", UNMAPPED, UNMAPPED, ON_MAP, make_unmapped, outer_commit_apart, OK, 0},
    {"mapped", MAPPED, MAPPED, ON_MAP, make_mapped, outer_commit_apart, OK, KEEPS},
    {"pending", PENDING, PENDING, ON_MAP, make_pending, outer_commit_apart, OK, KEEPS},
    {"held_unmapped", UNMAPPED, UNMAPPED, ON_MAP, make_held, outer_commit_apart, OK, HELD},
    {"held_mapped", MAPPED, MAPPED, ON_MAP, make_mapped_and_held, outer_commit_apart, OK,
     HELD | KEEPS},
    {"held_pending", PENDING, PENDING, ON_MAP, make_pending_and_held, outer_commit_apart, OK,
     HELD | KEEPS},
    {"aliased", MAPPED, MAPPED, ON_MAP, make_aliased, outer_commit_apart, OK, 0},
    {"commit_short", CLAIMED, UNMAPPED, LOW_MEMORY, make_unmapped, outer_commit_too_many, NO_MEMORY,
     SMALL_DEVICE},
    {"commit_short_held", CLAIMED, UNMAPPED, LOW_MEMORY, make_held, outer_commit_too_many,
     NO_MEMORY, HELD | SMALL_DEVICE},
    {"recommit_short", CLAIMED, PENDING, LOW_MEMORY, make_pending, outer_commit_too_many, NO_MEMORY,
     SMALL_DEVICE},
    {"recommit_short_held", CLAIMED, PENDING, LOW_MEMORY, make_pending_and_held,
     outer_commit_too_many, NO_MEMORY, HELD | KEEPS | SMALL_DEVICE},
    {"recommit_notified", CLAIMED, MAPPED, ON_MAP, make_pending, outer_commit_more, OK, KEEPS},
    {"recommit_notified_held", CLAIMED, MAPPED, ON_MAP, make_pending_and_held, outer_commit_more,
     OK, HELD | KEEPS},
    {"commit_notified", MAPPING, MAPPED, ON_MAP, make_unmapped, call_commit, OK, 0},
    {"commit_notified_held", MAPPING, MAPPED, ON_MAP, make_held, call_commit, OK, HELD},
    {"commit_entering", MAPPING, MAPPED, ENTER, make_registered, call_commit, OK, 0},
    {"alias_notified", MAPPING, MAPPED, ON_MAP, make_unmapped, outer_alias, OK, 0},
    {"alias_notified_held", MAPPING, MAPPED, ON_MAP, make_held, outer_alias, OK, HELD},
    {"alias_entering", MAPPING, MAPPED, ENTER, make_registered, outer_alias, OK, 0},
    {"alias_source", ALIASED, MAPPED, ON_MAP, make_unmapped, outer_alias, OK, AT_SOURCE},
    {"decommit_notified", UNMAPPING, UNMAPPED, ON_UNMAP, make_mapped, call_decommit, OK, 0},
    {"decommit_leaving", UNMAPPING, UNMAPPED, LEAVE, make_mapped_and_registered, call_decommit, OK,
     0},
    {"trim_notified", UNMAPPING, UNMAPPED, ON_UNMAP, make_pending, outer_trim, OK, 0},
    {"remap_notified", UNMAPPING, UNMAPPED, ON_UNMAP, make_pending, outer_remap, OK, SMALL_DEVICE},
    {"release_notified", UNMAPPING, RELEASED, ON_UNMAP, make_pending, outer_release, OK, 0},
    {"pause_notified", POOL_MOVING, POOL_PAUSED, ON_UNMAP, make_mapped, call_pause, OK, KEEPS},
    {"pause_leaving", POOL_MOVING, POOL_PAUSED, LEAVE, make_mapped_and_registered, call_pause, OK,
     KEEPS},
    {"resume_notified", POOL_MOVING, MAPPED, ON_MAP, make_paused, outer_resume, OK, KEEPS},
    {"resume_entering", POOL_MOVING, MAPPED, ENTER, make_paused_and_registered, outer_resume, OK,
     KEEPS},
    {"block_trim_notified", UNMAPPING, UNMAPPED, ON_UNMAP, make_block, outer_free, OK, BLOCK},
    {"block_trim_leaving", UNMAPPING, UNMAPPED, LEAVE, make_registered_block, outer_free, OK,
     BLOCK},
    {"block_growth_notified", MAPPING, MAPPED, ON_MAP, make_unmapped, outer_alloc, OK, BLOCK},
    {"block_growth_entering", MAPPING, MAPPED, ENTER, make_partly_mapped_registration,
     outer_alloc_registered, OK, BLOCK},
};

/* --- A case. --- */

static void set_up(struct env *env)
{
    env->allocator = env_open_sim_with_clock(
        "expandable_segments:True",
        .memory_bytes = (has_flag(env->state, SMALL_DEVICE) ? SMALL_DEVICE_PAGES : GRANULES) * PAGE,
        .real_bytes = true);
    env->pool = env_pool_of(env->allocator, .exportable = true, .rdma = true);
    struct xseg_range_options options = {sizeof(options), .pool = env->pool};
    assert_ok(xseg_range_reserve(env->allocator, 0, GRANULES * PAGE, &options, &env->range));
    assert_ok(xseg_range_reserve(env->allocator, 0, GRANULES * PAGE, &options, &env->second));
    assert_ok(xseg_range_reserve(env->allocator, 0, PAGE, NULL, &env->apart));
    env->base = info(env->range).base;
    env->first = has_flag(env->state, AT_SOURCE) ? SOURCE : TARGET;
    env->address = env->base + env->first * PAGE;
    env->bytes = COUNT * PAGE;
    env->stream = env_stream();
    env->graph_stream = env_stream();
    commit(env->range, SOURCE, COUNT, NULL);
    commit(env->second, 0, COUNT, NULL);
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

/* The granules have the state that the outer call guarantees, and can be used. */
static void check_granules(struct env *env)
{
    const bool keeps_contents = has_flag(env->state, KEEPS) ||
                                (is_call(env, call_hold) && env->status == XSEG_OK &&
                                 env->returned_in_callback && env->state->during == UNMAPPING);

    /* Calls of ranges release memory that is pending unmap; the simulator ends the process if work uses it. */
    commit(env->range, GRANULES - 1, 1, NULL);
    decommit(env->range, GRANULES - 1, 1, NULL);
    if (state_after(env) != MAPPED)
        commit(env->range, env->first, COUNT, env->stream);
    if (keeps_contents && !(is_call(env, call_decommit) && env->status == XSEG_OK))
        check_contents(env);
    env_stream_wait(env->stream, env->graph_stream);
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
    if (env->state->outer_call == outer_alias && has_flag(env->state, AT_SOURCE))
        decommit(env->range, TARGET, COUNT, NULL);
    if (env->state->outer_call == outer_commit_more)
        decommit(env->range, NEXT, COUNT, env->stream);
    if (env->state->outer_call == outer_commit_apart)
        decommit(env->apart, 0, 1, NULL);
    if (env->first != SOURCE && env->state->outer_call != outer_release)
        decommit(env->range, SOURCE, COUNT, NULL);
    decommit(env->second, 0, COUNT, NULL);
    assert_ok(xseg_observer_remove(env->allocator, env->observer));
    xseg_sim_finish_all();
    if (env->range != NULL)
        release(env->range);
    release(env->second);
    release(env->apart);
    assert_ok(xseg_pool_release(env->pool));
    env_close(env->allocator, env->stream, env->graph_stream);
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
    env.is_armed = env.state->outer_call != outer_release;
    child_case_begin();
    env.outer_status = env.state->outer_call(&env);
    if (env.by_thread && env.was_triggered)
        assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(env.was_triggered);

    const unsigned statuses =
        allowed(&env, env.returned_in_callback ? env.state->during : env.state->after);
    if ((set_of_status(env.status) & statuses) == 0)
        fail_msg("%s %s: %s: %s", env.call->name,
                 env.returned_in_callback ? "in the callback" : "after the callback",
                 xseg_status_name(env.status), env.message);
    /* The outer call may fail only because of a tested call that succeeded before. */
    if (set_of_status(env.outer_status) != (unsigned)env.state->expected)
        assert_true(env.state->during >= UNMAPPING && env.status == XSEG_OK &&
                    env.returned_in_callback);
    if (env.status == XSEG_OK)
        env.holds += (unsigned)is_call(&env, call_hold) - (unsigned)is_call(&env, call_unhold);
    if (env.status == XSEG_OK && env.call->undo != NULL)
        env.call->undo(&env);
    if (env.state->outer_call == call_pause && env.outer_status == XSEG_OK)
        assert_ok(xseg_pool_resume(env.pool));
    if (env.state->outer_call == outer_remap && env.outer_status == XSEG_OK)
        decommit(env.second, TARGET, SMALL_DEVICE_PAGES - 2 * COUNT, NULL);
    if (env.state->outer_call == outer_release && env.outer_status == XSEG_OK)
        env.range = NULL;
    if (!has_flag(env.state, BLOCK) && env.range != NULL)
        check_granules(&env);
    tear_down(&env);
}

/* Whether a tested call applies to a state. */
static bool is_applicable(const struct state *state, const struct call *call)
{
    const bool has_registration = state->on == ENTER || state->on == LEAVE;

    if (has_flag(state, BLOCK) && call->of_range)
        return false;
    if (call->make == call_unregister)
        return has_registration && !has_flag(state, BLOCK);
    return true;
}

int main(int argc, char **argv)
{
    enum { STATES = COUNT_OF(states), CALLS = COUNT_OF(calls) };
    static struct child_case cases[STATES * CALLS * 2];
    static struct page_case page_cases[STATES * CALLS * 2];
    static char name[STATES * CALLS * 2][64];
    size_t count = 0;

    for (size_t i = 0; i < STATES; i++)
        for (size_t j = 0; j < CALLS * 2; j++) {
            const struct call *call = &calls[j / 2];

            if (!is_applicable(&states[i], call))
                continue;
            page_cases[count] = (struct page_case){&states[i], call, j % 2 == 1};
            (void)snprintf(name[count], sizeof(name[count]), "%s/%s/%s", states[i].name, call->name,
                           j % 2 == 1 ? "thread" : "callback");
            cases[count] = (struct child_case){name[count], run_case, &page_cases[count]};
            count++;
        }
    return child_case_main(argc, argv, cases, count);
}
