/* SPDX-License-Identifier: MIT */
/*
 * Random calls about ranges from callbacks and from a second thread, and with driver calls that fail.
 *
 * model/ranges predicts each result exactly, one call at a time.  Here a step is one call; callbacks of observers and
 * registrations that run during the step make other calls, in the same thread or in a second one, and driver calls fail at
 * random.  Each call has a set of allowed results: that of the table in xseg/range.h for the states in which its granules
 * are when it begins, and the driver's error if a fault was armed.  If other calls were made during a call, each documented
 * result is allowed.
 *
 * Successful calls add up in any order: a granule is committed as often as commits and aliases of it succeeded, less the
 * decommits.  So are holds, pins, descriptors, exports and pauses.  After each step
 *   - each granule is committed, held and retained as often as the sums say, and all audits pass;
 *   - each committed granule contains what was written to it, an aliased one what was written through another mapping;
 *   - observers and each registration have been notified of exactly the granules that are mapped;
 *   - the driver's figure of memory in use is the library's.
 * In the end all memory is released.
 *
 * A failure names its seed.  Calls of a second thread that waits for the first one may be served in another order:
 *   XSEG_TEST_SEED=N XSEG_TEST_SEEDS=1 build-tests/tests/test-model-range_calls
 *   XSEG_TEST_SEEDS=500 XSEG_TEST_STEPS=300 ...; XSEG_TEST_TRACE=1 ... (each call and its result)
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/core/block/extent.h"
#include "src/core/device/allocator.h"
#include "src/core/front/device_audit.h"
#include "src/core/ranges/range.h"
#include "tests/support/cases.h"
#include "tests/support/draw.h"
#include "tests/support/exported.h"
#include "tests/support/ranges.h"
#include "vmm/alias.h"
#include "xseg/export.h"
#include "xseg/observe.h"
#include "xseg/registration.h"

#define RANGES        3u
#define GRANULES      12u
#define PLACES        (RANGES * GRANULES)
#define STREAMS       3u
#define BLOCKS        6u
#define REGISTRATIONS 3u
#define DESCRIPTORS   4u
#define POOLS         2u
#define NESTED        3u /* calls from callbacks in a step */

enum operation {
    COMMIT,
    DECOMMIT,
    HOLD,
    UNHOLD,
    ALIAS,
    PIN,
    UNPIN,
    DMABUF,
    DMABUF_CLOSE,
    EXPORT,
    EXPORT_CLOSE,
    REGISTER,
    UNREGISTER,
    PAUSE,
    RESUME,
    RELEASE,
    ALLOC,
    FREE,
    TRIM,
    PREPARE,
    QUOTA,
    FINISH,
    OPERATIONS
};

static const char *const names[OPERATIONS] = {
    "commit", "decommit", "hold",     "unhold",   "alias",      "pin",    "unpin",  "dmabuf",
    "close",  "export",   "unexport", "register", "unregister", "pause",  "resume", "release",
    "alloc",  "free",     "trim",     "prepare",  "quota",      "finish",
};

static const unsigned weights[OPERATIONS] = {
    [COMMIT] = 40,      [DECOMMIT] = 30, [HOLD] = 4,       [UNHOLD] = 6,       [ALIAS] = 16,
    [PIN] = 4,          [UNPIN] = 5,     [DMABUF] = 3,     [DMABUF_CLOSE] = 4, [EXPORT] = 3,
    [EXPORT_CLOSE] = 4, [REGISTER] = 8,  [UNREGISTER] = 5, [PAUSE] = 3,        [RESUME] = 12,
    [RELEASE] = 2,      [ALLOC] = 6,     [FREE] = 6,       [TRIM] = 3,         [PREPARE] = 3,
    [QUOTA] = 3,        [FINISH] = 8,
};

/* Statuses as a set. */
#define IS(status) (1u << -(status))
enum {
    OK = IS(XSEG_OK),
    BUSY = IS(XSEG_ERR_BUSY),
    ARGUMENT = IS(XSEG_ERR_ARGUMENT),
    NOT_LIVE = IS(XSEG_ERR_NOT_LIVE),
    PAUSED = IS(XSEG_ERR_PAUSED),
    SHORT = IS(XSEG_ERR_NO_MEMORY) | IS(XSEG_ERR_LIMIT),
    FAULT = IS(XSEG_ERR_DRIVER) | IS(XSEG_ERR_NO_MEMORY),
    ANY = OK | BUSY | ARGUMENT | NOT_LIVE | PAUSED | SHORT
};

struct call {
    enum operation what;
    unsigned range, first, count, from, at, stream, slot;
    uint64_t bytes;
    /* What the call makes or ends.  A slot is reserved when the call is drawn. */
    uint64_t id;
    void *block;
    int descriptor;
    unsigned allowed;
    xseg_status status;
    struct cases_thread thread;
    atomic_bool is_late; /* the call of a second thread waited until the first one went on */
};

/* A slot that a call is about to fill or to empty. */
#define RESERVED_ID         UINT64_MAX
#define RESERVED_DESCRIPTOR (-2)

struct registration {
    uint64_t id; /* 0: none */
    unsigned range, first, count;
    bool pin, is_inside; /* is_inside: one of its functions runs in the main thread */
    bool entered[PLACES];
};

static struct world {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    xseg_stream stream[STREAMS];
    struct xseg_pool *pool[POOLS];
    struct xseg_range *range[RANGES];
    uint64_t base[RANGES], observer;
    bool is_released[RANGES];
    /* Sums of successful calls. */
    int committed[PLACES], holds[PLACES], pins[PLACES], retains[PLACES], paused[POOLS];
    bool is_notified[PLACES]; /* observers were notified of a mapping */
    struct registration registration[REGISTRATIONS];
    int descriptor[DESCRIPTORS]; /* -1: none */
    unsigned descriptor_place[DESCRIPTORS];
    unsigned exports[PLACES]; /* granules of the export at an address; 0: none */
    void *block[BLOCKS];
    bool is_reserved[BLOCKS]; /* slots of blocks */
    uint64_t generation[PLACES], tag[PLACES], tags;
    uint64_t random, limit;
    bool has_faults;
    /* Of the step. */
    unsigned planned, calls; /* calls from callbacks that are to be made, that were made */
    bool is_nested, was_resumed[POOLS];
    atomic_bool was_armed;
    struct call nested[NESTED];
    pthread_t thread[NESTED];
    bool has_thread[NESTED];
} world;

