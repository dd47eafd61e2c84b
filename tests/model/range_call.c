/* SPDX-License-Identifier: MIT */
#include "tests/model/range_call.h"

#include "tests/support/exported_handles.h"

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

/* --- Allowed results. --- */

/* The error of a call if a granule has neither of two uses; 0: no error. */
static unsigned reject(unsigned range, unsigned first, unsigned count, enum xseg_elastic_use use,
                       enum xseg_elastic_use alternative_use)
{
    for (unsigned at = first; at < first + count; at++)
        if (use_of(range, at) != use && use_of(range, at) != alternative_use)
            return use_of(range, at) == XSEG_ELASTIC_CLAIMED ? BUSY : ARGUMENT;
    return 0;
}

static unsigned count_uses(unsigned range, unsigned first, unsigned count,
                           enum xseg_elastic_use use)
{
    unsigned matches = 0;

    for (unsigned at = first; at < first + count; at++)
        matches += use_of(range, at) == use;
    return matches;
}

static bool is_retained_somewhere(unsigned range)
{
    const struct xseg_extent *extent = state_of(range)->extent;
    bool is_retained = extent->registered != 0 || xseg_segment_has_retained(&extent->segment);

    for (unsigned at = 0; at < GRANULES; at++)
        is_retained = is_retained || state_of(range)->elastic.holds[at] != 0;
    return is_retained;
}

static bool is_pinned(unsigned range, unsigned at)
{
    const struct xseg_segment *segment = &state_of(range)->extent->segment;
    const uint32_t *pins = segment->retain_counts[XSEG_RETAIN_PIN].count;

    return pins != NULL && pins[at] != 0;
}

/* Whether a granule that is pending unmap has an aliased page. */
static bool has_pending_alias(const struct call *call)
{
    bool has = false;

    for (unsigned at = call->first; at < call->first + call->count; at++)
        has = has || (use_of(call->range, at) == XSEG_ELASTIC_UNMAPPING &&
                      xseg_alias_exists(&state_of(call->range)->extent->segment, at));
    return has;
}

/* The allowed results of a call that names one granule by its address; allows_pending: the call accepts a granule that is
 * pending unmap. */
static unsigned allow_address(const struct call *call, bool allows_pending)
{
    switch (use_of(call->range, call->first)) {
    case XSEG_ELASTIC_ALLOCATED:
        return OK;
    case XSEG_ELASTIC_UNMAPPING:
        return allows_pending ? OK : NOT_ALLOCATED;
    case XSEG_ELASTIC_CLAIMED:
        return BUSY;
    default:
        return NOT_ALLOCATED;
    }
}

static unsigned allow_release(const struct call *call)
{
    const unsigned range = call->range;

    if (count_uses(range, 0, GRANULES, XSEG_ELASTIC_ALLOCATED) != 0 ||
        count_uses(range, 0, GRANULES, XSEG_ELASTIC_CLAIMED) != 0 || is_retained_somewhere(range))
        return BUSY;
    return OK;
}

static unsigned allow_pool(const struct call *call)
{
    const enum xseg_pool_state state = env.pool[pool_of(call->range)]->state;
    unsigned claimed = 0;

    for (unsigned range = 0; range < RANGES; range++)
        if (pool_of(range) == pool_of(call->range) && !env.is_released[range])
            claimed += count_uses(range, 0, GRANULES, XSEG_ELASTIC_CLAIMED);
    if (call->operation == RESUME)
        return state == XSEG_POOL_RUNNING      ? ARGUMENT
               : state == XSEG_POOL_TRANSITION ? PAUSED
                                               : OK | OUT_OF_MEMORY;
    if (state != XSEG_POOL_RUNNING)
        return PAUSED;
    return claimed != 0 ? BUSY : OK | BUSY;
}

static bool is_running(unsigned range)
{
    return env.pool[pool_of(range)]->state == XSEG_POOL_RUNNING;
}

