/* SPDX-License-Identifier: MIT */
#include "src/base/stack_depot.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/hash_table.h"
#include "src/base/stack.h"

/* A stack; the members that a search compares come first. */
struct stack {
    uint32_t id;
    uint32_t captured; /* frames, with XSEG_STACK_TRUNCATED */
    const struct xseg_stack_mapping_set *set;
    void *frames[];
};

struct xseg_stack_mapping_set {
    uint32_t count;
    atomic_bool is_unloaded;
    const struct xseg_module_mapping *mappings[]; /* distinct, by address of the record */
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
    depot->new_set =
        xseg_bump_alloc(memory, sizeof(struct xseg_stack_mapping_set) +
                                    XSEG_STACK_FRAMES_MAX * sizeof(struct xseg_module_mapping *));
    xseg_modules_init(&depot->modules, memory);
    if (depot->new_set == NULL || !xseg_intern_table_init(&depot->stacks, memory) ||
        !xseg_frames_init(&depot->frames, memory) ||
        !xseg_intern_table_init(&depot->sets, memory)) {
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

/* A stack to be found or inserted. */
struct insertion {
    struct xseg_stack_depot *depot;
    void *const *frames;
    uint32_t captured, hash;
    uint32_t id; /* the result; 0 before */
};

static bool is_set_unloaded(const struct xseg_stack_mapping_set *set)
{
    return atomic_load_explicit(&set->is_unloaded, memory_order_relaxed);
}

/* Find the stack with these frames and a loaded set; NULL if there is none. */
static const struct stack *find_stack(const struct xseg_stack_depot *depot, void *const *frames,
                                      uint32_t captured, uint32_t hash)
{
    const size_t bytes = xseg_stack_frames(captured) * sizeof(*frames);
    struct xseg_intern_search search = xseg_intern_table_search(&depot->stacks, hash);

    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const struct stack *stack = xseg_bump_at(&depot->memory, handle);

        if (stack->captured == captured && memcmp(stack->frames, frames, bytes) == 0 &&
            !is_set_unloaded(stack->set))
            return stack;
    }
    return NULL;
}

/* --- Mapping sets. --- */

/* Add a mapping to the set of the stack that is inserted, unless the set contains it. */
static void add_to_set(struct xseg_stack_mapping_set *set,
                       const struct xseg_module_mapping *mapping)
{
    uint32_t index = set->count;

    for (uint32_t i = 0; i < set->count; i++)
        if (set->mappings[i] == mapping)
            return;
    for (; index > 0 && (uintptr_t)set->mappings[index - 1] > (uintptr_t)mapping; index--)
        set->mappings[index] = set->mappings[index - 1];
    set->mappings[index] = mapping;
    set->count++;
}

/* Find or add a set equal to `new_set`; NULL if the depot is full. */
static const struct xseg_stack_mapping_set *intern_set(struct xseg_stack_depot *depot)
{
    const struct xseg_stack_mapping_set *new_set = depot->new_set;
    const size_t mappings_bytes = new_set->count * sizeof(struct xseg_module_mapping *);
    const uint32_t hash = (uint32_t)xseg_hash_words(new_set->mappings, new_set->count, 0);
    struct xseg_intern_search search = xseg_intern_table_search(&depot->sets, hash);

    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const struct xseg_stack_mapping_set *set = xseg_bump_at(&depot->memory, handle);

        if (set->count == new_set->count &&
            memcmp(set->mappings, new_set->mappings, mappings_bytes) == 0)
            return set;
    }
    struct xseg_stack_mapping_set *set =
        xseg_bump_alloc(&depot->memory, sizeof(*set) + mappings_bytes);
    if (set == NULL)
        return NULL;
    set->count = new_set->count;
    memcpy(set->mappings, new_set->mappings, mappings_bytes);
    return xseg_intern_table_add(&depot->sets, &depot->memory, hash,
                                 xseg_bump_handle(&depot->memory, set))
               ? set
               : NULL;
}

