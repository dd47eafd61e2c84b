/* SPDX-License-Identifier: MIT */
/*
 * Every call about ranges, pins, descriptors, exports and registrations, in every state of a page, from a callback
 * and from a second thread.
 *
 * A case is STATE/CALL/WHERE.  It brings two granules of a range, or a page of a block, into the state, makes the call
 * while another call runs a callback, and checks
 *   - the status: xseg/range.h promises XSEG_ERR_BUSY for granules that another call works on.  A second thread may also
 *     wait, and is served when the other call has ended;
 *   - that observers and registrars hear of each page once, and only while it is mapped;
 *   - that the call was effective or had no effect: memory that is held or pinned stays, contents are kept, memory is
 *     unmapped only when the streams that use it are idle (the simulator ends the process otherwise), and afterwards
 *     the granules can be committed or decommitted as before.
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
enum { SOURCE = 0, TARGET = 8, COUNT = 2, BESIDE = 10, ELSEWHERE = 40, GRANULES = 64 };
/* More than the device has where memory is to be short. */
enum { SHORT_PAGES = 16, MANY = 20 };
#define BLOCK_PAGE (20 * MIB) /* the pages of blocks */

/* Statuses as a set. */
enum { OK = 1, BUSY = 2, ARGUMENT = 4, NOT_ALLOCATED = 8, PAUSED = 16, NO_MEMORY = 32 };

/* What a page is to a call. */
enum class {
    UNMAPPED,
    MAPPED,
    PENDING,     /* decommitted, and its stream is busy */
    CLAIMED,     /* by a commit, whether it has a page or not */
    MAPPING,     /* mapped, and observers or registrars are notified */
    UNMAPPING,   /* about to be unmapped, and observers or registrars are notified */
    ALIASED,     /* the pages of an alias that is being made */
    POOL_MOVING, /* with its pool, which is being paused or resumed */
    POOL_PAUSED, /* its pool is paused */
    RELEASED,    /* its range is */
};

/* The runs that a registration has. */
struct runs {
    uintptr_t begin[16], end[16];
    size_t count;
    unsigned entered;
};

enum event { CAME, LEAVING, SHORT_OF_MEMORY, ENTER, LEAVE };

struct world;
struct state {
    const char *name;
    enum class now, after;
    bool is_held, is_block;
    enum event on; /* in which callback the call is made */
    void (*prepare)(struct world *world);
    xseg_status (*act)(struct world *world);
    int expected;   /* of `act` */
    bool keeps;     /* the contents of the granules, if they are mapped afterwards */
    unsigned first; /* 0: TARGET; else SOURCE + 1 */
    bool is_short;  /* a device with SHORT_PAGES pages */
};

struct call {
    const char *name;
    xseg_status (*make)(struct world *world);
    void (*undo)(struct world *world);
    bool of_range;
};

struct world {
    const struct state *state;
    const struct call *call;
    bool by_thread;

    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    unsigned holds;                           /* of the granules */
    struct xseg_range *range, *other, *apart; /* `apart`: in a pool of its own */
    unsigned char *base;
    unsigned first; /* granule */
    void *address;  /* of what the call names */
    size_t bytes;
    void *block, *beside;
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
    /* What the call gave. */
    struct runs own_runs;
    uint64_t id, offset;
    int fd;
    struct exported_handles exported;
};

/* --- Callbacks. --- */

/* Ends the case: a callback cannot use cmocka's, which leave by longjmp(). */
#define PROMISE(condition, ...)                 \
    do {                                        \
        if (!(condition)) {                     \
            (void)fprintf(stderr, __VA_ARGS__); \
            (void)fputc('\n', stderr);          \
            _exit(1);                           \
        }                                       \
    } while (0)

static void make_call(struct world *world)
{
    world->status = world->call->make(world);
    if (world->status != XSEG_OK)
        (void)xseg_error_message(world->text, sizeof(world->text));
    atomic_store(&world->thread.has_returned, true);
}

static void *call_from_thread(void *context)
{
    struct world *world = context;

    atomic_store(&world->thread.number, (int)syscall(SYS_gettid));
    make_call(world);
    return NULL;
}

static pthread_t thread;

