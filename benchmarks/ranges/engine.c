/* SPDX-License-Identifier: MIT */
#include "benchmarks/ranges/engine.h"

#include <stdio.h>
#include <stdlib.h>

#include "xseg/sim.h"

#define BLOCK        16u  /* tokens */
#define CHUNK        512u /* maximum tokens of prompts in a step */
#define NON_BLOCKING 1u

/* Maximum bytes of ended sequences to decommit in a step; bytes that stay free for growth when a sequence is started. */
#define PORTION   ((uint64_t)128 << 20)
#define WATERMARK ((uint64_t)128 << 20)

/* A driver function, declared with plain C types. */
int cuStreamCreate(xseg_stream *stream, unsigned flags);

void require(bool condition, const char *operation)
{
    char text[1024] = "";

    if (condition)
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "%s: %s\n", operation, text);
    exit(1);
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- Memory. --- */

/* Get the number of granules of `tokens` tokens, which are rounded up to whole blocks. */
static uint32_t granules_of(const struct engine *engine, uint32_t tokens)
{
    const uint64_t blocks = (tokens + BLOCK - 1) / BLOCK;

    return (uint32_t)((blocks * BLOCK * engine->model->token_bytes + engine->granule - 1) /
                      engine->granule);
}

/* The granules of a system prompt that contain nothing else, and the tokens that are completely in them. */
static uint32_t system_granules(const struct engine *engine, uint32_t system)
{
    return (uint32_t)(engine->model->traffic.system[system] * engine->model->token_bytes /
                      engine->granule);
}

static uint32_t system_tokens(const struct engine *engine, uint32_t system)
{
    return (uint32_t)(system_granules(engine, system) * engine->granule /
                      engine->model->token_bytes);
}

static uint64_t offset_of(const struct engine *engine, const struct slot *slot, uint32_t granule)
{
    return (uint64_t)(slot - engine->slot) * engine->slot_bytes + granule * engine->granule;
}

/* An empty decommit polls the events of earlier ones. */
static void poll_events(const struct engine *engine)
{
    require(xseg_range_decommit(engine->range, 0, 0, engine->stream) == XSEG_OK,
            "xseg_range_decommit");
}

/* Whether the GPU has `bytes` of free memory that are not promised to prompts.  Idle pages are free, pending unmaps are not. */
static bool has_memory(const struct engine *engine, uint64_t bytes)
{
    const struct gpu *gpu = engine->gpu;

    if (gpu->mode->halves)
        return (engine->needed + engine->promised) * engine->granule + bytes <=
               gpu->cache_bytes / ENGINES;
    for (unsigned i = 0; i < ENGINES; i++) {
        struct xseg_range_info info = {sizeof(info)};

        require(xseg_range_query(gpu->engine[i].range, &info) == XSEG_OK, "xseg_range_query");
        bytes += info.physical_bytes + gpu->engine[i].promised * engine->granule;
    }
    return bytes <= gpu->cache_bytes;
}

/* Set the number of granules that the tokens of a slot need. */
static void set_needed(struct engine *engine, struct slot *slot, uint32_t granules)
{
    const uint32_t before = slot->needed > slot->shared ? slot->needed - slot->shared : 0;
    const uint32_t after = granules > slot->shared ? granules - slot->shared : 0;

    engine->needed += after - (uint64_t)before;
    engine->ended += before - (uint64_t)after;
    slot->needed = granules;
    engine->counters.peak = max_u64(engine->counters.peak, engine->needed);
}

/* Commit the first granules of a slot, which its tokens need. */
static void commit_slot(struct engine *engine, struct slot *slot, uint32_t granules)
{
    const uint32_t added = granules > slot->granules ? granules - slot->granules : 0;

    if (added != 0 && !engine->gpu->mode->halves)
        require(xseg_range_commit(engine->range, offset_of(engine, slot, slot->granules),
                                  added * engine->granule, engine->stream) == XSEG_OK,
                "xseg_range_commit");
    engine->ended += added;
    slot->granules += added;
    set_needed(engine, slot, granules);
}

