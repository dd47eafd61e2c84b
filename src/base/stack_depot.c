/* SPDX-License-Identifier: MIT */
#include "src/base/stack_depot.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/hash_table.h"
#include "src/base/stack.h"

/* A stack.  It begins with what a search compares. */
struct stack {
    uint32_t id;
    uint32_t taken; /* frames, with XSEG_STACK_TRUNCATED */
    const struct xseg_stack_mapping_set *ground;
    void *frames[];
};

struct xseg_stack_mapping_set {
    uint32_t count;
    atomic_bool is_gone;
    const struct xseg_module_mapping *on[]; /* each once, by address of the record */
};

bool xseg_stack_depot_init(struct xseg_stack_depot *depot, size_t max_bytes)
{
    const size_t bytes = max_bytes == 0 ? XSEG_STACK_DEPOT_BYTES : max_bytes;

    memset(depot, 0, sizeof(*depot));
    if (!xseg_fork_guard_init(&depot->guard))
        return false;
    if (!xseg_bump_init(&depot->memory, xseg_min(xseg_max(bytes, XSEG_STACK_DEPOT_MIN_BYTES),
                                                 XSEG_STACK_DEPOT_MAX_BYTES))) {
        xseg_fork_guard_fini(&depot->guard);
        return false;
    }
    struct xseg_bump *memory = &depot->memory;
    depot->new_ground =
        xseg_bump_alloc(memory, sizeof(struct xseg_stack_mapping_set) +
                                    XSEG_STACK_FRAMES_MAX * sizeof(struct xseg_module_mapping *));
    xseg_modules_init(&depot->modules, memory);
    if (depot->new_ground == NULL || !xseg_intern_table_init(&depot->stacks, memory) ||
        !xseg_frames_init(&depot->frames, memory) ||
        !xseg_intern_table_init(&depot->grounds, memory)) {
        xseg_bump_fini(memory);
        xseg_fork_guard_fini(&depot->guard);
        return false;
    }
    xseg_mutex_init(&depot->lock, XSEG_RANK_LEAF);
    return true;
}

void xseg_stack_depot_fini(struct xseg_stack_depot *depot)
{
    xseg_mutex_fini(&depot->lock);
    xseg_bump_fini(&depot->memory);
    xseg_fork_guard_fini(&depot->guard);
}

/* --- Finding a stack. --- */

/* A stack that is to be added, or found. */
struct wanted {
    struct xseg_stack_depot *depot;
    void *const *frames;
    uint32_t taken, hash;
    uint32_t id; /* 0 until it is found or added */
};

static bool is_gone(const struct xseg_stack_mapping_set *ground)
{
    return atomic_load_explicit(&ground->is_gone, memory_order_relaxed);
}

/* A stack with these frames whose ground is there; NULL if there is none. */
static const struct stack *find(const struct xseg_stack_depot *depot, void *const *frames,
                                uint32_t taken, uint32_t hash)
{
    const size_t bytes = xseg_stack_frames(taken) * sizeof(*frames);
    struct xseg_intern_search search = xseg_intern_table_search(&depot->stacks, hash);

    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const struct stack *stack = xseg_bump_at(&depot->memory, handle);

        if (stack->taken == taken && memcmp(stack->frames, frames, bytes) == 0 &&
            !is_gone(stack->ground))
            return stack;
    }
    return NULL;
}

/* --- Grounds. --- */

/* Add a placement to the ground of the stack that is being added, unless it has it. */
static void add_to_ground(struct xseg_stack_mapping_set *ground,
                          const struct xseg_module_mapping *placement)
{
    uint32_t at = ground->count;

    for (uint32_t i = 0; i < ground->count; i++)
        if (ground->on[i] == placement)
            return;
    for (; at > 0 && (uintptr_t)ground->on[at - 1] > (uintptr_t)placement; at--)
        ground->on[at] = ground->on[at - 1];
    ground->on[at] = placement;
    ground->count++;
}