/* Make the call.  A second thread is waited for until it has returned or sleeps, so waits for the call under way. */
static void trigger(struct world *world)
{
    world->was_triggered = true;
    world->is_armed = false;
    if (!world->by_thread) {
        make_call(world);
    } else {
        PROMISE(pthread_create(&thread, NULL, call_from_thread, world) == 0, "no thread");
        child_case_wait_for(&world->thread);
    }
    world->was_during = atomic_load(&world->thread.has_returned);
}

/* Reached by the callback in which the call is due, and by the others. */
static void notify(struct world *world, enum event event, const void *base, size_t bytes)
{
    PROMISE(event == SHORT_OF_MEMORY || access_at(base, 0) != 0,
            "a callback hears of %p, which is not mapped", base);
    if (!world->is_armed || event != world->state->on)
        return;
    if (world->state->is_block && event != SHORT_OF_MEMORY) {
        world->address = (void *)(uintptr_t)base;
        world->bytes = bytes;
    }
    trigger(world);
}

static void on_came(void *context, const struct xseg_mapping *mapping)
{
    notify(context, CAME, mapping->base, mapping->bytes);
}

static void on_leaving(void *context, const struct xseg_mapping *mapping)
{
    notify(context, LEAVING, mapping->base, mapping->bytes);
}

static bool on_short(void *context, const struct xseg_oom_info *shortage)
{
    (void)shortage;
    notify(context, SHORT_OF_MEMORY, NULL, 0);
    return false;
}

/* Callbacks of one registration may run in two threads at once. */
static pthread_mutex_t runs_lock = PTHREAD_MUTEX_INITIALIZER;

static void add_run(struct runs *runs, const struct xseg_registered *run)
{
    (void)pthread_mutex_lock(&runs_lock);
    const uintptr_t begin = (uintptr_t)run->base, end = begin + run->bytes;

    PROMISE(access_at(run->base, 0) != 0, "enter for %p, which is not mapped", run->base);
    for (size_t i = 0; i < runs->count; i++)
        PROMISE(end <= runs->begin[i] || begin >= runs->end[i],
                "enter for %p, which has entered already", run->base);
    PROMISE(runs->count < 16, "more runs than there are");
    runs->begin[runs->count] = begin;
    runs->end[runs->count++] = end;
    runs->entered++;
    (void)pthread_mutex_unlock(&runs_lock);
}

static void remove_run(struct runs *runs, const struct xseg_registered *run)
{
    size_t at = 0;

    (void)pthread_mutex_lock(&runs_lock);
    PROMISE(access_at(run->base, 0) != 0, "leave for %p, which is not mapped any more", run->base);
    while (at < runs->count && runs->begin[at] != (uintptr_t)run->base)
        at++;
    PROMISE(at < runs->count && runs->end[at] == (uintptr_t)run->base + run->bytes,
            "leave for %p, which has not entered", run->base);
    runs->count--;
    runs->begin[at] = runs->begin[runs->count];
    runs->end[at] = runs->end[runs->count];
    (void)pthread_mutex_unlock(&runs_lock);
}

static bool on_enter(void *context, struct xseg_registered *run)
{
    struct world *world = context;

    add_run(&world->runs, run);
    notify(world, ENTER, run->base, run->bytes);
    return true;
}

static void on_leave(void *context, const struct xseg_registered *run)
{
    struct world *world = context;

    notify(world, LEAVE, run->base, run->bytes);
    remove_run(&world->runs, run);
}

static bool own_enter(void *context, struct xseg_registered *run)
{
    struct world *world = context;

    add_run(&world->own_runs, run);
    return true;
}

static void own_leave(void *context, const struct xseg_registered *run)
{
    struct world *world = context;

    remove_run(&world->own_runs, run);
}

/* --- Calls. --- */

static xseg_status act_release(struct world *world);

static uint64_t offset_of(const struct world *world)
{
    return world->first * PAGE;
}

static xseg_status call_commit(struct world *world)
{
    return xseg_range_commit(world->range, offset_of(world), COUNT * PAGE, world->stream);
}

static xseg_status call_decommit(struct world *world)
{
    return xseg_range_decommit(world->range, offset_of(world), COUNT * PAGE, world->stream);
}