static struct {
    uint64_t calls[OPERATIONS], nested, by_thread, late, faults, failed, busy;
} tally;

static pthread_t main_thread;
static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards the world's sums and notifications */
static bool traces;

/* Ends the program: callbacks and threads cannot use cmocka's assertions, which leave by longjmp(). */
#define PROMISE(condition, ...)                 \
    do {                                        \
        if (!(condition)) {                     \
            (void)fprintf(stderr, __VA_ARGS__); \
            (void)fputc('\n', stderr);          \
            abort();                            \
        }                                       \
    } while (0)

static uint64_t below(uint64_t bound)
{
    return draw_next(&world.random) % bound;
}

static unsigned place_of(unsigned range, unsigned at)
{
    return range * GRANULES + at;
}

static void *address_of(unsigned range, unsigned at)
{
    return (void *)(uintptr_t)(world.base[range] +
                               at * PAGE); /* NOLINT(performance-no-int-to-ptr) */
}

static unsigned pool_of(unsigned range)
{
    return range == 2 ? 1 : 0;
}

static const struct xseg_range_body *body_of(unsigned range)
{
    return world.range[range]->body;
}

static enum xseg_elastic_use use_of(unsigned range, unsigned at)
{
    return (enum xseg_elastic_use)body_of(range)->elastic.use[at];
}

/* --- Which results are allowed. --- */

/* The result of a granule that is not in one of two uses. */
static unsigned refuse(unsigned range, unsigned first, unsigned count, enum xseg_elastic_use use,
                       enum xseg_elastic_use or)
{
    for (unsigned at = first; at < first + count; at++)
        if (use_of(range, at) != use && use_of(range, at) != or)
            return use_of(range, at) == XSEG_ELASTIC_CLAIMED ? BUSY : ARGUMENT;
    return 0;
}

static unsigned count_uses(unsigned range, unsigned first, unsigned count,
                           enum xseg_elastic_use use)
{
    unsigned found = 0;

    for (unsigned at = first; at < first + count; at++)
        found += use_of(range, at) == use;
    return found;
}

static bool is_retained_somewhere(unsigned range)
{
    const struct xseg_extent *extent = body_of(range)->extent;
    bool is_retained = extent->registered != 0 || xseg_segment_holds(&extent->segment);

    for (unsigned at = 0; at < GRANULES; at++)
        is_retained = is_retained || body_of(range)->elastic.holds[at] != 0;
    return is_retained;
}

static bool is_pinned(unsigned range, unsigned at)
{
    const struct xseg_segment *segment = &body_of(range)->extent->segment;
    const uint32_t *pins = segment->retains[XSEG_RETAIN_PIN].count;

    return pins != NULL && pins[at] != 0;
}

/* Whether a granule that is pending unmap has an aliased page. */
static bool has_pending_alias(const struct call *call)
{
    bool has = false;

    for (unsigned at = call->first; at < call->first + call->count; at++)
        has = has || (use_of(call->range, at) == XSEG_ELASTIC_LEAVING &&
                      xseg_alias_is_any(&body_of(call->range)->extent->segment, at));
    return has;
}

/* Of a call that names one granule by its address. */
static unsigned allow_address(const struct call *call, bool pending)
{
    switch (use_of(call->range, call->first)) {
    case XSEG_ELASTIC_LIVE:
        return OK;
    case XSEG_ELASTIC_LEAVING:
        return pending ? OK : NOT_LIVE;
    case XSEG_ELASTIC_CLAIMED:
        return BUSY;
    default:
        return NOT_LIVE;
    }
}

static unsigned allow_release(const struct call *call)
{
    const unsigned range = call->range;

    if (count_uses(range, 0, GRANULES, XSEG_ELASTIC_LIVE) != 0 ||
        count_uses(range, 0, GRANULES, XSEG_ELASTIC_CLAIMED) != 0 || is_retained_somewhere(range))
        return BUSY;
    return OK;
}

static unsigned allow_pool(const struct call *call)
{
    const enum xseg_pool_state state = world.pool[pool_of(call->range)]->state;
    unsigned claimed = 0;

    for (unsigned range = 0; range < RANGES; range++)
        if (pool_of(range) == pool_of(call->range) && !world.is_released[range])
            claimed += count_uses(range, 0, GRANULES, XSEG_ELASTIC_CLAIMED);
    if (call->what == RESUME)
        return state == XSEG_POOL_RUNS ? ARGUMENT : state == XSEG_POOL_MOVES ? PAUSED : OK | SHORT;
    if (state != XSEG_POOL_RUNS)
        return PAUSED;
    return claimed != 0 ? BUSY : OK | BUSY;
}

static bool is_running(unsigned range)
{
    return world.pool[pool_of(range)]->state == XSEG_POOL_RUNS;
}