static unsigned allow_in_range(const struct call *call)
{
    const unsigned range = call->range, first = call->first, count = call->count;
    unsigned error = 0;

    if (env.is_released[range] || (call->operation == ALIAS && env.is_released[call->from]))
        return ARGUMENT;
    switch (call->operation) {
    case HOLD:
        return count_uses(range, first, count, XSEG_ELASTIC_CLAIMED) != 0 ? BUSY : OK;
    case UNHOLD:
        if (count_uses(range, first, count, XSEG_ELASTIC_CLAIMED) != 0)
            return BUSY;
        for (unsigned at = first; at < first + count; at++)
            if (state_of(range)->elastic.holds[at] == 0)
                return ARGUMENT;
        return OK;
    case PREPARE:
        return OK | OUT_OF_MEMORY;
    case QUOTA:
        return OK | OUT_OF_MEMORY;
    default:
        break;
    }
    if (!is_running(range) || (call->operation == ALIAS && !is_running(call->from)))
        return PAUSED;
    if (call->operation == RELEASE)
        return allow_release(call);
    if (call->operation == DECOMMIT) {
        error = reject(range, first, count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED);
        return error != 0 ? error : OK;
    }
    if (call->operation == COMMIT) {
        error = reject(range, first, count, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_UNMAPPING);
        return error != 0 ? error : (OK | OUT_OF_MEMORY | (has_pending_alias(call) ? BUSY : 0u));
    }
    if (pool_of(range) != pool_of(call->from))
        return ARGUMENT;
    error = reject(call->from, call->at, count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED);
    if (error == 0)
        error = reject(range, first, count, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_EMPTY);
    return error != 0 ? error : OK;
}