static xseg_status call_hold(struct world *world)
{
    return xseg_range_hold(world->range, offset_of(world), COUNT * PAGE);
}

static xseg_status call_let_go(struct world *world)
{
    return xseg_range_unhold(world->range, offset_of(world), COUNT * PAGE, world->second);
}

static xseg_status call_share_onto(struct world *world)
{
    return xseg_range_alias(world->range, offset_of(world), COUNT * PAGE, world->other, 0);
}

static xseg_status call_share_from(struct world *world)
{
    return xseg_range_alias(world->other, ELSEWHERE * PAGE, COUNT * PAGE, world->range,
                            offset_of(world));
}

static void undo_share_from(struct world *world)
{
    decommit(world->other, ELSEWHERE, COUNT, world->stream);
}

static xseg_status call_release(struct world *world)
{
    return xseg_range_release(world->range);
}

static xseg_status call_info(struct world *world)
{
    struct xseg_range_info out = {sizeof(out)};

    return xseg_range_query(world->range, &out);
}

static xseg_status call_prepare(struct world *world)
{
    return xseg_range_prepare(world->range, PAGE);
}

static xseg_status call_quota(struct world *world)
{
    return xseg_range_set_quota(world->range, 2 * COUNT * PAGE);
}

static void undo_quota(struct world *world)
{
    if (world->state->act != act_release) /* the quota ends with the range */
        assert_ok(xseg_range_set_quota(world->range, 0));
}

static xseg_status call_pin(struct world *world)
{
    return xseg_pin(world->allocator, world->address, world->bytes);
}

static xseg_status call_unpin(struct world *world)
{
    return xseg_unpin(world->allocator, world->address, world->bytes);
}

static void undo_pin(struct world *world)
{
    assert_ok(call_unpin(world));
}

static xseg_status call_dmabuf(struct world *world)
{
    return xseg_dmabuf_open(world->allocator, world->address, world->bytes, 0, &world->fd,
                            &world->offset);
}

static void undo_dmabuf(struct world *world)
{
    assert_int_equal(close(world->fd), 0);
}

static xseg_status call_dmabuf_pin(struct world *world)
{
    return xseg_dmabuf_open(world->allocator, world->address, world->bytes, XSEG_DMABUF_PIN,
                            &world->fd, &world->offset);
}

/* The memory is there still. */
static void undo_dmabuf_pin(struct world *world)
{
    uint64_t id = 0;

    assert_ok(xseg_sim_register_descriptor(world->fd, 0, world->bytes, &id));
    assert_ok(xseg_sim_unregister(id));
    assert_ok(xseg_dmabuf_close(world->allocator, world->fd));
}

static xseg_status add(struct world *world, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = world, .enter = own_enter,
                                       .leave = own_leave, .pin = pin};

    return xseg_register(world->allocator, world->address, world->bytes, &registrar, &world->id);
}

static xseg_status call_register(struct world *world)
{
    return add(world, false);
}

static xseg_status call_register_pin(struct world *world)
{
    return add(world, true);
}

static void undo_register(struct world *world)
{
    for (size_t i = 0; i < world->own_runs.count; i++)
        assert_int_not_equal(access_at((void *)world->own_runs.begin[i], 0), 0);
    assert_ok(xseg_unregister(world->allocator, world->id));
    assert_int_equal(world->own_runs.count, 0);
}

static xseg_status call_unregister(struct world *world)
{
    return xseg_unregister(world->allocator, world->registration);
}

static void undo_unregister(struct world *world)
{
    assert_int_equal(world->runs.count, 0);
    world->has_registration = false;
}

static xseg_status call_export(struct world *world)
{
    return export_handles(world->allocator, world->address, XSEG_HANDLE_FD, &world->exported);
}

static void undo_export(struct world *world)
{
    export_handles_close(&world->exported);
    assert_ok(xseg_export_close(world->allocator, world->address));
}

static xseg_status call_trim(struct world *world)
{
    return xseg_trim(world->allocator, NULL, NULL, NULL);
}

static xseg_status call_pause(struct world *world)
{
    /* A pause waits for the streams of commits only; the second one is that of a graph. */
    assert_ok(xseg_sim_finish(world->second));
    return xseg_pool_pause(world->pool, XSEG_KEEP_HOST, NULL);
}