static unsigned allow_in_range(const struct call *call)
{
    const unsigned range = call->range, first = call->first, count = call->count;
    unsigned refused = 0;

    if (world.is_released[range] || (call->what == ALIAS && world.is_released[call->from]))
        return ARGUMENT;
    switch (call->what) {
    case HOLD:
        return count_uses(range, first, count, XSEG_ELASTIC_CLAIMED) != 0 ? BUSY : OK;
    case UNHOLD:
        if (count_uses(range, first, count, XSEG_ELASTIC_CLAIMED) != 0)
            return BUSY;
        for (unsigned at = first; at < first + count; at++)
            if (body_of(range)->elastic.holds[at] == 0)
                return ARGUMENT;
        return OK;
    case PREPARE:
        return OK | SHORT;
    case QUOTA:
        return OK | SHORT;
    default:
        break;
    }
    if (!is_running(range) || (call->what == ALIAS && !is_running(call->from)))
        return PAUSED;
    if (call->what == RELEASE)
        return allow_release(call);
    if (call->what == DECOMMIT) {
        refused = refuse(range, first, count, XSEG_ELASTIC_LIVE, XSEG_ELASTIC_LIVE);
        return refused != 0 ? refused : OK;
    }
    if (call->what == COMMIT) {
        refused = refuse(range, first, count, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_LEAVING);
        return refused != 0 ? refused : (OK | SHORT | (has_pending_alias(call) ? BUSY : 0u));
    }
    if (pool_of(range) != pool_of(call->from))
        return ARGUMENT;
    refused = refuse(call->from, call->at, count, XSEG_ELASTIC_LIVE, XSEG_ELASTIC_LIVE);
    if (refused == 0)
        refused = refuse(range, first, count, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_EMPTY);
    return refused != 0 ? refused : OK;
}

static unsigned allow(const struct call *call)
{
    const bool is_gone = world.is_released[call->range];
    const struct registration *registration = &world.registration[call->slot % REGISTRATIONS];

    switch (call->what) {
    case PIN:
    case EXPORT:
        if (is_gone)
            return NOT_LIVE;
        return is_running(call->range) ? allow_address(call, false) : ANY & ~OK;
    case DMABUF:
        if (is_gone)
            return NOT_LIVE;
        return is_running(call->range) ? allow_address(call, true) : ANY & ~OK;
    case UNPIN:
        return !is_gone && is_pinned(call->range, call->first) ? OK : ARGUMENT | NOT_LIVE;
    case REGISTER:
        if (is_gone)
            return NOT_LIVE;
        if (!is_running(call->range))
            return ANY & ~OK;
        if (count_uses(call->range, call->first, call->count, XSEG_ELASTIC_CLAIMED) != 0)
            return BUSY;
        return count_uses(call->range, call->first, call->count, XSEG_ELASTIC_EMPTY) == call->count
                   ? NOT_LIVE
                   : OK;
    case UNREGISTER:
        return registration->is_inside ? BUSY : OK;
    case PAUSE:
    case RESUME:
        return allow_pool(call);
    case ALLOC:
        return OK | SHORT;
    case DMABUF_CLOSE:
    case EXPORT_CLOSE:
    case FREE:
    case TRIM:
    case FINISH:
        return OK;
    default:
        return allow_in_range(call);
    }
}

/* --- Making a call. --- */

static bool on_enter(void *context, struct xseg_registered *run);
static void on_leave(void *context, const struct xseg_registered *run);

/* Let a stream wait for all others: what they do with the granules comes before what the call orders. */
static void order(const struct call *call)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (i != call->stream)
            scene_stream_wait(world.stream[call->stream], world.stream[i]);
}

/* What a program has to do before a call. */
static void prepare(const struct call *call)
{
    if (call->what == DECOMMIT || call->what == UNHOLD)
        order(call);
    if (call->what == PAUSE || call->what == FINISH)
        xseg_sim_finish_all();
}

static xseg_status make_register(struct call *call)
{
    struct registration *registration = &world.registration[call->slot];
    struct xseg_registrar registrar = XSEG_REGISTRAR_INIT;

    registrar.context = registration;
    registrar.enter = on_enter;
    registrar.leave = on_leave;
    registrar.pin = registration->pin;
    return xseg_register(world.allocator, address_of(call->range, call->first), call->count * PAGE,
                         &registrar, &call->id);
}

static xseg_status make(struct call *call)
{
    struct xseg_range *range = world.range[call->range];
    const uint64_t offset = call->first * PAGE, bytes = call->count * PAGE;
    void *address = address_of(call->range, call->first);
    struct exported exported;
    xseg_status status;
    uint64_t unused = 0;

    switch (call->what) {
    case COMMIT:
        return xseg_range_commit(range, offset, bytes, world.stream[call->stream]);
    case DECOMMIT:
        return xseg_range_decommit(range, offset, bytes, world.stream[call->stream]);
    case HOLD:
        return xseg_range_hold(range, offset, bytes);
    case UNHOLD:
        return xseg_range_let_go(range, offset, bytes, world.stream[call->stream]);
    case ALIAS:
        return xseg_range_share(range, offset, bytes, world.range[call->from], call->at * PAGE);
    case PIN:
        return xseg_pin(world.allocator, address, PAGE);
    case UNPIN:
        return xseg_unpin(world.allocator, address, PAGE);
    case DMABUF:
        return xseg_dmabuf(world.allocator, address, PAGE, XSEG_DMABUF_PIN, &call->descriptor,
                           &unused);
    case DMABUF_CLOSE:
        return xseg_dmabuf_close(world.allocator, call->descriptor);
    case EXPORT:
        status = exported_try(world.allocator, address, XSEG_HANDLE_FD, &exported);
        exported_drop(&exported);
        return status;
    case EXPORT_CLOSE:
        return xseg_export_close(world.allocator, address);
    case REGISTER:
        return make_register(call);
    case UNREGISTER:
        return xseg_unregister(world.allocator, call->id);
    case PAUSE:
        return xseg_pool_pause(world.pool[pool_of(call->range)], XSEG_KEEP_HOST, NULL);
    case RESUME:
        return xseg_pool_resume(world.pool[pool_of(call->range)]);
    case RELEASE:
        return xseg_range_release(range);
    case ALLOC:
        return xseg_alloc(world.allocator, 0, call->bytes, world.stream[call->stream],
                          &call->block);
    case FREE:
        return xseg_free(world.allocator, call->block);
    case TRIM:
        return xseg_trim(world.allocator, NULL, NULL, NULL);
    case PREPARE:
        return xseg_range_prepare(range, call->bytes);
    case QUOTA:
        return xseg_range_quota(range, call->bytes);
    default:
        return XSEG_OK;
    }
}