/* The ground like the one that was put together, which is added if it is new; NULL without room. */
static const struct xseg_stack_mapping_set *keep_ground(struct xseg_stack_depot *depot)
{
    const struct xseg_stack_mapping_set *new_ground = depot->new_ground;
    const size_t on_bytes = new_ground->count * sizeof(struct xseg_module_mapping *);
    const uint32_t hash = (uint32_t)xseg_hash_words(new_ground->on, new_ground->count, 0);
    struct xseg_intern_search search = xseg_intern_table_search(&depot->grounds, hash);

    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const struct xseg_stack_mapping_set *ground = xseg_bump_at(&depot->memory, handle);

        if (ground->count == new_ground->count && memcmp(ground->on, new_ground->on, on_bytes) == 0)
            return ground;
    }
    struct xseg_stack_mapping_set *ground =
        xseg_bump_alloc(&depot->memory, sizeof(*ground) + on_bytes);
    if (ground == NULL)
        return NULL;
    ground->count = new_ground->count;
    memcpy(ground->on, new_ground->on, on_bytes);
    return xseg_intern_table_add(&depot->grounds, &depot->memory, hash,
                                 xseg_bump_handle(&depot->memory, ground))
               ? ground
               : NULL;
}

/* Whether a placement that the ground has is not loaded. */
static bool lacks_placement(const struct xseg_stack_mapping_set *ground)
{
    for (uint32_t i = 0; i < ground->count; i++)
        if (!atomic_load_explicit(&ground->on[i]->is_loaded, memory_order_relaxed))
            return true;
    return false;
}

static void look_at_ground(void *context, uint32_t handle)
{
    const struct xseg_stack_depot *depot = context;
    struct xseg_stack_mapping_set *ground = xseg_bump_at(&depot->memory, handle);

    atomic_store_explicit(&ground->is_gone, lacks_placement(ground), memory_order_relaxed);
}

/* The placement of a ground on which a frame lies; NULL: on none. */
static const struct xseg_module_mapping *placement_on(const struct xseg_stack_mapping_set *ground,
                                                      const void *pc)
{
    for (uint32_t i = 0; i < ground->count; i++)
        if (xseg_frames_call(pc) >= ground->on[i]->start &&
            xseg_frames_call(pc) < ground->on[i]->end)
            return ground->on[i];
    return NULL;
}

/* --- Adding a stack. --- */

/* The list in which a stack stands by its id, and its place there. */
static unsigned list_of(uint32_t id, uint32_t *at)
{
    const uint64_t number = (uint64_t)id - 1 + XSEG_STACK_DEPOT_FIRST;
    const unsigned list = xseg_log2_floor(number / XSEG_STACK_DEPOT_FIRST);

    *at = (uint32_t)(number - ((uint64_t)XSEG_STACK_DEPOT_FIRST << list));
    return list;
}

static struct stack *stack_of(const struct xseg_stack_depot *depot, uint32_t id)
{
    uint32_t at = 0;

    if (id == 0 || id > atomic_load_explicit(&depot->count, memory_order_acquire))
        return NULL;
    const unsigned list = list_of(id, &at);
    return xseg_bump_at(&depot->memory,
                        atomic_load_explicit(&depot->list[list], memory_order_acquire)[at]);
}

/* Give a stack the next id.  Returns false without room. */
static bool number_stack(struct xseg_stack_depot *depot, struct stack *stack)
{
    const uint32_t id = (uint32_t)atomic_load_explicit(&depot->count, memory_order_relaxed) + 1;
    uint32_t at = 0;
    const unsigned list = list_of(id, &at);
    uint32_t *handles = atomic_load_explicit(&depot->list[list], memory_order_relaxed);

    XSEG_ASSERT(list < XSEG_STACK_DEPOT_LISTS);
    if (handles == NULL) {
        handles = xseg_bump_alloc(&depot->memory,
                                  ((size_t)XSEG_STACK_DEPOT_FIRST << list) * sizeof(*handles));
        if (handles == NULL)
            return false;
        atomic_store_explicit(&depot->list[list], handles, memory_order_release);
    }
    handles[at] = xseg_bump_handle(&depot->memory, stack);
    stack->id = id;
    return true;
}

/* See to it that all frames of a stack have records, and put its ground together. */
static bool keep_frames(struct wanted *wanted)
{
    struct xseg_stack_depot *depot = wanted->depot;

    depot->new_ground->count = 0;
    for (uint32_t i = 0; i < xseg_stack_frames(wanted->taken); i++) {
        const void *pc = wanted->frames[i];
        const struct xseg_module_mapping *placement =
            xseg_modules_find(&depot->modules, xseg_frames_call(pc));

        if (placement != NULL)
            add_to_ground(depot->new_ground, placement);
        if (!xseg_frames_add(&depot->frames, pc, placement))
            return false;
    }
    return true;
}