/* Decommit the last granules of a slot, ordered after the last queued step. */
static void decommit_last(struct engine *engine, struct slot *slot, uint32_t granules)
{
    const uint32_t remaining = slot->granules - granules;

    if (!engine->gpu->mode->halves)
        require(xseg_range_decommit(engine->range, offset_of(engine, slot, remaining),
                                    granules * engine->granule, engine->stream) == XSEG_OK,
                "xseg_range_decommit");
    engine->ended -= slot->granules - (uint64_t)max_u64(remaining, slot->shared);
    slot->granules = remaining;
    slot->shared = min_u32(slot->shared, remaining);
    slot->decommit_end_ns = engine->end_ns;
}

/* Decommit a portion of the granules of ended sequences, in the order of their ends. */
static void decommit_portion(struct engine *engine)
{
    uint32_t portion = (uint32_t)(PORTION / engine->granule);

    while (portion != 0) {
        struct slot *oldest = NULL;

        for (uint32_t i = 0; i < engine->model->slots; i++) {
            struct slot *slot = &engine->slot[i];

            if (slot->granules > slot->needed &&
                (oldest == NULL || slot->end_order < oldest->end_order))
                oldest = slot;
        }
        if (oldest == NULL)
            return;
        const uint32_t count = min_u32(portion, oldest->granules - oldest->needed);
        decommit_last(engine, oldest, count);
        portion -= count;
    }
}

/* --- End of sequences. --- */

/* Free the slot of the running sequence at an index. */
static void free_slot(struct engine *engine, uint32_t index)
{
    struct slot *slot = &engine->slot[engine->running[index]];
    const struct request *request = &engine->requests[slot->request];
    const uint32_t prompt_granules = granules_of(engine, slot->tokens + slot->prompt);

    if (slot->prompt != 0)
        engine->promised -= prompt_granules - slot->needed;
    engine->tokens -= slot->tokens;
    if (engine->gpu->mode->shares_prompts)
        engine->tokens += system_tokens(engine, request->system);
    set_needed(engine, slot, 0);
    slot->is_used = false;
    slot->end_order = ++engine->ended_count;
    for (; index + 1 < engine->running_count; index++)
        engine->running[index] = engine->running[index + 1];
    engine->running_count--;
}

/* Free the slots of the sequences whose last step has completed. */
static void end_sequences(struct engine *engine)
{
    const uint64_t now = xseg_sim_clock();

    for (uint32_t index = engine->running_count; index-- > 0;) {
        const struct slot *slot = &engine->slot[engine->running[index]];

        if (slot->remaining != 0 || slot->last_step_end_ns > now)
            continue;
        engine->counters.served++;
        free_slot(engine, index);
    }
}

/* Interrupt the youngest sequence because memory is low.  It is recomputed later. */
static void interrupt_youngest(struct engine *engine)
{
    const struct slot *slot = &engine->slot[engine->running[engine->running_count - 1]];

    if (slot->remaining == 0)
        return; /* the sequence ends with the running step */
    engine->generated[slot->request] = engine->requests[slot->request].output - slot->remaining;
    engine->waiting_first = (engine->waiting_first - 1) % QUEUE;
    engine->waiting[engine->waiting_first] = slot->request;
    engine->waiting_count++;
    engine->counters.interrupted++;
    free_slot(engine, engine->running_count - 1);
}

/* --- Start of sequences. --- */

/* Whether a slot is usable with shared system prompts: it has no pending unmap, or the same system prompt. */
static bool is_usable_slot(const struct engine *engine, const struct slot *slot, uint32_t system)
{
    if (slot->granules == 0)
        return slot->decommit_end_ns <= xseg_sim_clock();
    return slot->shared != 0 && slot->shared == system_granules(engine, system) &&
           engine->requests[slot->request].system == system;
}

/* Choose the free slot with the most committed memory; among equal slots, the one that was freed last. */
static struct slot *choose_slot(struct engine *engine, uint32_t system)
{
    struct slot *best = NULL;