/* Reserve the slot of a call that was drawn. */
static void reserve_slot(struct call *call)
{
    unsigned *exported = &world.exports[place_of(call->range, call->first)];

    switch (call->what) {
    case DMABUF:
        world.descriptor_place[call->slot] = place_of(call->range, call->first);
        world.descriptor[call->slot] = RESERVED_DESCRIPTOR;
        break;
    case DMABUF_CLOSE:
        call->descriptor = world.descriptor[call->slot];
        world.descriptor[call->slot] = RESERVED_DESCRIPTOR;
        break;
    case REGISTER:
        /* Functions of it may run before xseg_register() returns. */
        world.registration[call->slot] = (struct registration){
            RESERVED_ID, call->range, call->first, call->count, call->bytes != 0, false, {false}};
        break;
    case UNREGISTER:
        call->id = world.registration[call->slot].id;
        world.registration[call->slot].id = RESERVED_ID;
        break;
    case ALLOC:
    case FREE:
        call->block = world.block[call->slot];
        world.is_reserved[call->slot] = true;
        break;
    case EXPORT:
    case EXPORT_CLOSE:
        *exported = call->what == EXPORT ? call->count : 0;
        break;
    default:
        break;
    }
}

/* Fill or empty the slot of a call that has returned. */
static void settle_slot(const struct call *call, bool is_done)
{
    unsigned *exported = &world.exports[place_of(call->range, call->first)];

    switch (call->what) {
    case DMABUF:
    case DMABUF_CLOSE:
        world.descriptor[call->slot] = is_done == (call->what == DMABUF) ? call->descriptor : -1;
        world.retains[world.descriptor_place[call->slot]] += !is_done               ? 0
                                                             : call->what == DMABUF ? 1
                                                                                    : -1;
        break;
    case REGISTER:
    case UNREGISTER:
        world.registration[call->slot].id = is_done == (call->what == REGISTER) ? call->id : 0;
        break;
    case ALLOC:
    case FREE:
        world.block[call->slot] = is_done == (call->what == ALLOC) ? call->block : NULL;
        world.is_reserved[call->slot] = false;
        break;
    case EXPORT:
    case EXPORT_CLOSE:
        *exported = is_done == (call->what == EXPORT) ? call->count : 0;
        break;
    default:
        break;
    }
}

/* Add a successful call to the sums. */
static void add_up(const struct call *call)
{
    const unsigned place = place_of(call->range, call->first);

    for (unsigned i = 0; i < call->count; i++) {
        world.committed[place + i] += call->what == COMMIT || call->what == ALIAS;
        world.committed[place + i] -= call->what == DECOMMIT;
        world.holds[place + i] += (call->what == HOLD) - (call->what == UNHOLD);
        world.retains[place + i] += (call->what == EXPORT) - (call->what == EXPORT_CLOSE);
    }
    world.pins[place] += (call->what == PIN) - (call->what == UNPIN);
    world.paused[pool_of(call->range)] += (call->what == PAUSE) - (call->what == RESUME);
    if (call->what == RESUME)
        world.was_resumed[pool_of(call->range)] = true;
    if (call->what == RELEASE) {
        world.is_released[call->range] = true;
        world.base[call->range] = UINT64_MAX;
    }
}

static void settle(struct call *call, unsigned allowed)
{
    char text[512] = "";

    if (call->status != XSEG_OK)
        (void)xseg_error_text(text, sizeof(text));
    if (world.was_armed)
        allowed |= FAULT;
    (void)pthread_mutex_lock(&lock);
    if (traces)
        (void)fprintf(stderr, "#   %s range %u granules %u+%u from %u at %u: %d %s\n",
                      names[call->what], call->range, call->first, call->count, call->from,
                      call->at, call->status, text);
    PROMISE((allowed & IS(call->status)) != 0,
            "%s of granules %u+%u of range %u returned %d, allowed are %#x: %s", names[call->what],
            call->first, call->count, call->range, call->status, allowed, text);
    tally.calls[call->what]++;
    tally.failed += call->status != XSEG_OK;
    tally.busy += call->status == XSEG_ERR_BUSY;
    settle_slot(call, call->status == XSEG_OK);
    if (call->status == XSEG_OK)
        add_up(call);
    (void)pthread_mutex_unlock(&lock);
}

/* --- Drawing a call. --- */

static void draw_run(struct call *call)
{
    call->range = (unsigned)below(RANGES);
    call->first = (unsigned)below(GRANULES);
    call->count = 1 + (unsigned)below(3);
    if (call->count > GRANULES - call->first)
        call->count = GRANULES - call->first;
}

/* Prefer granules of which the call can succeed; in a callback often those that the other call has claimed. */
static void draw_granules(struct call *call, enum xseg_elastic_use use)
{
    if (world.is_nested && below(2) == 0)
        use = XSEG_ELASTIC_CLAIMED;
    for (unsigned tries = 0; tries < 16; tries++) {
        draw_run(call);
        if (!world.is_released[call->range] && use_of(call->range, call->first) == use)
            return;
    }
}

/* Draw a slot of a kind; false if there seems to be none. */
static bool draw_slot(struct call *call, unsigned slots, bool (*is_meant)(unsigned slot))
{
    for (unsigned tries = 0; tries < 8; tries++) {
        call->slot = (unsigned)below(slots);
        if (is_meant(call->slot))
            return true;
    }
    return false;
}

static bool is_block(unsigned slot)
{
    return !world.is_reserved[slot] && world.block[slot] != NULL;
}

static bool is_no_block(unsigned slot)
{
    return !world.is_reserved[slot] && world.block[slot] == NULL;
}

static bool is_descriptor(unsigned slot)
{
    return world.descriptor[slot] >= 0;
}

static bool is_no_descriptor(unsigned slot)
{
    return world.descriptor[slot] == -1;
}

static bool is_registration(unsigned slot)
{
    return world.registration[slot].id != 0 && world.registration[slot].id != RESERVED_ID;
}

