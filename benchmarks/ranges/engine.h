/* SPDX-License-Identifier: MIT */
/*
 * An inference engine with a paged KV cache, on the simulated driver: one model, one stream, one range.
 *
 * The range has a slot for each sequence of the largest batch, as long as the longest sequence.  A sequence needs memory
 * for its tokens, in blocks of 16, from the start of its slot on: the engine commits the granules beneath them.  When a
 * sequence has ended its memory goes in portions, a portion a step, unless another sequence comes to the slot before.
 * Prompts are computed in portions, too, as engines do so that a long one holds nobody up.
 *
 * The engine keeps one step queued behind the one that runs.  So it learns that a sequence has ended when the next step,
 * which has the sequence in it still, is at work: memory has to go in the order of the stream.
 *
 * What a step takes is made up: a base, something for each sequence that makes a token, something for each token of a
 * prompt, about as on an A100.  Each model is timed as if it had the processors to itself.
 */
#ifndef BENCHMARKS_RANGES_ENGINE_H
#define BENCHMARKS_RANGES_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "benchmarks/ranges/requests.h"
#include "xseg/xseg.h"

#define ENGINES    2u
#define SLOTS_MOST 192u
#define QUEUE      (1u << 15) /* requests */

struct model {
    const char *name;
    uint64_t token_bytes; /* of keys and values, of all layers */
    uint64_t weight_bytes;
    uint32_t slots;                         /* the largest batch */
    double step_us, sequence_us, prompt_us; /* see above */
    struct traffic traffic;
};

/* How the card is shared. */
struct way {
    const char *name, *what;
    const char *config;
    uint64_t granule;  /* page_bytes of the ranges */
    bool halves;       /* each engine commits half of what the weights leave, for good */
    uint32_t prepared; /* pages to have prepared whenever a step has been queued */
    bool shares;       /* a system prompt is in memory once, and computed once */
};

/* A place for a sequence, and the sequence. */
struct slot {
    bool is_used;
    uint32_t granules;  /* committed, from the start of the slot on */
    uint32_t shared;    /* of these, the first so many are the pages of a system prompt */
    uint32_t needed;    /* by the tokens; less than `granules` when a sequence has ended */
    uint64_t passed_ns; /* when the work ends behind which memory of it goes, or went last */
    uint64_t order;     /* of ending */
    uint32_t request;
    uint32_t tokens;  /* in the cache */
    uint32_t prompt;  /* tokens of the prompt that are still to be computed */
    uint32_t left;    /* tokens that are still to be made */
    uint32_t next;    /* tokens that the next step adds to the cache; 0: it sits that out */
    uint64_t done_ns; /* when the step ends that makes the last token */
};

/* What an engine counts. */
struct tally {
    uint64_t *path_ns; /* of each step: driver time before it was queued */
    size_t steps, path_room;
    uint64_t stood, stood_ns,
        stood_worst_ns; /* the stream stood still since a step was queued too late */
    uint64_t served, interrupted, shared, admitted;
    uint64_t waited_ns, waited_worst_ns; /* from its arrival until a request had a slot */
    uint64_t peak;                       /* granules */
};

struct engine {
    const struct model *model;
    struct card *card;
    xseg_stream stream;
    struct xseg_range *range;
    uint64_t base; /* of the range */
    struct request *requests;
    uint32_t *made; /* tokens of each request that was interrupted */
    size_t request_count, next_request;
    uint32_t waiting[QUEUE], waiting_first, waiting_count; /* requests, in a ring */
    struct slot slot[SLOTS_MOST + SYSTEM_PROMPTS];         /* the last ones have system prompts */
    uint32_t running[SLOTS_MOST], running_count; /* slots, those that came first in front */
    uint64_t granule, slot_bytes;
    uint64_t needed,
        ended; /* granules: beneath live tokens, and beneath those of the ended; each page once */
    uint64_t promised;         /* granules that the prompts under way will need beside these */
    uint64_t tokens;           /* live, those of shared pages once */
    uint64_t begin_ns, end_ns; /* of the step that was queued last */
    uint64_t wake_ns;          /* when the engine has something to do next */
    uint64_t endings;
    struct tally tally;
};

struct card {
    const struct way *way;
    struct xseg_allocator *allocator;
    struct engine engine[ENGINES];
    void *weights[ENGINES];
    uint64_t weight_used; /* memory of the device */
    uint64_t cache_bytes; /* what that leaves */
};

/* Have requests, a stream and a range.  With halves, half of the memory is committed. */
void engine_open(struct engine *engine, struct card *card, const struct model *model,
                 uint64_t until_ns);

/* Do what is due before the next step, and queue that. */
void engine_pass(struct engine *engine, uint64_t until_ns);

/* End everything, once all work has finished. */
void engine_close(struct engine *engine);

/* End the programme unless something holds. */
void require(bool holds, const char *what);

#endif