/* Whether a mapping of the set is not loaded. */
static bool has_unloaded_mapping(const struct xseg_stack_mapping_set *set)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (!atomic_load_explicit(&set->mappings[i]->is_loaded, memory_order_relaxed))
            return true;
    return false;
}

static void update_set(void *context, uint32_t handle)
{
    const struct xseg_stack_depot *depot = context;
    struct xseg_stack_mapping_set *set = xseg_bump_at(&depot->memory, handle);

    atomic_store_explicit(&set->is_unloaded, has_unloaded_mapping(set), memory_order_relaxed);
}

/* The mapping of a set that contains a frame; NULL: none. */
static const struct xseg_module_mapping *
find_mapping_in_set(const struct xseg_stack_mapping_set *set, const void *pc)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (xseg_frames_call_address(pc) >= set->mappings[i]->start &&
            xseg_frames_call_address(pc) < set->mappings[i]->end)
            return set->mappings[i];
    return NULL;
}

/* --- Adding a stack. --- */

/* The list that contains an ID, and the index of the ID in the list. */
static unsigned locate_id(uint32_t id, uint32_t *index)
{
    const uint64_t position = (uint64_t)id - 1 + XSEG_STACK_DEPOT_FIRST;
    const unsigned list = xseg_log2_floor(position / XSEG_STACK_DEPOT_FIRST);

    *index = (uint32_t)(position - ((uint64_t)XSEG_STACK_DEPOT_FIRST << list));
    return list;
}

static struct stack *find_stack_by_id(const struct xseg_stack_depot *depot, uint32_t id)
{
    uint32_t index = 0;

    if (id == 0 || id > atomic_load_explicit(&depot->count, memory_order_acquire))
        return NULL;
    const unsigned list = locate_id(id, &index);
    return xseg_bump_at(&depot->memory,
                        atomic_load_explicit(&depot->list[list], memory_order_acquire)[index]);
}

/* Assign the next ID to a stack.  Returns false if the depot is full. */
static bool assign_id(struct xseg_stack_depot *depot, struct stack *stack)
{
    const uint32_t id = (uint32_t)atomic_load_explicit(&depot->count, memory_order_relaxed) + 1;
    uint32_t index = 0;
    const unsigned list = locate_id(id, &index);
    uint32_t *handles = atomic_load_explicit(&depot->list[list], memory_order_relaxed);

    XSEG_ASSERT(list < XSEG_STACK_DEPOT_LISTS);
    if (handles == NULL) {
        handles = xseg_bump_alloc(&depot->memory,
                                  ((size_t)XSEG_STACK_DEPOT_FIRST << list) * sizeof(*handles));
        if (handles == NULL)
            return false;
        atomic_store_explicit(&depot->list[list], handles, memory_order_release);
    }
    handles[index] = xseg_bump_handle(&depot->memory, stack);
    stack->id = id;
    return true;
}

/* Add records for all frames of a stack, and collect its mappings in `new_set`. */
static bool intern_frames(struct insertion *insertion)
{
    struct xseg_stack_depot *depot = insertion->depot;

    depot->new_set->count = 0;
    for (uint32_t i = 0; i < xseg_stack_frames(insertion->captured); i++) {
        const void *pc = insertion->frames[i];
        const struct xseg_module_mapping *mapping =
            xseg_modules_find(&depot->modules, xseg_frames_call_address(pc));

        if (mapping != NULL)
            add_to_set(depot->new_set, mapping);
        if (!xseg_frames_add(&depot->frames, pc, mapping))
            return false;
    }
    return true;
}

