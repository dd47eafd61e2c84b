/* SPDX-License-Identifier: MIT */
#include "benchmarks/ranges/engine.h"

#include <stdio.h>
#include <stdlib.h>

#include "xseg/sim.h"

#define BLOCK        16u  /* tokens */
#define CHUNK        512u /* tokens of prompts in a step, at most */
#define NON_BLOCKING 1u

/* Bytes that ended sequences give up in a step, at most; and that stay free for those that grow when another is let in. */
#define PORTION   ((uint64_t)128 << 20)
#define WATERMARK ((uint64_t)128 << 20)

/* From the driver's interface, by its plain C types. */
int cuStreamCreate(xseg_stream *stream, unsigned flags);

void require(bool holds, const char *what)
{
    char text[1024] = "";

    if (holds)
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- Memory. --- */

/* The granules beneath so many tokens, in whole blocks. */
static uint32_t granules_of(const struct engine *engine, uint32_t tokens)
{
    const uint64_t blocks = (tokens + BLOCK - 1) / BLOCK;

    return (uint32_t)((blocks * BLOCK * engine->model->token_bytes + engine->granule - 1) /
                      engine->granule);
}

/* Of a system prompt: the granules that nothing else is on, and the tokens that are whole on these. */
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

/* Let the library look at what has left: a decommit of nothing does. */
static void look(const struct engine *engine)
{
    require(xseg_range_decommit(engine->range, 0, 0, engine->stream) == XSEG_OK, "a look");
}

/* Whether the card has memory for so many bytes, beside what is promised.  Idle pages are free, what leaves is
 * not yet. */
static bool has_room(const struct engine *engine, uint64_t bytes)
{
    const struct card *card = engine->card;

    if (card->way->halves)
        return (engine->needed + engine->promised) * engine->granule + bytes <=
               card->cache_bytes / ENGINES;
    for (unsigned i = 0; i < ENGINES; i++) {
        struct xseg_range_info info = {sizeof(info)};

        require(xseg_range_query(card->engine[i].range, &info) == XSEG_OK, "xseg_range_info");
        bytes += info.physical_bytes + card->engine[i].promised * engine->granule;
    }
    return bytes <= card->cache_bytes;
}

/* The tokens of a slot need so many granules. */
static void need(struct engine *engine, struct slot *slot, uint32_t granules)
{
    const uint32_t before = slot->needed > slot->shared ? slot->needed - slot->shared : 0;
    const uint32_t after = granules > slot->shared ? granules - slot->shared : 0;

    engine->needed += after - (uint64_t)before;
    engine->ended += before - (uint64_t)after;
    slot->needed = granules;
    engine->tally.peak = most(engine->tally.peak, engine->needed);
}

/* Have memory beneath the first granules of a slot, which are needed. */
static void commit(struct engine *engine, struct slot *slot, uint32_t granules)
{
    const uint32_t more = granules > slot->granules ? granules - slot->granules : 0;

    if (more != 0 && !engine->card->way->halves)
        require(xseg_range_commit(engine->range, offset_of(engine, slot, slot->granules),
                                  more * engine->granule, engine->stream) == XSEG_OK,
                "xseg_range_commit");
    engine->ended += more;
    slot->granules += more;
    need(engine, slot, granules);
}

/* Give up the last granules of a slot, behind the step that was queued last. */
static void give_up(struct engine *engine, struct slot *slot, uint32_t granules)
{
    const uint32_t left = slot->granules - granules;

    if (!engine->card->way->halves)
        require(xseg_range_decommit(engine->range, offset_of(engine, slot, left),
                                    granules * engine->granule, engine->stream) == XSEG_OK,
                "xseg_range_decommit");
    engine->ended -= slot->granules - (uint64_t)most(left, slot->shared);
    slot->granules = left;
    slot->shared = least(slot->shared, left);
    slot->passed_ns = engine->end_ns;
}

/* Give up a portion of what ended sequences have, those that ended first before others. */
static void give_portion(struct engine *engine)
{
    uint32_t portion = (uint32_t)(PORTION / engine->granule);

    while (portion != 0) {
        struct slot *oldest = NULL;

        for (uint32_t i = 0; i < engine->model->slots; i++) {
            struct slot *slot = &engine->slot[i];

            if (slot->granules > slot->needed && (oldest == NULL || slot->order < oldest->order))
                oldest = slot;
        }
        if (oldest == NULL)
            return;
        const uint32_t part = least(portion, oldest->granules - oldest->needed);
        give_up(engine, oldest, part);
        portion -= part;
    }
}

/* --- Sequences that end. --- */

/* The sequence at a place among the running ones leaves its slot. */
static void leave(struct engine *engine, uint32_t at)
{
    struct slot *slot = &engine->slot[engine->running[at]];
    const struct request *request = &engine->requests[slot->request];
    const uint32_t whole = granules_of(engine, slot->tokens + slot->prompt);

    if (slot->prompt != 0)
        engine->promised -= whole - slot->needed;
    engine->tokens -= slot->tokens;
    if (engine->card->way->shares)
        engine->tokens += system_tokens(engine, request->system);
    need(engine, slot, 0);
    slot->is_used = false;
    slot->order = ++engine->endings;
    for (; at + 1 < engine->running_count; at++)
        engine->running[at] = engine->running[at + 1];
    engine->running_count--;
}

/* The sequences of which the engine knows by now that they have ended. */
static void end_sequences(struct engine *engine)
{
    const uint64_t now = xseg_sim_clock();

    for (uint32_t at = engine->running_count; at-- > 0;) {
        const struct slot *slot = &engine->slot[engine->running[at]];

        if (slot->left != 0 || slot->done_ns > now)
            continue;
        engine->tally.served++;
        leave(engine, at);
    }
}

/* Memory is short: the sequence that came last is computed again later. */
static void interrupt(struct engine *engine)
{
    const struct slot *slot = &engine->slot[engine->running[engine->running_count - 1]];

    if (slot->left == 0)
        return; /* it is about to end anyway */
    engine->made[slot->request] = engine->requests[slot->request].output - slot->left;
    engine->waiting_first = (engine->waiting_first - 1) % QUEUE;
    engine->waiting[engine->waiting_first] = slot->request;
    engine->waiting_count++;
    engine->tally.interrupted++;
    leave(engine, engine->running_count - 1);
}

/* --- Sequences that come. --- */

/* Whether a slot will do for a request, where system prompts are shared: nothing is mapped where memory still leaves. */
static bool has_prompt(const struct engine *engine, const struct slot *slot, uint32_t system)
{
    if (slot->granules == 0)
        return slot->passed_ns <= xseg_sim_clock();
    return slot->shared != 0 && slot->shared == system_granules(engine, system) &&
           engine->requests[slot->request].system == system;
}

/* A slot for a request: that which has most memory still, and of these the one that was left last. */
static struct slot *choose_slot(struct engine *engine, uint32_t system)
{
    struct slot *best = NULL;

    for (uint32_t i = 0; i < engine->model->slots; i++) {
        struct slot *slot = &engine->slot[i];

        if (slot->is_used || (engine->card->way->shares && !has_prompt(engine, slot, system)))
            continue;
        if (best == NULL || slot->granules > best->granules ||
            (slot->granules == best->granules && slot->order > best->order))
            best = slot;
    }
    return best;
}

/* Have the pages of a system prompt beneath the start of a slot.  Returns the tokens of it that need not be computed. */
static uint32_t share(struct engine *engine, struct slot *slot, uint32_t system)
{
    struct slot *own = &engine->slot[engine->model->slots + system];
    const uint32_t granules = system_granules(engine, system),
                   tokens = system_tokens(engine, system);
    const bool is_there = own->is_used;

    if (!is_there) {
        own->is_used = true;
        engine->tokens += tokens;
        commit(engine, own, granules);
    }
    if (slot->granules == 0) {
        require(xseg_range_alias(engine->range, offset_of(engine, slot, 0),
                                 granules * engine->granule, engine->range,
                                 offset_of(engine, own, 0)) == XSEG_OK,
                "xseg_range_alias");
        engine->tally.shared += granules;
        slot->granules = slot->shared = granules;
    }
    return is_there ? tokens : 0;
}

static void note_wait(struct engine *engine, uint32_t number)
{
    const uint64_t waited = xseg_sim_clock() - engine->requests[number].arrival_ns;

    if (engine->made[number] != 0)
        return;
    engine->tally.admitted++;
    engine->tally.waited_ns += waited;
    engine->tally.waited_worst_ns = most(engine->tally.waited_worst_ns, waited);
}

/* Let a request have a slot. */
static void let_in(struct engine *engine, struct slot *slot, uint32_t number)
{
    const struct request *request = &engine->requests[number];
    const uint32_t prompt = request->prompt + engine->made[number];
    uint32_t there = 0;

    if (engine->card->way->shares) {
        there = share(engine, slot, request->system);
        /* If nobody has computed it yet, this sequence does, onto the shared pages. */
        engine->tokens -= system_tokens(engine, request->system) - there;
    }
    slot->is_used = true;
    slot->request = number;
    slot->tokens = there;
    slot->prompt = prompt - there;
    slot->left = request->output - engine->made[number];
    need(engine, slot, slot->shared);
    engine->promised += granules_of(engine, prompt) - slot->needed;
    engine->running[engine->running_count++] = (uint32_t)(slot - engine->slot);
    note_wait(engine, number);
}

/* Let requests in, in the order in which they came, as long as there is memory for their prompts. */
static void admit(struct engine *engine)
{
    const uint64_t now = xseg_sim_clock();

    while (engine->next_request < engine->request_count &&
           engine->requests[engine->next_request].arrival_ns <= now) {
        engine->waiting[(engine->waiting_first + engine->waiting_count++) % QUEUE] =
            (uint32_t)engine->next_request++;
        require(engine->waiting_count < QUEUE, "the queue");
    }
    if (engine->waiting_count != 0)
        look(engine);
    while (engine->waiting_count != 0) {
        const uint32_t number = engine->waiting[engine->waiting_first];
        const struct request *request = &engine->requests[number];
        struct slot *slot = choose_slot(engine, request->system);

        if (slot == NULL ||
            !has_room(engine, granules_of(engine, request->prompt + engine->made[number]) *
                                      engine->granule +
                                  WATERMARK))
            return;
        let_in(engine, slot, number);
        engine->waiting_first = (engine->waiting_first + 1) % QUEUE;
        engine->waiting_count--;
    }
}

/* --- Steps. --- */

/* Have memory for what a step adds to a sequence.  Returns false where there is none: it sits the step out. */
static bool extend(struct engine *engine, struct slot *slot, uint32_t tokens)
{
    const uint32_t granules = granules_of(engine, slot->tokens + tokens);
    const uint32_t before = slot->needed;

    slot->next = 0;
    if (granules > slot->granules && slot->prompt == 0 &&
        !has_room(engine, (granules - slot->granules) * engine->granule))
        return false;
    if (granules > slot->needed)
        commit(engine, slot, granules);
    if (slot->prompt != 0)
        engine->promised -= slot->needed - before;
    slot->next = tokens;
    return true;
}

/* Have memory for the next step.  Returns the tokens of prompts that it computes. */
static uint32_t extend_all(struct engine *engine)
{
    uint32_t chunk = CHUNK;
    bool is_short = false;

    for (uint32_t at = 0; at < engine->running_count; at++) {
        struct slot *slot = &engine->slot[engine->running[at]];

        slot->next = 0;
        if (slot->prompt != 0) {
            const uint32_t part = least(chunk, slot->prompt);

            if (part != 0 && extend(engine, slot, part))
                chunk -= part;
        } else if (slot->left != 0 && !extend(engine, slot, 1)) {
            is_short = true;
        }
    }
    if (is_short)
        interrupt(engine);
    return CHUNK - chunk;
}

static void note_path(struct tally *tally, uint64_t ns)
{
    if (tally->steps == tally->path_room) {
        tally->path_room = tally->path_room == 0 ? 4096 : 2 * tally->path_room;
        tally->path_ns = realloc(tally->path_ns, tally->path_room * sizeof(uint64_t));
        require(tally->path_ns != NULL, "no host memory");
    }
    tally->path_ns[tally->steps++] = ns;
}

/* Count the tokens that the step makes which has been queued. */
static void make_tokens(struct engine *engine)
{
    for (uint32_t at = 0; at < engine->running_count; at++) {
        struct slot *slot = &engine->slot[engine->running[at]];

        if (slot->next == 0)
            continue;
        slot->tokens += slot->next;
        engine->tokens += slot->next;
        slot->prompt -= slot->prompt != 0 ? slot->next : 0;
        if (slot->prompt != 0)
            continue;
        slot->left--;
        slot->done_ns = engine->end_ns;
    }
}

/* Queue a step behind the one that runs: it uses all that its sequences have. */
static void launch(struct engine *engine, uint32_t prompt)
{
    const struct model *model = engine->model;
    struct xseg_sim_access touch[SLOTS_MOST];
    uint32_t touches = 0, decoding = 0;

    for (uint32_t at = 0; at < engine->running_count; at++) {
        const struct slot *slot = &engine->slot[engine->running[at]];

        decoding += slot->prompt == 0;
        if (slot->needed != 0 && !engine->card->way->halves)
            touch[touches++] = (struct xseg_sim_access){engine->base + offset_of(engine, slot, 0),
                                                        slot->needed * engine->granule};
    }
    const double us = model->step_us + decoding * model->sequence_us + prompt * model->prompt_us;
    engine->begin_ns = most(xseg_sim_clock(), engine->end_ns);
    engine->end_ns = engine->begin_ns + (uint64_t)(us * 1e3);
    require(xseg_sim_launch_accessing(engine->stream, engine->end_ns - engine->begin_ns, touch,
                                      touches) == XSEG_OK,
            "xseg_sim_launch_accessing");
    make_tokens(engine);
}

/* Nothing runs: wait for what leaves, then for a request. */
static void rest(struct engine *engine, uint64_t until_ns)
{
    const uint64_t now = xseg_sim_clock();
    uint64_t wake = until_ns;

    if (now >= engine->end_ns)
        look(engine);
    if (engine->next_request < engine->request_count)
        wake = engine->requests[engine->next_request].arrival_ns;
    if (now < engine->end_ns && engine->end_ns < wake)
        wake = engine->end_ns;
    /* More to give up; or the other engine has the memory. */
    if ((engine->ended != 0 || engine->waiting_count != 0) && now + 1000000 < wake)
        wake = now + 1000000;
    engine->wake_ns = wake;
}

/* While steps run: have pages for what comes, as far as there is memory. */
static void prepare(const struct engine *engine)
{
    const uint64_t bytes = engine->card->way->prepared * engine->granule;

    if (bytes == 0 || !has_room(engine, bytes + WATERMARK))
        return;
    const xseg_status status = xseg_range_prepare(engine->range, bytes);
    require(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY, "xseg_range_prepare");
}

void engine_pass(struct engine *engine, uint64_t until_ns)
{
    const uint64_t driver_ns = xseg_sim_driver_time();
    const bool goes_on = engine->running_count != 0;
    struct tally *tally = &engine->tally;

    end_sequences(engine);
    admit(engine);
    give_portion(engine);
    const uint32_t prompt = extend_all(engine);
    if (engine->running_count == 0) {
        rest(engine, until_ns);
        return;
    }
    const uint64_t now = xseg_sim_clock();
    if (goes_on && now > engine->end_ns) {
        tally->stood++;
        tally->stood_ns += now - engine->end_ns;
        tally->stood_worst_ns = most(tally->stood_worst_ns, now - engine->end_ns);
    }
    note_path(tally, xseg_sim_driver_time() - driver_ns);
    launch(engine, prompt);
    prepare(engine);
    engine->wake_ns = engine->begin_ns;
}

/* --- Opening and closing. --- */

void engine_open(struct engine *engine, struct card *card, const struct model *model,
                 uint64_t until_ns)
{
    struct xseg_range_info info = {sizeof(info)};
    const bool halves = card->way->halves;
    const uint64_t granule = card->way->granule,
                   half = card->cache_bytes / ENGINES / granule * granule;
    struct xseg_range_options options = {sizeof(options)};

    engine->model = model;
    engine->card = card;
    engine->granule = options.page_bytes = granule;
    engine->slot_bytes = LONGEST * model->token_bytes;
    engine->requests = requests_make(&model->traffic, until_ns, &engine->request_count);
    engine->made = calloc(engine->request_count + 1, sizeof(*engine->made));
    require(engine->made != NULL, "no host memory");
    require(cuStreamCreate(&engine->stream, NON_BLOCKING) == 0, "cuStreamCreate");
    const uint64_t bytes = halves ? half : (model->slots + SYSTEM_PROMPTS) * engine->slot_bytes;
    require(xseg_range_reserve(card->allocator, 0, bytes, &options, &engine->range) == XSEG_OK,
            "xseg_range_reserve");
    require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_info");
    engine->base = (uint64_t)(uintptr_t)info.base;
    if (halves)
        require(xseg_range_commit(engine->range, 0, half, engine->stream) == XSEG_OK,
                "xseg_range_commit");
}

void engine_close(struct engine *engine)
{
    struct xseg_range_info info = {sizeof(info)};

    while (engine->running_count != 0)
        leave(engine, engine->running_count - 1);
    for (uint32_t system = 0; system < SYSTEM_PROMPTS; system++)
        need(engine, &engine->slot[engine->model->slots + system], 0);
    for (uint32_t i = 0; i < engine->model->slots + SYSTEM_PROMPTS; i++)
        if (engine->slot[i].granules != 0)
            give_up(engine, &engine->slot[i], engine->slot[i].granules);
    require(engine->needed == 0 && engine->ended == 0 && engine->promised == 0,
            "the granules do not add up");
    require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_info");
    if (info.committed_bytes != 0) /* a half */
        require(xseg_range_decommit(engine->range, 0, info.bytes, engine->stream) == XSEG_OK,
                "xseg_range_decommit");
    require(xseg_range_release(engine->range) == XSEG_OK, "xseg_range_release");
    free(engine->requests);
    free(engine->made);
    free(engine->tally.path_ns);
}