/* One whose functions wait for this call, if there is one. */
static bool draw_unregister(struct call *call)
{
    for (call->slot = 0; call->slot < REGISTRATIONS; call->slot++)
        if (is_registration(call->slot) && world.registration[call->slot].is_inside)
            return true;
    return draw_slot(call, REGISTRATIONS, is_registration);
}

static bool is_no_registration(unsigned slot)
{
    return world.registration[slot].id == 0;
}

/* The granules of the block that a live granule is in. */
static bool draw_export(struct call *call)
{
    draw_granules(call, XSEG_ELASTIC_LIVE);
    call->range = 2;
    if (world.is_released[2])
        return false;
    const enum xseg_elastic_use use = use_of(2, call->first);
    while (use == XSEG_ELASTIC_LIVE && call->first > 0 && use_of(2, call->first - 1) == use)
        call->first--;
    for (call->count = 1; use == XSEG_ELASTIC_LIVE && call->first + call->count < GRANULES &&
                          use_of(2, call->first + call->count) == use;)
        call->count++;
    return world.exports[place_of(2, call->first)] == 0;
}

static bool draw_export_close(struct call *call)
{
    for (call->first = 0; call->first < GRANULES; call->first++) {
        call->range = 2;
        call->count = world.exports[place_of(2, call->first)];
        if (call->count != 0)
            return true;
    }
    return false;
}

static bool draw_register(struct call *call)
{
    draw_granules(call, XSEG_ELASTIC_LIVE);
    call->count = 1 + (unsigned)below(GRANULES - call->first);
    call->bytes = below(3) == 0; /* whether it pins */
    return draw_slot(call, REGISTRATIONS, is_no_registration);
}

/* Draw the arguments; false if there is nothing to do.  The device memory lock is held. */
static bool draw_arguments(struct call *call)
{
    switch (call->what) {
    case COMMIT:
        draw_granules(call, below(3) == 0 ? XSEG_ELASTIC_LEAVING : XSEG_ELASTIC_EMPTY);
        return true;
    case DECOMMIT:
        draw_granules(call, XSEG_ELASTIC_LIVE);
        return true;
    case ALIAS:
        draw_granules(call, XSEG_ELASTIC_LIVE);
        call->from = call->range;
        call->at = call->first;
        for (unsigned tries = 0; tries < 4; tries++) {
            draw_granules(call, XSEG_ELASTIC_EMPTY);
            if (pool_of(call->range) == pool_of(call->from))
                break;
        }
        call->count = call->count < GRANULES - call->at ? call->count : GRANULES - call->at;
        return true;
    case PIN:
    case UNPIN:
        draw_granules(call, XSEG_ELASTIC_LIVE);
        for (unsigned tries = 0; call->what == UNPIN && tries < 16; tries++)
            if (world.pins[place_of(call->range, call->first)] == 0)
                draw_run(call);
        call->count = 1;
        return true;
    case UNHOLD:
        for (unsigned tries = 0; tries < 16; tries++) {
            draw_run(call);
            if (world.holds[place_of(call->range, call->first)] != 0)
                break;
        }
        call->count = 1;
        return true;
    case DMABUF:
        draw_granules(call, XSEG_ELASTIC_LIVE);
        call->count = 1;
        return draw_slot(call, DESCRIPTORS, is_no_descriptor);
    case DMABUF_CLOSE:
        return draw_slot(call, DESCRIPTORS, is_descriptor);
    case EXPORT:
        return draw_export(call);
    case EXPORT_CLOSE:
        return draw_export_close(call);
    case REGISTER:
        return draw_register(call);
    case UNREGISTER:
        return draw_unregister(call);
    case ALLOC:
        call->bytes = 1 + below(below(3) == 0 ? 12 * MIB : 2 * MIB);
        return draw_slot(call, BLOCKS, is_no_block);
    case FREE:
        return draw_slot(call, BLOCKS, is_block);
    case PREPARE:
        draw_run(call);
        call->bytes = below(3) * PAGE;
        return true;
    case QUOTA:
        draw_run(call);
        call->bytes = below(2) == 0 ? 0 : below(6) * PAGE;
        return true;
    default:
        draw_run(call);
        return true;
    }
}

/* Draw a call and its allowed results. */
static bool draw_call(struct call *call)
{
    uint64_t sum = 0, at;

    memset(call, 0, sizeof(*call));
    for (unsigned i = 0; i < OPERATIONS; i++)
        sum += weights[i];
    for (at = below(sum); at >= weights[call->what]; call->what++)
        at -= weights[call->what];
    call->stream = (unsigned)below(STREAMS);
    xseg_lock_take(&world.device->growth_lock);
    (void)pthread_mutex_lock(&lock);
    const bool is_drawn = draw_arguments(call);
    if (is_drawn) {
        call->allowed = allow(call);
        reserve_slot(call);
    }
    (void)pthread_mutex_unlock(&lock);
    xseg_lock_give(&world.device->growth_lock);
    return is_drawn;
}

/* --- Faults. --- */

static void arm(void)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap",     "cuMemSetAccess",
                                        "cuMemUnmap",  "cuMemRelease", "cuEventRecord",
                                        NULL};
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    if (!world.has_faults || below(3) != 0)
        return;
    fault.call = calls[below(COUNT_OF(calls))];
    fault.nth = 1 + below(4);
    fault.every = below(4) == 0 ? 1 : 0;
    fault.error = below(3) == 0 ? 2 : 999;
    PROMISE(xseg_sim_fault_set(0, &fault) == XSEG_OK, "no fault");
    world.was_armed = true;
}

static void disarm(void)
{
    tally.faults += xseg_sim_fault_struck(0) != 0;
    PROMISE(xseg_sim_fault_set(0, NULL) == XSEG_OK, "no fault");
}

/* --- Callbacks. --- */