/* Insert a new stack.  If the depot is full, only frames and sets may have been added, which other stacks can use. */
static void insert_stack(struct insertion *insertion)
{
    struct xseg_stack_depot *depot = insertion->depot;
    const size_t bytes = xseg_stack_frames(insertion->captured) * sizeof(*insertion->frames);

    if (!intern_frames(insertion))
        return;
    const struct xseg_stack_mapping_set *set = intern_set(depot);
    struct stack *stack =
        set != NULL ? xseg_bump_alloc(&depot->memory, sizeof(*stack) + bytes) : NULL;
    if (stack == NULL || !xseg_intern_table_reserve(&depot->stacks, &depot->memory) ||
        !assign_id(depot, stack))
        return;
    stack->captured = insertion->captured;
    stack->set = set;
    memcpy(stack->frames, insertion->frames, bytes);
    /* A thread that finds the stack may immediately read it by ID. */
    atomic_store_explicit(&depot->count, stack->id, memory_order_release);
    const bool is_added = xseg_intern_table_add(&depot->stacks, &depot->memory, insertion->hash,
                                                xseg_bump_handle(&depot->memory, stack));

    XSEG_ASSERT(is_added);
    (void)is_added;
    insertion->id = stack->id;
}

/* Runs under the loader's lock: no module is loaded or unloaded during the call. */
static void find_or_insert_locked(void *context)
{
    struct insertion *insertion = context;
    struct xseg_stack_depot *depot = insertion->depot;

    if (depot->changes_at_update != depot->modules.changes)
        xseg_intern_table_for_each(&depot->sets, update_set, depot);
    depot->changes_at_update = depot->modules.changes;
    const struct stack *stack =
        find_stack(depot, insertion->frames, insertion->captured, insertion->hash);
    if (stack != NULL)
        insertion->id = stack->id;
    else
        insert_stack(insertion);
}

static __attribute__((noinline)) uint32_t find_or_insert(struct insertion *insertion)
{
    struct xseg_stack_depot *depot = insertion->depot;

    if (!atomic_load_explicit(&depot->memory.was_full, memory_order_relaxed) &&
        !xseg_fork_guard_is_child(&depot->guard)) {
        xseg_mutex_lock(&depot->lock);
        xseg_modules_call_locked(&depot->modules, find_or_insert_locked, insertion);
        xseg_mutex_unlock(&depot->lock);
#if XSEG_CHECKS >= 3
        if (xseg_is_power_of_two(insertion->id))
            XSEG_AUDIT(xseg_stack_depot_audit, depot);
#endif
    }
    if (insertion->id == 0)
        atomic_fetch_add_explicit(&depot->lost, 1, memory_order_relaxed);
    return insertion->id;
}

uint32_t xseg_stack_depot_add(struct xseg_stack_depot *depot, void *const *frames,
                              uint32_t captured)
{
    if (xseg_stack_frames(captured) == 0)
        return 0;
    if (xseg_stack_frames(captured) > XSEG_STACK_FRAMES_MAX)
        captured = XSEG_STACK_FRAMES_MAX | XSEG_STACK_TRUNCATED;
    const uint32_t hash = (uint32_t)xseg_hash_words(frames, xseg_stack_frames(captured), captured);
    const struct stack *stack = find_stack(depot, frames, captured, hash);

    if (__builtin_expect(stack != NULL, 1))
        return stack->id;
    struct insertion insertion = {depot, frames, captured, hash, 0};
    return find_or_insert(&insertion);
}

/* --- Reading. --- */

bool xseg_stack_depot_get(const struct xseg_stack_depot *depot, uint32_t id,
                          struct xseg_stack_view *out)
{
    const struct stack *stack = find_stack_by_id(depot, id);

    if (stack == NULL)
        return false;
    out->frames = stack->frames;
    out->count = xseg_stack_frames(stack->captured);
    out->is_truncated = xseg_stack_is_truncated(stack->captured);
    return true;
}

static const struct xseg_frame *find_frame_record(const struct xseg_stack_depot *depot, uint32_t id,
                                                  uint32_t index)
{
    const struct stack *stack = find_stack_by_id(depot, id);

    if (stack == NULL || index >= xseg_stack_frames(stack->captured))
        return NULL;
    const void *pc = stack->frames[index];
    const struct xseg_frame *frame =
        xseg_frames_find(&depot->frames, pc, find_mapping_in_set(stack->set, pc));
    XSEG_ASSERT(frame != NULL);
    return frame;
}