static unsigned allow(const struct call *call)
{
    const bool is_released = env.is_released[call->range];
    const struct registration *registration = &env.registration[call->slot % REGISTRATIONS];

    switch (call->operation) {
    case PIN:
    case EXPORT:
        if (is_released)
            return NOT_ALLOCATED;
        return is_running(call->range) ? allow_address(call, false) : ANY & ~OK;
    case DMABUF:
        if (is_released)
            return NOT_ALLOCATED;
        return is_running(call->range) ? allow_address(call, true) : ANY & ~OK;
    case UNPIN:
        return !is_released && is_pinned(call->range, call->first) ? OK : ARGUMENT | NOT_ALLOCATED;
    case REGISTER:
        if (is_released)
            return NOT_ALLOCATED;
        if (!is_running(call->range))
            return ANY & ~OK;
        if (count_uses(call->range, call->first, call->count, XSEG_ELASTIC_CLAIMED) != 0)
            return BUSY;
        return count_uses(call->range, call->first, call->count, XSEG_ELASTIC_EMPTY) == call->count
                   ? NOT_ALLOCATED
                   : OK;
    case UNREGISTER:
        return registration->runs_callback ? BUSY : OK;
    case PAUSE:
    case RESUME:
        return allow_pool(call);
    case ALLOC:
        return OK | OUT_OF_MEMORY;
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

/* Let a stream wait for all others, so that their work on the granules precedes the work that the call orders. */
static void wait_for_all_streams(const struct call *call)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (i != call->stream)
            env_stream_wait(env.stream[call->stream], env.stream[i]);
}

void call_prepare(const struct call *call)
{
    if (call->operation == DECOMMIT || call->operation == UNHOLD)
        wait_for_all_streams(call);
    if (call->operation == PAUSE || call->operation == FINISH)
        xseg_sim_finish_all();
}

static xseg_status make_register(struct call *call)
{
    struct registration *registration = &env.registration[call->slot];
    struct xseg_registrar registrar = env.registrar;

    registrar.context = registration;
    registrar.pin = registration->pin;
    return xseg_register(env.allocator, address_of(call->range, call->first), call->count * PAGE,
                         &registrar, &call->id);
}

xseg_status call_make(struct call *call)
{
    struct xseg_range *range = env.range[call->range];
    const uint64_t offset = call->first * PAGE, bytes = call->count * PAGE;
    void *address = address_of(call->range, call->first);
    struct exported_handles exported;
    xseg_status status;
    uint64_t offset_in_fd = 0;

    switch (call->operation) {
    case COMMIT:
        return xseg_range_commit(range, offset, bytes, env.stream[call->stream]);
    case DECOMMIT:
        return xseg_range_decommit(range, offset, bytes, env.stream[call->stream]);
    case HOLD:
        return xseg_range_hold(range, offset, bytes);
    case UNHOLD:
        return xseg_range_unhold(range, offset, bytes, env.stream[call->stream]);
    case ALIAS:
        return xseg_range_alias(range, offset, bytes, env.range[call->from], call->at * PAGE);
    case PIN:
        return xseg_pin(env.allocator, address, PAGE);
    case UNPIN:
        return xseg_unpin(env.allocator, address, PAGE);
    case DMABUF:
        return xseg_dmabuf_open(env.allocator, address, PAGE, XSEG_DMABUF_PIN, &call->descriptor,
                                &offset_in_fd);
    case DMABUF_CLOSE:
        return xseg_dmabuf_close(env.allocator, call->descriptor);
    case EXPORT:
        status = export_handles(env.allocator, address, XSEG_HANDLE_FD, &exported);
        export_handles_close(&exported);
        return status;
    case EXPORT_CLOSE:
        return xseg_export_close(env.allocator, address);
    case REGISTER:
        return make_register(call);
    case UNREGISTER:
        return xseg_unregister(env.allocator, call->id);
    case PAUSE:
        return xseg_pool_pause(env.pool[pool_of(call->range)], XSEG_KEEP_HOST, NULL);
    case RESUME:
        return xseg_pool_resume(env.pool[pool_of(call->range)]);
    case RELEASE:
        return xseg_range_release(range);
    case ALLOC:
        return xseg_alloc(env.allocator, 0, call->bytes, env.stream[call->stream], &call->block);
    case FREE:
        return xseg_free(env.allocator, call->block);
    case TRIM:
        return xseg_trim(env.allocator, NULL, NULL, NULL);
    case PREPARE:
        return xseg_range_prepare(range, call->bytes);
    case QUOTA:
        return xseg_range_set_quota(range, call->bytes);
    default:
        return XSEG_OK;
    }
}

void call_reserve_slot(struct call *call)
{
    unsigned *exported = &env.exports[index_of(call->range, call->first)];

    switch (call->operation) {
    case DMABUF:
        env.descriptor_index[call->slot] = index_of(call->range, call->first);
        env.descriptor[call->slot] = RESERVED_DESCRIPTOR;
        break;
    case DMABUF_CLOSE:
        call->descriptor = env.descriptor[call->slot];
        env.descriptor[call->slot] = RESERVED_DESCRIPTOR;
        break;
    case REGISTER:
        /* Callbacks of the registration may run before xseg_register() returns. */
        env.registration[call->slot] = (struct registration){
            RESERVED_ID, call->range, call->first, call->count, call->bytes != 0, false, {false}};
        break;
    case UNREGISTER:
        call->id = env.registration[call->slot].id;
        env.registration[call->slot].id = RESERVED_ID;
        break;
    case ALLOC:
    case FREE:
        call->block = env.block[call->slot];
        env.is_reserved[call->slot] = true;
        break;
    case EXPORT:
    case EXPORT_CLOSE:
        *exported = call->operation == EXPORT ? call->count : 0;
        break;
    default:
        break;
    }
}

/* Fill or empty the slot of a call that has returned. */
static void update_slot(const struct call *call, bool is_done)
{
    unsigned *exported = &env.exports[index_of(call->range, call->first)];

    switch (call->operation) {
    case DMABUF:
    case DMABUF_CLOSE:
        env.descriptor[call->slot] = is_done == (call->operation == DMABUF) ? call->descriptor : -1;
        env.retains[env.descriptor_index[call->slot]] += !is_done                    ? 0
                                                         : call->operation == DMABUF ? 1
                                                                                     : -1;
        break;
    case REGISTER:
    case UNREGISTER:
        env.registration[call->slot].id = is_done == (call->operation == REGISTER) ? call->id : 0;
        break;
    case ALLOC:
    case FREE:
        env.block[call->slot] = is_done == (call->operation == ALLOC) ? call->block : NULL;
        env.is_reserved[call->slot] = false;
        break;
    case EXPORT:
    case EXPORT_CLOSE:
        *exported = is_done == (call->operation == EXPORT) ? call->count : 0;
        break;
    default:
        break;
    }
}

static void add_to_sums(const struct call *call)
{
    const unsigned index = index_of(call->range, call->first);

    for (unsigned i = 0; i < call->count; i++) {
        env.committed[index + i] += call->operation == COMMIT || call->operation == ALIAS;
        env.committed[index + i] -= call->operation == DECOMMIT;
        env.holds[index + i] += (call->operation == HOLD) - (call->operation == UNHOLD);
        env.retains[index + i] += (call->operation == EXPORT) - (call->operation == EXPORT_CLOSE);
    }
    env.pins[index] += (call->operation == PIN) - (call->operation == UNPIN);
    env.paused[pool_of(call->range)] += (call->operation == PAUSE) - (call->operation == RESUME);
    if (call->operation == RESUME)
        env.was_resumed[pool_of(call->range)] = true;
    if (call->operation == RELEASE) {
        env.is_released[call->range] = true;
        env.base[call->range] = UINT64_MAX;
    }
}

void call_record_result(struct call *call, unsigned allowed)
{
    char text[512] = "";

    if (call->status != XSEG_OK)
        (void)xseg_error_message(text, sizeof(text));
    if (env.had_fault)
        allowed |= FAULT;
    (void)pthread_mutex_lock(&lock);
    if (traces)
        (void)fprintf(stderr, "#   %s range %u granules %u+%u from %u at %u: %d %s\n",
                      names[call->operation], call->range, call->first, call->count, call->from,
                      call->at, call->status, text);
    REQUIRE((allowed & IS(call->status)) != 0,
            "%s of granules %u+%u of range %u returned %d, allowed are %#x: %s",
            names[call->operation], call->first, call->count, call->range, call->status, allowed,
            text);
    tally.calls[call->operation]++;
    tally.failed += call->status != XSEG_OK;
    tally.busy += call->status == XSEG_ERR_BUSY;
    update_slot(call, call->status == XSEG_OK);
    if (call->status == XSEG_OK)
        add_to_sums(call);
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

/* Draw granules, preferably with this use; in a callback often granules that the outer call has claimed. */
static void draw_granules(struct call *call, enum xseg_elastic_use use)
{
    if (env.is_nested && below(2) == 0)
        use = XSEG_ELASTIC_CLAIMED;
    for (unsigned tries = 0; tries < 16; tries++) {
        draw_run(call);
        if (!env.is_released[call->range] && use_of(call->range, call->first) == use)
            return;
    }
}

/* Draw a slot that is a candidate; returns false if none is found. */
static bool draw_slot(struct call *call, unsigned slots, bool (*is_candidate)(unsigned slot))
{
    for (unsigned tries = 0; tries < 8; tries++) {
        call->slot = (unsigned)below(slots);
        if (is_candidate(call->slot))
            return true;
    }
    return false;
}

bool call_has_block(unsigned slot)
{
    return !env.is_reserved[slot] && env.block[slot] != NULL;
}

static bool is_free_block_slot(unsigned slot)
{
    return !env.is_reserved[slot] && env.block[slot] == NULL;
}

bool call_has_descriptor(unsigned slot)
{
    return env.descriptor[slot] >= 0;
}

static bool is_free_descriptor_slot(unsigned slot)
{
    return env.descriptor[slot] == -1;
}

bool call_has_registration(unsigned slot)
{
    return env.registration[slot].id != 0 && env.registration[slot].id != RESERVED_ID;
}

/* Prefer a registration whose callback makes this call, which must be rejected. */
static bool draw_unregister(struct call *call)
{
    for (call->slot = 0; call->slot < REGISTRATIONS; call->slot++)
        if (call_has_registration(call->slot) && env.registration[call->slot].runs_callback)
            return true;
    return draw_slot(call, REGISTRATIONS, call_has_registration);
}

static bool is_free_registration_slot(unsigned slot)
{
    return env.registration[slot].id == 0;
}

/* Draw the run of committed granules that xseg_export() exports as one block; only range 2 is exportable. */
static bool draw_export(struct call *call)
{
    draw_granules(call, XSEG_ELASTIC_ALLOCATED);
    call->range = 2;
    if (env.is_released[2])
        return false;
    const enum xseg_elastic_use use = use_of(2, call->first);
    while (use == XSEG_ELASTIC_ALLOCATED && call->first > 0 && use_of(2, call->first - 1) == use)
        call->first--;
    for (call->count = 1; use == XSEG_ELASTIC_ALLOCATED && call->first + call->count < GRANULES &&
                          use_of(2, call->first + call->count) == use;)
        call->count++;
    return env.exports[index_of(2, call->first)] == 0;
}

static bool draw_export_close(struct call *call)
{
    for (call->first = 0; call->first < GRANULES; call->first++) {
        call->range = 2;
        call->count = env.exports[index_of(2, call->first)];
        if (call->count != 0)
            return true;
    }
    return false;
}

static bool draw_register(struct call *call)
{
    draw_granules(call, XSEG_ELASTIC_ALLOCATED);
    call->count = 1 + (unsigned)below(GRANULES - call->first);
    call->bytes = below(3) == 0; /* whether it pins */
    return draw_slot(call, REGISTRATIONS, is_free_registration_slot);
}

/* Draw the arguments; returns false if no call is possible.  The caller holds the device memory lock. */
static bool draw_arguments(struct call *call)
{
    switch (call->operation) {
    case COMMIT:
        draw_granules(call, below(3) == 0 ? XSEG_ELASTIC_UNMAPPING : XSEG_ELASTIC_EMPTY);
        return true;
    case DECOMMIT:
        draw_granules(call, XSEG_ELASTIC_ALLOCATED);
        return true;
    case ALIAS:
        draw_granules(call, XSEG_ELASTIC_ALLOCATED);
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
        draw_granules(call, XSEG_ELASTIC_ALLOCATED);
        for (unsigned tries = 0; call->operation == UNPIN && tries < 16; tries++)
            if (env.pins[index_of(call->range, call->first)] == 0)
                draw_run(call);
        call->count = 1;
        return true;
    case UNHOLD:
        for (unsigned tries = 0; tries < 16; tries++) {
            draw_run(call);
            if (env.holds[index_of(call->range, call->first)] != 0)
                break;
        }
        call->count = 1;
        return true;
    case DMABUF:
        draw_granules(call, XSEG_ELASTIC_ALLOCATED);
        call->count = 1;
        return draw_slot(call, DESCRIPTORS, is_free_descriptor_slot);
    case DMABUF_CLOSE:
        return draw_slot(call, DESCRIPTORS, call_has_descriptor);
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
        return draw_slot(call, BLOCKS, is_free_block_slot);
    case FREE:
        return draw_slot(call, BLOCKS, call_has_block);
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

bool call_draw(struct call *call)
{
    uint64_t sum = 0, at;

    memset(call, 0, sizeof(*call));
    for (unsigned i = 0; i < OPERATIONS; i++)
        sum += weights[i];
    for (at = below(sum); at >= weights[call->operation]; call->operation++)
        at -= weights[call->operation];
    call->stream = (unsigned)below(STREAMS);
    xseg_mutex_lock(&env.device->memory_lock);
    (void)pthread_mutex_lock(&lock);
    const bool is_drawn = draw_arguments(call);
    if (is_drawn) {
        call->allowed = allow(call);
        call_reserve_slot(call);
    }
    (void)pthread_mutex_unlock(&lock);
    xseg_mutex_unlock(&env.device->memory_lock);
    return is_drawn;
}