    for (uint32_t i = 0; i < engine->model->slots; i++) {
        struct slot *slot = &engine->slot[i];

        if (slot->is_used ||
            (engine->gpu->mode->shares_prompts && !is_usable_slot(engine, slot, system)))
            continue;
        if (best == NULL || slot->granules > best->granules ||
            (slot->granules == best->granules && slot->end_order > best->end_order))
            best = slot;
    }
    return best;
}

/* Map the pages of a system prompt at the start of a slot.  Returns the number of its tokens that are already computed. */
static uint32_t map_system_prompt(struct engine *engine, struct slot *slot, uint32_t system)
{
    struct slot *prompt_slot = &engine->slot[engine->model->slots + system];
    const uint32_t granules = system_granules(engine, system),
                   tokens = system_tokens(engine, system);
    const bool is_computed = prompt_slot->is_used;

    if (!is_computed) {
        prompt_slot->is_used = true;
        engine->tokens += tokens;
        commit_slot(engine, prompt_slot, granules);
    }
    if (slot->granules == 0) {
        require(xseg_range_alias(engine->range, offset_of(engine, slot, 0),
                                 granules * engine->granule, engine->range,
                                 offset_of(engine, prompt_slot, 0)) == XSEG_OK,
                "xseg_range_alias");
        engine->counters.shared += granules;
        slot->granules = slot->shared = granules;
    }
    return is_computed ? tokens : 0;
}

static void record_wait(struct engine *engine, uint32_t request_index)
{
    const uint64_t wait_ns = xseg_sim_clock() - engine->requests[request_index].arrival_ns;

    if (engine->generated[request_index] != 0)
        return;
    engine->counters.admitted++;
    engine->counters.wait_ns += wait_ns;
    engine->counters.max_wait_ns = max_u64(engine->counters.max_wait_ns, wait_ns);
}

/* Start a request in a slot. */
static void start_sequence(struct engine *engine, struct slot *slot, uint32_t request_index)
{
    const struct request *request = &engine->requests[request_index];
    const uint32_t prompt = request->prompt + engine->generated[request_index];
    uint32_t computed = 0;

    if (engine->gpu->mode->shares_prompts) {
        computed = map_system_prompt(engine, slot, request->system);
        /* The first sequence computes the system prompt in the shared pages. */
        engine->tokens -= system_tokens(engine, request->system) - computed;
    }
    slot->is_used = true;
    slot->request = request_index;
    slot->tokens = computed;
    slot->prompt = prompt - computed;
    slot->remaining = request->output - engine->generated[request_index];
    set_needed(engine, slot, slot->shared);
    engine->promised += granules_of(engine, prompt) - slot->needed;
    engine->running[engine->running_count++] = (uint32_t)(slot - engine->slot);
    record_wait(engine, request_index);
}

/* Start requests in order of arrival while there is memory for their prompts. */
static void admit(struct engine *engine)
{
    const uint64_t now = xseg_sim_clock();

    while (engine->next_request < engine->request_count &&
           engine->requests[engine->next_request].arrival_ns <= now) {
        engine->waiting[(engine->waiting_first + engine->waiting_count++) % QUEUE] =
            (uint32_t)engine->next_request++;
        require(engine->waiting_count < QUEUE, "queue of requests is full");
    }
    if (engine->waiting_count != 0)
        poll_events(engine);
    while (engine->waiting_count != 0) {
        const uint32_t request_index = engine->waiting[engine->waiting_first];
        const struct request *request = &engine->requests[request_index];
        struct slot *slot = choose_slot(engine, request->system);

        if (slot == NULL ||
            !has_memory(engine,
                        granules_of(engine, request->prompt + engine->generated[request_index]) *
                                engine->granule +
                            WATERMARK))
            return;
        start_sequence(engine, slot, request_index);
        engine->waiting_first = (engine->waiting_first + 1) % QUEUE;
        engine->waiting_count--;
    }
}

/* --- Steps. --- */