static void *call_from_thread(void *context)
{
    struct call *call = context;

    atomic_store(&call->thread.number, (int)syscall(SYS_gettid));
    call->status = make(call);
    /* Of a call that waited for the main thread, the granules may be in other states. */
    settle(call, atomic_load(&call->is_late) ? ANY : call->allowed);
    atomic_store(&call->thread.has_returned, true);
    return NULL;
}

/* Make a call from a callback, in this thread or in a second one. */
static void call_from_callback(void)
{
    struct call *call = &world.nested[world.calls];
    const bool by_thread = below(3) == 0;

    if (world.is_nested || world.calls >= world.planned || below(4) == 0)
        return;
    world.is_nested = true;
    disarm();
    if (draw_call(call)) {
        prepare(call);
        tally.nested++;
        arm();
        if (by_thread) {
            tally.by_thread++;
            PROMISE(pthread_create(&world.thread[world.calls], NULL, call_from_thread, call) == 0,
                    "no thread");
            world.has_thread[world.calls] = true;
            for (unsigned i = 0; i < 1000 && !atomic_load(&call->thread.has_returned); i++)
                (void)sched_yield();
            cases_wait_for(&call->thread);
            if (!atomic_load(&call->thread.has_returned)) {
                atomic_store(&call->is_late, true);
                world.planned = 0; /* what other calls find is not known any more */
                tally.late++;
            }
        } else {
            call->status = make(call);
            settle(call, call->allowed);
        }
        world.calls++;
        disarm();
    }
    arm();
    world.is_nested = false;
}

static bool is_main(void)
{
    return pthread_equal(pthread_self(), main_thread) != 0;
}

static bool find_place(const void *base, unsigned *place)
{
    for (unsigned range = 0; range < RANGES; range++) {
        const uint64_t offset = (uintptr_t)base - world.base[range];

        if (offset < GRANULES * PAGE) {
            *place = place_of(range, (unsigned)(offset / PAGE));
            return true;
        }
    }
    return false;
}

/* Note a notification of granules, each of which changes its state. */
static void note(bool *table, const void *base, size_t bytes, bool is_mapped, const char *what)
{
    unsigned place = 0;

    (void)pthread_mutex_lock(&lock);
    if (find_place(base, &place))
        for (unsigned i = 0; i < bytes / PAGE; i++) {
            PROMISE(table[place + i] != is_mapped, "%s: granule %u of range %u is %smapped already",
                    what, (place + i) % GRANULES, (place + i) / GRANULES, is_mapped ? "" : "un");
            table[place + i] = is_mapped;
        }
    (void)pthread_mutex_unlock(&lock);
}

static void on_map(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    note(world.is_notified, mapping->base, mapping->bytes, true, "on map");
    if (is_main())
        call_from_callback();
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    if (is_main())
        call_from_callback();
    note(world.is_notified, mapping->base, mapping->bytes, false, "on unmap");
}

static bool on_short(void *context, const struct xseg_shortage *shortage)
{
    (void)context;
    (void)shortage;
    if (!is_main())
        return false;
    call_from_callback();
    return below(2) == 0;
}

static bool on_enter(void *context, struct xseg_registered *run)
{
    struct registration *registration = context;

    note(registration->entered, run->base, run->bytes, true, "enter");
    if (is_main()) {
        registration->is_inside = true;
        call_from_callback();
        registration->is_inside = false;
    }
    return true;
}

static void on_leave(void *context, const struct xseg_registered *run)
{
    struct registration *registration = context;

    if (is_main()) {
        registration->is_inside = true;
        call_from_callback();
        registration->is_inside = false;
    }
    note(registration->entered, run->base, run->bytes, false, "leave");
}

/* --- What must hold after a step. --- */

static uint64_t *word_of(unsigned place)
{
    return address_of(place / GRANULES, place % GRANULES);
}

static bool runs(unsigned place)
{
    return world.pool[pool_of(place / GRANULES)]->state == XSEG_POOL_RUNS;
}

/* Forget the contents of a granule that has other memory. */
static void notice_change(unsigned place)
{
    const struct xseg_segment *segment = &body_of(place / GRANULES)->extent->segment;
    const uint64_t generation =
        xseg_segment_generation(segment, place % GRANULES * PAGE, (place % GRANULES + 1) * PAGE);

    if (use_of(place / GRANULES, place % GRANULES) == XSEG_ELASTIC_EMPTY ||
        (generation != world.generation[place] && !world.was_resumed[pool_of(place / GRANULES)]))
        world.tag[place] = 0;
    if (runs(place))
        world.generation[place] = generation;
}

/* Check the contents of a committed granule, or write some to new memory. */
static void check_contents(unsigned place)
{
    const struct xseg_physical_page *page =
        xseg_alias_page(&body_of(place / GRANULES)->extent->segment, place % GRANULES);

    for (unsigned other = 0; page != NULL && world.tag[place] == 0 && other < PLACES; other++)
        if (!world.is_released[other / GRANULES] &&
            xseg_alias_page(&body_of(other / GRANULES)->extent->segment, other % GRANULES) == page)
            world.tag[place] = world.tag[other];
    if (world.tag[place] == 0)
        *word_of(place) = world.tag[place] = ++world.tags;
    PROMISE(*word_of(place) == world.tag[place], "granule %u of range %u has other contents",
            place % GRANULES, place / GRANULES);
}