static void undo_pause(struct world *world)
{
    assert_ok(xseg_pool_resume(world->pool));
}

static const struct call calls[] = {
    {"commit", call_commit, NULL, true},
    {"decommit", call_decommit, NULL, true},
    {"hold", call_hold, NULL, true},
    {"let_go", call_let_go, NULL, true},
    {"share_onto", call_share_onto, NULL, true},
    {"share_from", call_share_from, undo_share_from, true},
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

/* --- What each call may return. --- */

static bool is_call(const struct world *world, xseg_status (*make)(struct world *world))
{
    return world->call->make == make;
}

/* Of pages that no call works on. */
static unsigned allowed_at_rest(const struct world *world, enum class class)
{
    const bool is_mapped = class == MAPPED;

    if (class == POOL_PAUSED)
        return is_call(world, call_hold) || is_call(world, call_info) || is_call(world, call_trim)
                   ? OK
               : is_call(world, call_let_go) ? (world->state->is_held ? OK : ARGUMENT)
               : is_call(world, call_unpin)  ? ARGUMENT | PAUSED
               : is_call(world, call_export) || is_call(world, call_pin) ? PAUSED | NOT_ALLOCATED
               : is_call(world, call_pause)                              ? ARGUMENT | PAUSED
               : is_call(world, call_unregister)                         ? OK
                                                                         : PAUSED;
    if (class == RELEASED)
        return world->call->of_range                                     ? ARGUMENT
               : is_call(world, call_trim) || is_call(world, call_pause) ? OK
                                                                         : NOT_ALLOCATED;
    if (is_call(world, call_commit) || is_call(world, call_share_onto))
        return class == UNMAPPED || (class == PENDING && is_call(world, call_commit)) ? OK
                                                                                      : ARGUMENT;
    if (is_call(world, call_decommit) || is_call(world, call_share_from))
        return is_mapped ? OK : ARGUMENT;
    if (is_call(world, call_let_go))
        return world->state->is_held ? OK : ARGUMENT;
    if (is_call(world, call_release))
        return BUSY;
    if (is_call(world, call_pin) || is_call(world, call_export))
        return is_mapped ? OK : NOT_ALLOCATED;
    if (is_call(world, call_unpin))
        return ARGUMENT;
    if (is_call(world, call_pause))
        return class == PENDING ? OK | BUSY : OK;
    if (is_call(world, call_dmabuf) || is_call(world, call_dmabuf_pin) ||
        is_call(world, call_register) || is_call(world, call_register_pin))
        return class == UNMAPPED ? NOT_ALLOCATED : OK;
    return OK;
}

/* Of pages that another call works on. */
static unsigned allowed_meanwhile(const struct world *world, enum class class)
{
    const unsigned paused = class == POOL_MOVING ? PAUSED : 0;

    if (is_call(world, call_hold) || is_call(world, call_trim))
        return OK | BUSY;
    if (is_call(world, call_info))
        return OK;
    if (is_call(world, call_let_go))
        return (world->state->is_held ? OK : ARGUMENT) | BUSY;
    if (is_call(world, call_pin) || is_call(world, call_export))
        return BUSY | paused | (class == POOL_MOVING ? NOT_ALLOCATED : 0);
    if (is_call(world, call_unpin))
        return ARGUMENT | BUSY | paused;
    /* Callbacks may ask for a descriptor of the memory that they hear of; a pin has to hold. */
    if (is_call(world, call_dmabuf) || is_call(world, call_dmabuf_pin) ||
        is_call(world, call_register) || is_call(world, call_register_pin))
        return OK | NOT_ALLOCATED | BUSY | paused;
    if (is_call(world, call_unregister))
        return BUSY;
    return BUSY | paused;
}

static unsigned allowed(const struct world *world, enum class class)
{
    /* These name no granules; the memory of a range that is being released is not theirs. */
    if ((is_call(world, call_prepare) || is_call(world, call_quota)) && class != RELEASED)
        return OK | NO_MEMORY | (world->state->act == act_release ? BUSY | ARGUMENT : 0) |
               (class == POOL_MOVING || class == POOL_PAUSED ? PAUSED | BUSY : 0);
    switch (class) {
    case UNMAPPED:
    case MAPPED:
    case PENDING:
    case POOL_PAUSED:
    case RELEASED:
        return allowed_at_rest(world, class);
    case ALIASED:
        return allowed_at_rest(world, MAPPED) | BUSY;
    default:
        return allowed_meanwhile(world, class);
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

static void fill(const struct world *world)
{
    for (unsigned i = 0; i < COUNT; i++)
        world->base[(world->first + i) * PAGE] = (unsigned char)(i + 7);
}

static void nothing(struct world *world)
{
    (void)world;
}

static void mapped(struct world *world)
{
    commit(world->range, world->first, COUNT, world->stream);
    fill(world);
}

static void held(struct world *world)
{
    assert_ok(call_hold(world));
    world->holds = 1;
}

static void pending(struct world *world)
{
    mapped(world);
    env_launch_at(world->stream, world->address, world->bytes);
    decommit(world->range, world->first, COUNT, world->stream);
}

/* Held memory of a graph, which has been launched on the second stream. */
static void mapped_and_held(struct world *world)
{
    mapped(world);
    held(world);
    env_launch_at(world->second, world->address, world->bytes);
}

static void pending_and_held(struct world *world)
{
    mapped_and_held(world);
    decommit(world->range, world->first, COUNT, world->stream);
}

static void aliased(struct world *world)
{
    assert_ok(xseg_range_alias(world->range, offset_of(world), COUNT * PAGE, world->range,
                               SOURCE * PAGE));
}

static void registered_at(struct world *world, const void *address, size_t bytes)
{
    world->registrar = (struct xseg_registrar){.struct_size = sizeof(struct xseg_registrar)};
    world->registrar.context = world;
    world->registrar.enter = on_enter;
    world->registrar.leave = on_leave;
    world->has_registration = true;
    assert_ok(
        xseg_register(world->allocator, address, bytes, &world->registrar, &world->registration));
}

static void registered(struct world *world)
{
    registered_at(world, world->base, GRANULES * PAGE);
}

static void mapped_and_registered(struct world *world)
{
    mapped(world);
    registered(world);
}

/* All of the pool moves, so what is granted meanwhile is seen by its callbacks. */
static void paused(struct world *world)
{
    mapped(world);
    assert_ok(call_pause(world));
}

/* A callback that has nothing to do with the granules. */
static xseg_status act_elsewhere(struct world *world)
{
    return xseg_range_commit(world->apart, 0, PAGE, NULL);
}

static xseg_status act_commit(struct world *world)
{
    return call_commit(world);
}

/* Also of granules that have no page yet, which observers hear of. */
static xseg_status act_commit_beside(struct world *world)
{
    return xseg_range_commit(world->range, offset_of(world), 2 * COUNT * PAGE, world->stream);
}

static xseg_status act_commit_many(struct world *world)
{
    return xseg_range_commit(world->range, offset_of(world), MANY * PAGE, world->stream);
}

static xseg_status act_decommit(struct world *world)
{
    return call_decommit(world);
}

static xseg_status act_trim(struct world *world)
{
    assert_ok(xseg_sim_finish(world->stream));
    return call_trim(world);
}

static xseg_status act_share(struct world *world)
{
    return xseg_range_alias(world->range, TARGET * PAGE, COUNT * PAGE, world->range, SOURCE * PAGE);
}

static xseg_status act_pause(struct world *world)
{
    return call_pause(world);
}

static xseg_status act_resume(struct world *world)
{
    return xseg_pool_resume(world->pool);
}

static void paused_and_registered(struct world *world)
{
    mapped_and_registered(world);
    assert_ok(call_pause(world));
}

static xseg_status act_release(struct world *world)
{
    decommit(world->range, SOURCE, COUNT, NULL);
    world->is_armed = true;
    return xseg_range_release(world->range);
}

/* Pages of the granules are taken for another range; the commit waits for their stream. */
static xseg_status act_steal(struct world *world)
{
    return xseg_range_commit(world->other, TARGET * PAGE, (SHORT_PAGES - 2 * COUNT) * PAGE, NULL);
}

/* A block that is cached, and is registered or not. */
static void cached(struct world *world)
{
    world->block = env_alloc_in(world->allocator, world->pool, 4 * MIB, NULL);
    world->address = world->block;
    world->bytes = 4 * MIB;
}

static void cached_and_registered(struct world *world)
{
    cached(world);
    registered_at(world, world->block, 4 * MIB);
}

static xseg_status act_free(struct world *world)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;

    env_free(world->allocator, world->block);
    world->block = NULL;
    where.pool = world->pool;
    return xseg_trim(world->allocator, &where, NULL, NULL);
}

static xseg_status act_alloc(struct world *world)
{
    return env_try_alloc_in(world->allocator, world->pool, 4 * MIB, &world->block);
}

/* Memory is registered that comes later. */
static void registered_beyond(struct world *world)
{
    world->beside = env_alloc_in(world->allocator, world->pool, BLOCK_PAGE, NULL);
    registered_at(world, world->beside, 2 * BLOCK_PAGE);
}

static xseg_status act_alloc_beyond(struct world *world)
{
    return env_try_alloc_in(world->allocator, world->pool, BLOCK_PAGE, &world->block);
}

static const struct state states[] = {
    {"unmapped", UNMAPPED, UNMAPPED, false, false, CAME, nothing, act_elsewhere, OK, false, 0,
     false},
    {"mapped", MAPPED, MAPPED, false, false, CAME, mapped, act_elsewhere, OK, true, 0, false},
    {"pending", PENDING, PENDING, false, false, CAME, pending, act_elsewhere, OK, true, 0, false},
    {"held_unmapped", UNMAPPED, UNMAPPED, true, false, CAME, held, act_elsewhere, OK, false, 0,
     false},
    {"held_mapped", MAPPED, MAPPED, true, false, CAME, mapped_and_held, act_elsewhere, OK, true, 0,
     false},
    {"held_pending", PENDING, PENDING, true, false, CAME, pending_and_held, act_elsewhere, OK, true,
     0, false},
    {"aliased", MAPPED, MAPPED, false, false, CAME, aliased, act_elsewhere, OK, false, 0, false},
    {"commit_short", CLAIMED, UNMAPPED, false, false, SHORT_OF_MEMORY, nothing, act_commit_many,
     NO_MEMORY, false, 0, true},
    {"commit_short_held", CLAIMED, UNMAPPED, true, false, SHORT_OF_MEMORY, held, act_commit_many,
     NO_MEMORY, false, 0, true},
    {"retake_short", CLAIMED, PENDING, false, false, SHORT_OF_MEMORY, pending, act_commit_many,
     NO_MEMORY, false, 0, true},
    {"retake_short_held", CLAIMED, PENDING, true, false, SHORT_OF_MEMORY, pending_and_held,
     act_commit_many, NO_MEMORY, true, 0, true},
    {"retake_notified", CLAIMED, MAPPED, false, false, CAME, pending, act_commit_beside, OK, true,
     0, false},
    {"retake_notified_held", CLAIMED, MAPPED, true, false, CAME, pending_and_held,
     act_commit_beside, OK, true, 0, false},
    {"commit_notified", MAPPING, MAPPED, false, false, CAME, nothing, act_commit, OK, false, 0,
     false},
    {"commit_notified_held", MAPPING, MAPPED, true, false, CAME, held, act_commit, OK, false, 0,
     false},
    {"commit_entering", MAPPING, MAPPED, false, false, ENTER, registered, act_commit, OK, false, 0,
     false},
    {"alias_notified", MAPPING, MAPPED, false, false, CAME, nothing, act_share, OK, false, 0,
     false},
    {"alias_notified_held", MAPPING, MAPPED, true, false, CAME, held, act_share, OK, false, 0,
     false},
    {"alias_entering", MAPPING, MAPPED, false, false, ENTER, registered, act_share, OK, false, 0,
     false},
    {"alias_source", ALIASED, MAPPED, false, false, CAME, nothing, act_share, OK, false, SOURCE + 1,
     false},
    {"decommit_notified", UNMAPPING, UNMAPPED, false, false, LEAVING, mapped, act_decommit, OK,
     false, 0, false},
    {"decommit_leaving", UNMAPPING, UNMAPPED, false, false, LEAVE, mapped_and_registered,
     act_decommit, OK, false, 0, false},
    {"trim_notified", UNMAPPING, UNMAPPED, false, false, LEAVING, pending, act_trim, OK, false, 0,
     false},
    {"steal_notified", UNMAPPING, UNMAPPED, false, false, LEAVING, pending, act_steal, OK, false, 0,
     true},
    {"release_notified", UNMAPPING, RELEASED, false, false, LEAVING, pending, act_release, OK,
     false, 0, false},
    {"pause_notified", POOL_MOVING, POOL_PAUSED, false, false, LEAVING, mapped, act_pause, OK, true,
     0, false},
    {"pause_leaving", POOL_MOVING, POOL_PAUSED, false, false, LEAVE, mapped_and_registered,
     act_pause, OK, true, 0, false},
    {"resume_notified", POOL_MOVING, MAPPED, false, false, CAME, paused, act_resume, OK, true, 0,
     false},
    {"resume_entering", POOL_MOVING, MAPPED, false, false, ENTER, paused_and_registered, act_resume,
     OK, true, 0, false},
    {"block_trim_notified", UNMAPPING, UNMAPPED, false, true, LEAVING, cached, act_free, OK, false,
     0, false},
    {"block_trim_leaving", UNMAPPING, UNMAPPED, false, true, LEAVE, cached_and_registered, act_free,
     OK, false, 0, false},
    {"block_growth_notified", MAPPING, MAPPED, false, true, CAME, nothing, act_alloc, OK, false, 0,
     false},
    {"block_growth_entering", MAPPING, MAPPED, false, true, ENTER, registered_beyond,
     act_alloc_beyond, OK, false, 0, false},
};

/* --- A case. --- */

static void open_world(struct world *world)
{
    struct xseg_sim_settings settings = {
        sizeof(settings), .memory_bytes = (world->state->is_short ? SHORT_PAGES : GRANULES) * PAGE,
        .real_bytes = true};
    struct xseg_pool_options pool = {sizeof(pool)};
    struct xseg_range_options options = {sizeof(options)};
    struct xseg_observer observer = {sizeof(observer)};

    world->allocator = env_open_with_clock(&settings, "expandable_segments:True");
    pool.exportable = pool.rdma = true;
    assert_ok(xseg_pool_create(world->allocator, 0, &pool, &world->pool));
    options.pool = world->pool;
    assert_ok(xseg_range_reserve(world->allocator, 0, GRANULES * PAGE, &options, &world->range));
    assert_ok(xseg_range_reserve(world->allocator, 0, GRANULES * PAGE, &options, &world->other));
    assert_ok(xseg_range_reserve(world->allocator, 0, PAGE, NULL, &world->apart));
    world->base = info(world->range).base;
    world->first = world->state->first == 0 ? TARGET : world->state->first - 1;
    world->address = world->base + world->first * PAGE;
    world->bytes = COUNT * PAGE;
    world->stream = env_stream();
    world->second = env_stream();
    commit(world->range, SOURCE, COUNT, NULL);
    commit(world->other, 0, COUNT, NULL);
    world->fd = -1;
    observer.context = world;
    observer.on_map = on_came;
    observer.on_unmap = on_leaving;
    observer.on_low_memory = on_short;
    assert_ok(xseg_observer_add(world->allocator, &observer, &world->observer));
}

/* Whether the granules have memory after the other call and this one: `after`, unless this one has changed that. */
static enum class state_after(const struct world *world) {
    if (world->status == XSEG_OK &&
        (is_call(world, call_commit) || is_call(world, call_share_onto))) return MAPPED;
    if (world->status == XSEG_OK && is_call(world, call_decommit)) return PENDING;
    return world->state->after == POOL_PAUSED ? MAPPED : world->state->after; /* resumed by now */
}

static void check_contents(const struct world *world)
{
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(world->base[(world->first + i) * PAGE], i + 7);
}

/* The granules are what the other call promised, and can be used. */
static void check_granules(struct world *world)
{
    const bool is_kept =
        world->state->keeps || (is_call(world, call_hold) && world->status == XSEG_OK &&
                                world->was_during && world->state->now == UNMAPPING);

    /* What has left is looked for; the simulator ends the process if work uses it. */
    commit(world->range, GRANULES - 1, 1, NULL);
    decommit(world->range, GRANULES - 1, 1, NULL);
    if (state_after(world) != MAPPED)
        commit(world->range, world->first, COUNT, world->stream);
    if (is_kept && !(is_call(world, call_decommit) && world->status == XSEG_OK))
        check_contents(world);
    env_stream_wait(world->stream, world->second);
    decommit(world->range, world->first, COUNT, world->stream);
}

static void close_world(struct world *world)
{
    if (world->has_registration)
        assert_ok(xseg_unregister(world->allocator, world->registration));
    assert_int_equal(world->runs.count, 0);
    if (world->block != NULL)
        env_free(world->allocator, world->block);
    if (world->beside != NULL)
        env_free(world->allocator, world->beside);
    while (world->holds-- != 0)
        assert_ok(call_let_go(world));
    if (world->state->act == act_share && world->state->first != 0)
        decommit(world->range, TARGET, COUNT, NULL);
    if (world->state->act == act_commit_beside)
        decommit(world->range, BESIDE, COUNT, world->stream);
    if (world->state->act == act_elsewhere)
        decommit(world->apart, 0, 1, NULL);
    if (world->first != SOURCE && world->state->act != act_release)
        decommit(world->range, SOURCE, COUNT, NULL);
    decommit(world->other, 0, COUNT, NULL);
    assert_ok(xseg_observer_remove(world->allocator, world->observer));
    xseg_sim_finish_all();
    if (world->range != NULL)
        release(world->range);
    release(world->other);
    release(world->apart);
    assert_ok(xseg_pool_release(world->pool));
    env_stream_destroy(world->stream, world->second);
    env_close(world->allocator);
}

struct page_case {
    const struct state *state;
    const struct call *call;
    bool by_thread;
};

static void run_case(const void *argument)
{
    const struct page_case *one = argument;
    static struct world world;

    world = (struct world){.state = one->state, .call = one->call, .by_thread = one->by_thread};
    open_world(&world);
    world.state->prepare(&world);
    world.is_armed = world.state->act != act_release;
    child_case_begin();
    world.acted = world.state->act(&world);
    if (world.by_thread && world.was_triggered)
        assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(world.was_triggered);

    const unsigned may = allowed(&world, world.was_during ? world.state->now : world.state->after);
    if ((set_of(world.status) & may) == 0)
        fail_msg("%s %s: %s: %s", world.call->name, world.was_during ? "meanwhile" : "afterwards",
                 xseg_status_name(world.status), world.text);
    /* What was granted in time may be in the way of the other call. */
    if (set_of(world.acted) != (unsigned)world.state->expected)
        assert_true(world.state->now >= UNMAPPING && world.status == XSEG_OK && world.was_during);
    if (world.status == XSEG_OK)
        world.holds +=
            (unsigned)is_call(&world, call_hold) - (unsigned)is_call(&world, call_let_go);
    if (world.status == XSEG_OK && world.call->undo != NULL)
        world.call->undo(&world);
    if (world.state->act == act_pause && world.acted == XSEG_OK)
        assert_ok(xseg_pool_resume(world.pool));
    if (world.state->act == act_steal && world.acted == XSEG_OK)
        decommit(world.other, TARGET, SHORT_PAGES - 2 * COUNT, NULL);
    if (world.state->act == act_release && world.acted == XSEG_OK)
        world.range = NULL;
    if (!world.state->is_block && world.range != NULL)
        check_granules(&world);
    close_world(&world);
}

/* Whether a case says something. */
static bool is_apt(const struct state *state, const struct call *call)
{
    const bool has_registration = state->on == ENTER || state->on == LEAVE;

    if (state->is_block && call->of_range)
        return false;
    if (call->make == call_unregister)
        return has_registration && !state->is_block;
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

            if (!is_apt(&states[i], call))
                continue;
            page[count] = (struct page_case){&states[i], call, j % 2 == 1};
            (void)snprintf(name[count], sizeof(name[count]), "%s/%s/%s", states[i].name, call->name,
                           j % 2 == 1 ? "thread" : "callback");
            cases[count] = (struct child_case){name[count], run_case, &page[count]};
            count++;
        }
    return child_case_main(argc, argv, cases, count);
}
