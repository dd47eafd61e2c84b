/* SPDX-License-Identifier: MIT */
/*
 * An inference engine with a paged KV cache on the simulated driver: one model, one stream, one elastic range.
 *
 * The range has one slot for each sequence of the largest batch; a slot has the length of the longest sequence.  The engine
 * commits the granules of a sequence's tokens, in blocks of 16 tokens, from the start of the slot.  After the end of a
 * sequence its granules are decommitted in portions, one portion per step, unless a new sequence uses the slot first.
 * Prompts are also computed in portions, so that a long prompt does not delay other sequences.
 *
 * The engine queues one step ahead of the running one.  When it learns the end of a sequence, the next step, which still
 * includes the sequence, is already running, so the decommit must be ordered by the stream.
 *
 * The time of a step is a model: a constant, a time per decoding sequence, and a time per token of a prompt, similar to an
 * A100.  Concurrent steps of both models do not slow each other down.
 */
#ifndef BENCHMARKS_RANGES_ENGINE_H
#define BENCHMARKS_RANGES_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "benchmarks/ranges/requests.h"
#include "xseg/xseg.h"

#define ENGINES   2u
#define SLOTS_MAX 192u
#define QUEUE     (1u << 15) /* requests */

struct model {
    const char *name;
    uint64_t token_bytes; /* of keys and values, of all layers */
    uint64_t weight_bytes;
    uint32_t slots;                         /* the largest batch */
    double step_us, sequence_us, prompt_us; /* the model of the time of a step */
    struct traffic traffic;
};

/* One way to share the GPU. */
struct mode {
    const char *name, *description;
    const char *config;
    uint64_t granule; /* page_bytes of the ranges */
    bool halves;      /* each engine permanently commits half of the memory without weights */
    uint32_t prepared_pages; /* number of pages to prepare after each queued step */
    bool shares_prompts;     /* system prompts are stored and computed once */
};

/* A slot of the range, and its sequence. */
struct slot {
    bool is_used;
    uint32_t granules; /* committed, from the start of the slot on */
    uint32_t shared;   /* number of leading granules with the shared pages of a system prompt */
    uint32_t needed;   /* by the tokens; less than `granules` after the end of a sequence */
    uint64_t decommit_end_ns; /* end of the work that orders the last decommit */
    uint64_t end_order; /* number of ended sequences when the last sequence of the slot ended */
    uint32_t request;
    uint32_t tokens;      /* in the cache */
    uint32_t prompt;      /* tokens of the prompt that remain to be computed */
    uint32_t remaining;   /* tokens that remain to be generated */
    uint32_t step_tokens; /* tokens that the next step adds to the cache; 0: it skips the step */
    uint64_t last_step_end_ns; /* end of the step that generates the last token */
};

/* Counters of an engine. */
struct counters {
    uint64_t *step_driver_ns; /* for each step: driver time before the step was queued */
    size_t steps, step_capacity;
    uint64_t stalls, stall_ns,
        max_stall_ns; /* the stream was idle because a step was queued late */
    uint64_t served, interrupted, shared, admitted;
    uint64_t wait_ns, max_wait_ns; /* from the arrival of a request until it has a slot */
    uint64_t peak;                 /* granules */
};

struct engine {
    const struct model *model;
    struct gpu *gpu;
    xseg_stream stream;
    struct xseg_range *range;
    uint64_t base; /* of the range */
    struct request *requests;
    uint32_t *generated; /* tokens that each interrupted request has generated */
    size_t request_count, next_request;
    uint32_t waiting[QUEUE], waiting_first, waiting_count; /* ring of requests */
    struct slot slot[SLOTS_MAX + SYSTEM_PROMPTS];          /* the last slots hold system prompts */
    uint32_t running[SLOTS_MAX], running_count;            /* slots in order of arrival */
    uint64_t granule, slot_bytes;
    uint64_t needed,
        ended;         /* granules of active and of ended sequences; a shared page counts once */
    uint64_t promised; /* granules that the active prompts will need in addition */
    uint64_t tokens;   /* of active sequences; a shared token counts once */
    uint64_t start_ns, end_ns; /* of the last queued step */
    uint64_t wake_ns;          /* time of the engine's next action */
    uint64_t ended_count;      /* number of ended sequences */
    struct counters counters;
};

struct gpu {
    const struct mode *mode;
    struct xseg_allocator *allocator;
    struct engine engine[ENGINES];
    void *weights[ENGINES];
    uint64_t weight_used; /* device memory of the weights */
    uint64_t cache_bytes; /* the remaining device memory */
};

/* Create the requests, a stream and a range.  With `halves`, commit half of the memory. */
void engine_open(struct engine *engine, struct gpu *gpu, const struct model *model,
                 uint64_t until_ns);

/* End and start sequences, and queue the next step. */
void engine_pass(struct engine *engine, uint64_t until_ns);

/* Release everything after all work has completed. */
void engine_close(struct engine *engine);

/* End the program with a message unless a condition holds. */
void require(bool condition, const char *operation);

#endif