static void check_granule(unsigned place)
{
    const unsigned range = place / GRANULES, at = place % GRANULES;
    const struct xseg_segment *segment = &body_of(range)->extent->segment;
    const enum xseg_elastic_use use = use_of(range, at);

    PROMISE(use != XSEG_ELASTIC_CLAIMED, "granule %u of range %u is claimed", at, range);
    PROMISE(world.committed[place] == (use == XSEG_ELASTIC_LIVE),
            "granule %u of range %u was committed %d times, and is in use %d", at, range,
            world.committed[place], (int)use);
    PROMISE(body_of(range)->elastic.holds[at] == (uint32_t)world.holds[place],
            "granule %u of range %u has %u holds", at, range, body_of(range)->elastic.holds[at]);
    PROMISE(use != XSEG_ELASTIC_EMPTY || (world.pins[place] == 0 && world.retains[place] == 0),
            "granule %u of range %u was unmapped, and is retained", at, range);
    const bool is_mapped = xseg_segment_is_mapped(segment, at);
    PROMISE(is_mapped == (use != XSEG_ELASTIC_EMPTY && runs(place)),
            "granule %u of range %u is in state %d", at, range, segment->state[at]);
    PROMISE(world.is_notified[place] == is_mapped, "granule %u of range %u: notified %d, mapped %d",
            at, range, world.is_notified[place], is_mapped);
    for (unsigned i = 0; i < REGISTRATIONS; i++) {
        const struct registration *registration = &world.registration[i];
        const bool is_inside = registration->id != 0 && registration->range == range &&
                               at - registration->first < registration->count;

        PROMISE(registration->id == 0 || registration->entered[place] == (is_inside && is_mapped),
                "granule %u of range %u: registration %u has entered %d, mapped %d", at, range, i,
                registration->entered[place], is_mapped);
    }
    if (use == XSEG_ELASTIC_LIVE && is_mapped)
        check_contents(place);
}

static void check(void)
{
    struct xseg_finding finding = {0};
    struct xseg_statistics stats = XSEG_STATISTICS_INIT;
    struct xseg_where where = XSEG_WHERE_ANY;

    where.device = 0;
    xseg_lock_take(&world.device->growth_lock);
    for (unsigned i = 0; i < POOLS; i++) {
        if (world.was_armed) /* a pause whose undo failed leaves the pool paused */
            world.paused[i] = world.pool[i]->state == XSEG_POOL_PAUSED;
        PROMISE(world.paused[i] == (world.pool[i]->state == XSEG_POOL_PAUSED),
                "pool %u was paused %d times, and is in state %d", i, world.paused[i],
                (int)world.pool[i]->state);
    }
    for (unsigned place = 0; place < PLACES; place++)
        if (!world.is_released[place / GRANULES])
            notice_change(place);
    for (unsigned place = 0; place < PLACES; place++)
        if (!world.is_released[place / GRANULES])
            check_granule(place);
    xseg_lock_give(&world.device->growth_lock);
    PROMISE(xseg_device_audit(world.device, &finding), "%s: %s", finding.tag, finding.text);
    PROMISE(xseg_stats(world.allocator, &where, &stats) == XSEG_OK, "no statistics");
    PROMISE(stats.physical_bytes == xseg_sim_used(0), "%llu bytes in use, %llu of the driver",
            (unsigned long long)stats.physical_bytes, (unsigned long long)xseg_sim_used(0));
}

/* --- Programs. --- */

static void reserve(unsigned range)
{
    struct xseg_range_options options = XSEG_RANGE_OPTIONS_INIT;

    options.pool = world.pool[pool_of(range)];
    PROMISE(xseg_range_reserve(world.allocator, 0, GRANULES * PAGE, &options,
                               &world.range[range]) == XSEG_OK,
            "no range");
    world.base[range] = (uintptr_t)info(world.range[range]).base;
    world.is_released[range] = false;
    for (unsigned at = 0; at < GRANULES; at++)
        world.generation[place_of(range, at)] = world.tag[place_of(range, at)] = 0;
}

/* Queue work on a committed granule. */
static void queue_work(void)
{
    const unsigned place = (unsigned)below(PLACES), stream = (unsigned)below(STREAMS);

    if (!world.is_released[place / GRANULES] && world.committed[place] == 1 && runs(place))
        scene_work_at(world.stream[stream], word_of(place), PAGE);
}

static void join_threads(void)
{
    for (unsigned i = 0; i < COUNT_OF(world.thread); i++)
        if (world.has_thread[i]) {
            PROMISE(pthread_join(world.thread[i], NULL) == 0, "no thread to join");
            world.has_thread[i] = false;
        }
}

static void take_step(void)
{
    struct call call;

    world.planned = (unsigned)below(NESTED + 1);
    world.calls = 0;
    world.was_resumed[0] = world.was_resumed[1] = false;
    world.was_armed = false;
    if (below(2) == 0)
        queue_work();
    if (!draw_call(&call))
        return;
    prepare(&call);
    arm();
    call.status = make(&call);
    join_threads();
    settle(&call, world.calls != 0 ? ANY : call.allowed);
    disarm();
    check();
    for (unsigned range = 0; range < RANGES; range++)
        if (world.is_released[range] && world.pool[pool_of(range)]->state == XSEG_POOL_RUNS)
            reserve(range);
}

static void be_quiet(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void open_world(uint64_t seed, bool has_faults)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_options options = XSEG_OPTIONS_INIT;
    struct xseg_pool_options exportable = XSEG_POOL_OPTIONS_INIT;
    struct xseg_observer observer = XSEG_OBSERVER_INIT;

    memset(&world, 0, sizeof(world));
    world.random = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    world.has_faults = has_faults;
    settings.memory_bytes = seed % 3 == 0 ? GIB : (seed % 3 == 1 ? 96 : 56) * MIB;
    settings.real_bytes = true;
    settings.one_by_one = seed % 8 == 5;
    PROMISE(xseg_sim_reset(&settings) == XSEG_OK, "no machine");
    options.driver = scene_driver();
    options.log = be_quiet;
    options.clock = scene_clock;
    PROMISE(xseg_open(seed % 2 == 0 ? "rdma:True,page_cache_mb:16" : "rdma:True", &options,
                      &world.allocator) == XSEG_OK,
            "no allocator");
    exportable.exportable = true;
    PROMISE(xseg_pool_create(world.allocator, 0, NULL, &world.pool[0]) == XSEG_OK &&
                xseg_pool_create(world.allocator, 0, &exportable, &world.pool[1]) == XSEG_OK,
            "no pools");
    world.device = xseg_allocator_open_device(world.allocator, 0);
    for (unsigned i = 1; i < STREAMS; i++)
        world.stream[i] = scene_stream();
    for (unsigned i = 0; i < DESCRIPTORS; i++)
        world.descriptor[i] = -1;
    for (unsigned range = 0; range < RANGES; range++)
        reserve(range);
    observer.came = on_map;
    observer.leaving = on_unmap;
    observer.short_of_memory = on_short;
    PROMISE(xseg_observe(world.allocator, &observer, &world.observer) == XSEG_OK, "no observer");
}