/* Add a stack that is not there.  Without room nothing is added but records that others may use. */
static void add_new(struct wanted *wanted)
{
    struct xseg_stack_depot *depot = wanted->depot;
    const size_t bytes = xseg_stack_frames(wanted->taken) * sizeof(*wanted->frames);

    if (!keep_frames(wanted))
        return;
    const struct xseg_stack_mapping_set *ground = keep_ground(depot);
    struct stack *stack =
        ground != NULL ? xseg_bump_alloc(&depot->memory, sizeof(*stack) + bytes) : NULL;
    if (stack == NULL || !xseg_intern_table_reserve(&depot->stacks, &depot->memory) ||
        !number_stack(depot, stack))
        return;
    stack->taken = wanted->taken;
    stack->ground = ground;
    memcpy(stack->frames, wanted->frames, bytes);
    /* A thread that finds the stack may ask by its id at once. */
    atomic_store_explicit(&depot->count, stack->id, memory_order_release);
    const bool is_added = xseg_intern_table_add(&depot->stacks, &depot->memory, wanted->hash,
                                                xseg_bump_handle(&depot->memory, stack));

    XSEG_ASSERT(is_added);
    (void)is_added;
    wanted->id = stack->id;
}

/* The loader is held: what is loaded is known, and stays. */
static void find_or_add(void *context)
{
    struct wanted *wanted = context;
    struct xseg_stack_depot *depot = wanted->depot;

    if (depot->changes_seen != depot->modules.changes)
        xseg_intern_table_for_each(&depot->grounds, look_at_ground, depot);
    depot->changes_seen = depot->modules.changes;
    const struct stack *stack = find(depot, wanted->frames, wanted->taken, wanted->hash);
    if (stack != NULL)
        wanted->id = stack->id;
    else
        add_new(wanted);
}

static __attribute__((noinline)) uint32_t add_slowly(struct wanted *wanted)
{
    struct xseg_stack_depot *depot = wanted->depot;

    if (!atomic_load_explicit(&depot->memory.was_full, memory_order_relaxed) &&
        !xseg_fork_guard_is_child(&depot->guard)) {
        xseg_mutex_lock(&depot->lock);
        xseg_modules_call_locked(&depot->modules, find_or_add, wanted);
        xseg_mutex_unlock(&depot->lock);
#if XSEG_CHECKS >= 3
        if (xseg_is_power_of_two(wanted->id))
            XSEG_AUDIT(xseg_stack_depot_audit, depot);
#endif
    }
    if (wanted->id == 0)
        atomic_fetch_add_explicit(&depot->lost, 1, memory_order_relaxed);
    return wanted->id;
}

uint32_t xseg_stack_depot_add(struct xseg_stack_depot *depot, void *const *frames, uint32_t taken)
{
    if (xseg_stack_frames(taken) == 0)
        return 0;
    if (xseg_stack_frames(taken) > XSEG_STACK_FRAMES_MAX)
        taken = XSEG_STACK_FRAMES_MAX | XSEG_STACK_TRUNCATED;
    const uint32_t hash = (uint32_t)xseg_hash_words(frames, xseg_stack_frames(taken), taken);
    const struct stack *stack = find(depot, frames, taken, hash);

    if (__builtin_expect(stack != NULL, 1))
        return stack->id;
    struct wanted wanted = {depot, frames, taken, hash, 0};
    return add_slowly(&wanted);
}

/* --- Reading. --- */

bool xseg_stack_depot_get(const struct xseg_stack_depot *depot, uint32_t id,
                          struct xseg_stack_view *out)
{
    const struct stack *stack = stack_of(depot, id);

    if (stack == NULL)
        return false;
    out->frames = stack->frames;
    out->count = xseg_stack_frames(stack->taken);
    out->was_cut = xseg_stack_is_truncated(stack->taken);
    return true;
}

/* The record of a frame of a stack; NULL if there is no such stack or frame. */
static const struct xseg_frame *frame_of(const struct xseg_stack_depot *depot, uint32_t id,
                                         uint32_t index)
{
    const struct stack *stack = stack_of(depot, id);

    if (stack == NULL || index >= xseg_stack_frames(stack->taken))
        return NULL;
    const void *pc = stack->frames[index];
    const struct xseg_frame *frame =
        xseg_frames_find(&depot->frames, pc, placement_on(stack->ground, pc));
    XSEG_ASSERT(frame != NULL);
    return frame;
}

bool xseg_stack_depot_frame(const struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                            struct xseg_stack_frame *out)
{
    const struct xseg_frame *frame = frame_of(depot, id, index);

    if (frame == NULL)
        return false;
    xseg_frames_read(&depot->frames, frame, out);
    return true;
}