/* Commit memory for the tokens that a step adds to a sequence.  Returns false if memory is low; the sequence skips the step. */
static bool commit_step(struct engine *engine, struct slot *slot, uint32_t tokens)
{
    const uint32_t granules = granules_of(engine, slot->tokens + tokens);
    const uint32_t before = slot->needed;

    slot->step_tokens = 0;
    if (granules > slot->granules && slot->prompt == 0 &&
        !has_memory(engine, (granules - slot->granules) * engine->granule))
        return false;
    if (granules > slot->needed)
        commit_slot(engine, slot, granules);
    if (slot->prompt != 0)
        engine->promised -= slot->needed - before;
    slot->step_tokens = tokens;
    return true;
}

/* Commit memory for the next step.  Returns the number of prompt tokens that the step computes. */
static uint32_t commit_steps(struct engine *engine)
{
    uint32_t chunk = CHUNK;
    bool is_memory_low = false;

    for (uint32_t index = 0; index < engine->running_count; index++) {
        struct slot *slot = &engine->slot[engine->running[index]];

        slot->step_tokens = 0;
        if (slot->prompt != 0) {
            const uint32_t tokens = min_u32(chunk, slot->prompt);

            if (tokens != 0 && commit_step(engine, slot, tokens))
                chunk -= tokens;
        } else if (slot->remaining != 0 && !commit_step(engine, slot, 1)) {
            is_memory_low = true;
        }
    }
    if (is_memory_low)
        interrupt_youngest(engine);
    return CHUNK - chunk;
}

static void record_step(struct counters *counters, uint64_t ns)
{
    if (counters->steps == counters->step_capacity) {
        counters->step_capacity = counters->step_capacity == 0 ? 4096 : 2 * counters->step_capacity;
        counters->step_driver_ns =
            realloc(counters->step_driver_ns, counters->step_capacity * sizeof(uint64_t));
        require(counters->step_driver_ns != NULL, "out of host memory");
    }
    counters->step_driver_ns[counters->steps++] = ns;
}

/* Count the tokens that the queued step generates. */
static void count_tokens(struct engine *engine)
{
    for (uint32_t index = 0; index < engine->running_count; index++) {
        struct slot *slot = &engine->slot[engine->running[index]];

        if (slot->step_tokens == 0)
            continue;
        slot->tokens += slot->step_tokens;
        engine->tokens += slot->step_tokens;
        slot->prompt -= slot->prompt != 0 ? slot->step_tokens : 0;
        if (slot->prompt != 0)
            continue;
        slot->remaining--;
        slot->last_step_end_ns = engine->end_ns;
    }
}

/* Queue a step, which accesses the committed memory of its sequences. */
static void launch_step(struct engine *engine, uint32_t prompt)
{
    const struct model *model = engine->model;
    struct xseg_sim_access accesses[SLOTS_MAX];
    uint32_t access_count = 0, decoding = 0;

    for (uint32_t index = 0; index < engine->running_count; index++) {
        const struct slot *slot = &engine->slot[engine->running[index]];

        decoding += slot->prompt == 0;
        if (slot->needed != 0 && !engine->gpu->mode->halves)
            accesses[access_count++] = (struct xseg_sim_access){
                engine->base + offset_of(engine, slot, 0), slot->needed * engine->granule};
    }
    const double us = model->step_us + decoding * model->sequence_us + prompt * model->prompt_us;
    engine->start_ns = max_u64(xseg_sim_clock(), engine->end_ns);
    engine->end_ns = engine->start_ns + (uint64_t)(us * 1e3);
    require(xseg_sim_launch_accessing(engine->stream, engine->end_ns - engine->start_ns, accesses,
                                      access_count) == XSEG_OK,
            "xseg_sim_launch_accessing");
    count_tokens(engine);
}

/* Set the time of the next action while no sequence runs: a poll of pending unmaps, or the start of a request. */
static void wait_for_work(struct engine *engine, uint64_t until_ns)
{
    const uint64_t now = xseg_sim_clock();
    uint64_t wake = until_ns;

    if (now >= engine->end_ns)
        poll_events(engine);
    if (engine->next_request < engine->request_count)
        wake = engine->requests[engine->next_request].arrival_ns;
    if (now < engine->end_ns && engine->end_ns < wake)
        wake = engine->end_ns;
    /* There is more memory to decommit, or the other engine holds the memory. */
    if ((engine->ended != 0 || engine->waiting_count != 0) && now + 1000000 < wake)
        wake = now + 1000000;
    engine->wake_ns = wake;
}