/* Make a call that has to succeed. */
static void must(enum operation what, unsigned place, unsigned count, unsigned slot)
{
    struct call call = {.what = what, .range = place / GRANULES, .first = place % GRANULES};

    call.count = count;
    call.slot = slot;
    reserve_slot(&call);
    prepare(&call);
    call.status = make(&call);
    settle(&call, OK);
}

/* End what retains memory. */
static void release_all(void)
{
    for (unsigned i = 0; i < REGISTRATIONS; i++)
        if (is_registration(i))
            must(UNREGISTER, 0, 0, i);
    for (unsigned i = 0; i < DESCRIPTORS; i++)
        if (is_descriptor(i))
            must(DMABUF_CLOSE, world.descriptor_place[i], 0, i);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (is_block(i))
            must(FREE, 0, 0, i);
    for (unsigned place = 0; place < PLACES; place++) {
        if (world.exports[place] != 0)
            must(EXPORT_CLOSE, place, world.exports[place], 0);
        while (world.pins[place] > 0)
            must(UNPIN, place, 1, 0);
        while (world.holds[place] > 0)
            must(UNHOLD, place, 1, 0);
    }
}

/* End everything, and expect that all memory is released. */
static void close_world(void)
{
    world.planned = 0;
    world.was_armed = false;
    release_all();
    for (unsigned range = 0; range < RANGES; range++)
        PROMISE(world.is_released[range] || xseg_range_quota(world.range[range], 0) == XSEG_OK,
                "quota");
    /* A pool finds memory to resume when the other one has given up its own. */
    for (unsigned turn = 0; turn < 2 * RANGES; turn++) {
        const unsigned range = turn % RANGES;

        if (world.paused[pool_of(range)] != 0 &&
            xseg_pool_resume(world.pool[pool_of(range)]) == XSEG_OK)
            world.paused[pool_of(range)] = 0;
        for (unsigned at = 0; world.paused[pool_of(range)] == 0 && at < GRANULES; at++)
            if (world.committed[place_of(range, at)] != 0)
                must(DECOMMIT, place_of(range, at), 1, 0);
        xseg_sim_finish_all();
    }
    for (unsigned range = 0; range < RANGES; range++)
        if (!world.is_released[range])
            must(RELEASE, place_of(range, 0), 0, 0);
    for (unsigned i = 0; i < POOLS; i++)
        PROMISE(xseg_pool_release(world.pool[i]) == XSEG_OK, "pool");
    PROMISE(xseg_unobserve(world.allocator, world.observer) == XSEG_OK, "observer");
    for (unsigned i = 1; i < STREAMS; i++) {
        PROMISE(xseg_stream_gone(world.allocator, 0, world.stream[i]) == XSEG_OK, "stream");
        scene_stream_destroy(world.stream[i]);
    }
    scene_close(world.allocator);
}

static char text_played[128];

/* The simulator and the audits end the process. */
static void report_abort(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, text_played, strlen(text_played));
}

static void play(uint64_t seed, bool has_faults, unsigned steps)
{
    open_world(seed, has_faults);
    for (unsigned step = 0; step < steps; step++) {
        (void)snprintf(text_played, sizeof(text_played),
                       "in step %u of XSEG_TEST_SEED=%llu XSEG_TEST_SEEDS=1\n", step,
                       (unsigned long long)seed);
        if (traces)
            (void)fprintf(stderr, "# %u\n", step);
        take_step();
    }
    close_world();
}

static unsigned long by_environment(const char *name, unsigned long usual)
{
    const char *value = getenv(name);

    return value != NULL ? strtoul(value, NULL, 10) : usual;
}

/* Seeds of the two tests differ, so that a seed names a program. */
static void play_all(uint64_t first, bool has_faults)
{
    const uint64_t begin = by_environment("XSEG_TEST_SEED", 0),
                   seeds = by_environment("XSEG_TEST_SEEDS", 20);
    const unsigned steps = (unsigned)by_environment("XSEG_TEST_STEPS", 200);

    memset(&tally, 0, sizeof(tally));
    traces = getenv("XSEG_TEST_TRACE") != NULL;
    main_thread = pthread_self();
    for (uint64_t seed = begin; seed < begin + seeds; seed++)
        if (begin == 0 || (seed >= 1000000) == has_faults)
            play(begin == 0 ? first + seed : seed, has_faults, steps);
    print_message("# %llu calls from callbacks, %llu of them in a second thread, %llu of which "
                  "waited; %llu calls "
                  "failed, %llu of all were busy; %llu faults\n",
                  (unsigned long long)tally.nested, (unsigned long long)tally.by_thread,
                  (unsigned long long)tally.late, (unsigned long long)tally.failed,
                  (unsigned long long)tally.busy, (unsigned long long)tally.faults);
    for (unsigned i = 0; i < OPERATIONS; i++)
        if (begin == 0 && seeds * steps >= 4000)
            assert_true(tally.calls[i] > seeds / 4);
    if (begin == 0 && seeds * steps >= 4000) {
        assert_true(tally.nested > 10 * seeds && tally.by_thread > 2 * seeds);
        assert_true(tally.busy > 2 * seeds && (tally.faults > 2 * seeds) == has_faults);
    }
}

static void from_callbacks_and_threads(void **state)
{
    (void)state;
    play_all(1, false);
}

static void with_driver_faults(void **state)
{
    (void)state;
    play_all(1000000, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_callbacks_and_threads),
        cmocka_unit_test(with_driver_faults),
    };

    (void)signal(SIGABRT, report_abort);
    return cmocka_run_group_tests_name("range_calls", tests, NULL, NULL);
}