bool xseg_stack_depot_frame(const struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                            struct xseg_stack_frame *out)
{
    const struct xseg_frame *frame = find_frame_record(depot, id, index);

    if (frame == NULL)
        return false;
    xseg_frames_read(&depot->frames, frame, out);
    return true;
}

void xseg_stack_depot_set_source(struct xseg_stack_depot *depot, uint32_t id, uint32_t index,
                                 const struct xseg_stack_source *source)
{
    const struct xseg_frame *frame = find_frame_record(depot, id, index);

    if (frame == NULL || frame->mapping == NULL || xseg_fork_guard_is_child(&depot->guard))
        return;
    xseg_mutex_lock(&depot->lock);
    xseg_frames_set_source(&depot->frames, frame, source);
    xseg_mutex_unlock(&depot->lock);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static void describe_frame(const struct xseg_stack_frame *frame, struct xseg_strbuf *text)
{
    if (frame->path != NULL)
        xseg_strbuf_printf(text, "%s+%#" PRIx64, base_name(frame->path), frame->offset);
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

struct set_audit {
    const struct xseg_stack_depot *depot;
    uint32_t violator; /* handle of a set with a wrong `is_unloaded`; 0: none */
};

static void audit_set(void *context, uint32_t handle)
{
    struct set_audit *audit = context;
    const struct xseg_stack_mapping_set *set = xseg_bump_at(&audit->depot->memory, handle);

    if (is_set_unloaded(set) != has_unloaded_mapping(set))
        audit->violator = handle;
}

static bool audit_stack(const struct xseg_stack_depot *depot, uint32_t id,
                        struct xseg_violation *violation)
{
    const struct stack *stack = find_stack_by_id(depot, id);
    const uint32_t count = xseg_stack_frames(stack->captured);

    XSEG_INVARIANT(violation, "DEPOT-1", stack->id == id, "stack %" PRIu32 " has the ID %" PRIu32,
                   id, stack->id);
    const struct stack *found =
        find_stack(depot, stack->frames, stack->captured,
                   (uint32_t)xseg_hash_words(stack->frames, count, stack->captured));
    XSEG_INVARIANT(
        violation, "DEPOT-2",
        is_set_unloaded(stack->set) ? found != stack
                                    : found == stack || (found != NULL && found->set != stack->set),
        "a search for stack %" PRIu32 " finds %" PRIu32, id, found != NULL ? found->id : 0);
    for (uint32_t i = 0; i < count; i++)
        XSEG_INVARIANT(violation, "DEPOT-3",
                       xseg_frames_find(&depot->frames, stack->frames[i],
                                        find_mapping_in_set(stack->set, stack->frames[i])) != NULL,
                       "frame %" PRIu32 " of stack %" PRIu32 " has no record", i, id);
    return true;
}

static bool audit_locked(struct xseg_stack_depot *depot, struct xseg_violation *violation)
{
    struct set_audit audit = {depot, 0};

    if (!xseg_bump_audit(&depot->memory, violation) ||
        !xseg_modules_audit(&depot->modules, violation) ||
        !xseg_frames_audit(&depot->frames, violation) ||
        !xseg_intern_table_audit(&depot->stacks, violation) ||
        !xseg_intern_table_audit(&depot->sets, violation))
        return false;
    for (uint32_t id = 1; id <= xseg_stack_depot_count(depot); id++)
        if (!audit_stack(depot, id, violation))
            return false;
    xseg_intern_table_for_each(&depot->sets, audit_set, &audit);
    XSEG_INVARIANT(violation, "DEPOT-4", audit.violator == 0, "mapping set %" PRIu32,
                   audit.violator);
    return true;
}

bool xseg_stack_depot_audit(struct xseg_stack_depot *depot, struct xseg_violation *violation)
{
    xseg_mutex_lock(&depot->lock);
    const bool is_valid = audit_locked(depot, violation);
    xseg_mutex_unlock(&depot->lock);
    return is_valid;
}