void xseg_stack_depot_set_source(struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                                 const struct xseg_stack_source *source)
{
    const struct xseg_frame *frame = frame_of(depot, id, index);

    if (frame == NULL || frame->placement == NULL || xseg_fork_guard_is_child(&depot->guard))
        return;
    xseg_mutex_lock(&depot->lock);
    xseg_frames_set_source(&depot->frames, frame, source);
    xseg_mutex_unlock(&depot->lock);
}

static const char *name_of_file(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static void describe_frame(const struct xseg_stack_frame *frame, struct xseg_strbuf *text)
{
    if (frame->path != NULL)
        xseg_strbuf_printf(text, "%s+%#" PRIx64, name_of_file(frame->path), frame->offset);
    else
        xseg_strbuf_printf(text, "%p", frame->pc);
}

void xseg_stack_depot_describe(const struct xseg_stack_depot *depot, uint32_t id, unsigned skip,
                               unsigned max, struct xseg_strbuf *text)
{
    struct xseg_stack_frame frame;

    for (uint32_t i = 0; i < max && xseg_stack_depot_frame(depot, id, skip + i, &frame); i++) {
        xseg_strbuf_printf(text, i == 0 ? "" : " < ");
        describe_frame(&frame, text);
    }
}

size_t xseg_stack_depot_bytes(const struct xseg_stack_depot *depot)
{
    return xseg_bump_resident(&depot->memory);
}

uint32_t xseg_stack_depot_count(const struct xseg_stack_depot *depot)
{
    return (uint32_t)atomic_load_explicit(&depot->count, memory_order_acquire);
}

uint64_t xseg_stack_depot_lost(const struct xseg_stack_depot *depot)
{
    return atomic_load_explicit(&depot->lost, memory_order_relaxed);
}

/* --- The audit. --- */

struct look {
    const struct xseg_stack_depot *depot;
    uint32_t wrong; /* handle of a ground whose word about itself is wrong; 0: none */
};

static void compare_ground(void *context, uint32_t handle)
{
    struct look *look = context;
    const struct xseg_stack_mapping_set *ground = xseg_bump_at(&look->depot->memory, handle);

    if (is_gone(ground) != lacks_placement(ground))
        look->wrong = handle;
}

static bool audit_stack(const struct xseg_stack_depot *depot, uint32_t id,
                        struct xseg_violation *violation)
{
    const struct stack *stack = stack_of(depot, id);
    const uint32_t count = xseg_stack_frames(stack->taken);

    XSEG_INVARIANT(violation, "DEPOT-1", stack->id == id, "stack %" PRIu32 " says it is %" PRIu32,
                   id, stack->id);
    const struct stack *found = find(depot, stack->frames, stack->taken,
                                     (uint32_t)xseg_hash_words(stack->frames, count, stack->taken));
    XSEG_INVARIANT(violation, "DEPOT-2",
                   is_gone(stack->ground)
                       ? found != stack
                       : found == stack || (found != NULL && found->ground != stack->ground),
                   "stack %" PRIu32 " leads to %" PRIu32, id, found != NULL ? found->id : 0);
    for (uint32_t i = 0; i < count; i++)
        XSEG_INVARIANT(violation, "DEPOT-3",
                       xseg_frames_find(&depot->frames, stack->frames[i],
                                        placement_on(stack->ground, stack->frames[i])) != NULL,
                       "frame %" PRIu32 " of stack %" PRIu32 " has no record", i, id);
    return true;
}

static bool audit_held(struct xseg_stack_depot *depot, struct xseg_violation *violation)
{
    struct look look = {depot, 0};

    if (!xseg_bump_audit(&depot->memory, violation) ||
        !xseg_modules_audit(&depot->modules, violation) ||
        !xseg_frames_audit(&depot->frames, violation) ||
        !xseg_intern_table_audit(&depot->stacks, violation) ||
        !xseg_intern_table_audit(&depot->grounds, violation))
        return false;
    for (uint32_t id = 1; id <= xseg_stack_depot_count(depot); id++)
        if (!audit_stack(depot, id, violation))
            return false;
    xseg_intern_table_for_each(&depot->grounds, compare_ground, &look);
    XSEG_INVARIANT(violation, "DEPOT-4", look.wrong == 0, "ground %" PRIu32, look.wrong);
    return true;
}

bool xseg_stack_depot_audit(struct xseg_stack_depot *depot, struct xseg_violation *violation)
{
    xseg_mutex_lock(&depot->lock);
    const bool holds = audit_held(depot, violation);
    xseg_mutex_unlock(&depot->lock);
    return holds;
}