/* Prepare pages for later commits while steps run, if there is memory. */
static void prepare(const struct engine *engine)
{
    const uint64_t bytes = engine->gpu->mode->prepared_pages * engine->granule;

    if (bytes == 0 || !has_memory(engine, bytes + WATERMARK))
        return;
    const xseg_status status = xseg_range_prepare(engine->range, bytes);
    require(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY, "xseg_range_prepare");
}

void engine_pass(struct engine *engine, uint64_t until_ns)
{
    const uint64_t driver_ns = xseg_sim_driver_time();
    const bool was_running = engine->running_count != 0;
    struct counters *counters = &engine->counters;

    end_sequences(engine);
    admit(engine);
    decommit_portion(engine);
    const uint32_t prompt = commit_steps(engine);
    if (engine->running_count == 0) {
        wait_for_work(engine, until_ns);
        return;
    }
    const uint64_t now = xseg_sim_clock();
    if (was_running && now > engine->end_ns) {
        counters->stalls++;
        counters->stall_ns += now - engine->end_ns;
        counters->max_stall_ns = max_u64(counters->max_stall_ns, now - engine->end_ns);
    }
    record_step(counters, xseg_sim_driver_time() - driver_ns);
    launch_step(engine, prompt);
    prepare(engine);
    engine->wake_ns = engine->start_ns;
}

/* --- Open and close. --- */

void engine_open(struct engine *engine, struct gpu *gpu, const struct model *model,
                 uint64_t until_ns)
{
    struct xseg_range_info info = {sizeof(info)};
    const bool halves = gpu->mode->halves;
    const uint64_t granule = gpu->mode->granule,
                   half = gpu->cache_bytes / ENGINES / granule * granule;
    struct xseg_range_options options = {sizeof(options)};

    engine->model = model;
    engine->gpu = gpu;
    engine->granule = options.page_bytes = granule;
    engine->slot_bytes = MAX_TOKENS * model->token_bytes;
    engine->requests = requests_create(&model->traffic, until_ns, &engine->request_count);
    engine->generated = calloc(engine->request_count + 1, sizeof(*engine->generated));
    require(engine->generated != NULL, "out of host memory");
    require(cuStreamCreate(&engine->stream, NON_BLOCKING) == 0, "cuStreamCreate");
    const uint64_t bytes = halves ? half : (model->slots + SYSTEM_PROMPTS) * engine->slot_bytes;
    require(xseg_range_reserve(gpu->allocator, 0, bytes, &options, &engine->range) == XSEG_OK,
            "xseg_range_reserve");
    require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_query");
    engine->base = (uint64_t)(uintptr_t)info.base;
    if (halves)
        require(xseg_range_commit(engine->range, 0, half, engine->stream) == XSEG_OK,
                "xseg_range_commit");
}

void engine_close(struct engine *engine)
{
    struct xseg_range_info info = {sizeof(info)};

    while (engine->running_count != 0)
        free_slot(engine, engine->running_count - 1);
    for (uint32_t system = 0; system < SYSTEM_PROMPTS; system++)
        set_needed(engine, &engine->slot[engine->model->slots + system], 0);
    for (uint32_t i = 0; i < engine->model->slots + SYSTEM_PROMPTS; i++)
        if (engine->slot[i].granules != 0)
            decommit_last(engine, &engine->slot[i], engine->slot[i].granules);
    require(engine->needed == 0 && engine->ended == 0 && engine->promised == 0,
            "granules are not balanced");
    require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_query");
    if (info.committed_bytes != 0) /* mode `halves` */
        require(xseg_range_decommit(engine->range, 0, info.bytes, engine->stream) == XSEG_OK,
                "xseg_range_decommit");
    require(xseg_range_release(engine->range) == XSEG_OK, "xseg_range_release");
    free(engine->requests);
    free(engine->generated);
    free(engine->counters.step_driver_ns);
}
