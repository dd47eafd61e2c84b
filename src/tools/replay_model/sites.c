/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/sites.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"

/* --- Kinds of frames. --- */

/* In ascending order of preference. */
enum frame_kind {
    FRAME_RUNTIME, /* starts threads, interprets, dispatches, or captures the stack; or a library's without a name */
    FRAME_LIBRARY,        /* a named function of PyTorch, CUDA or xseg */
    FRAME_MODULE,         /* the program's, without source */
    FRAME_SOURCE,         /* the program's, with source */
    FRAME_AUTOGRAD,       /* apply() of a node of PyTorch's backward graph */
    FRAME_PYTHON_LIBRARY, /* Python, of PyTorch or of Python's own library */
    FRAME_PYTHON,
};

struct slice {
    const char *text;
    size_t length;
};

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool has_suffix(const char *text, const char *suffix)
{
    const size_t length = strlen(text), suffix_length = strlen(suffix);

    return length >= suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

static bool has_any_prefix(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (has_prefix(text, *words))
            return true;
    return false;
}

static bool contains_any(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strstr(text, *words))
            return true;
    return false;
}

static bool slice_has_any_prefix(struct slice name, const char *const *words)
{
    for (; *words; words++)
        if (name.length >= strlen(*words) && has_prefix(name.text, *words))
            return true;
    return false;
}

/* Get whether a path contains a part, of which a `/` may be a `\\` in the path. */
static bool contains_part(const char *path, const char *part)
{
    for (; *path; path++) {
        size_t i = 0;

        while (part[i] && (part[i] == path[i] || (part[i] == '/' && path[i] == '\\')))
            i++;
        if (!part[i])
            return true;
    }
    return false;
}

static bool slice_contains(struct slice name, const char *word)
{
    return memmem(name.text, name.length, word, strlen(word)) != NULL;
}

/* Find the end of a parenthesized part of a demangled name, which begins at `at`. */
static const char *skip_parentheses(const char *at)
{
    size_t depth = 0;

    for (; *at; at++) {
        depth += *at == '(';
        depth -= *at == ')';
        if (depth == 0)
            return at + 1;
    }
    return at;
}

/*
 * Get the qualified name in a demangled function, without return type, parameters and suffixes:
 * "at::native::copy<int>" of "void at::native::copy<int>(at::Tensor const&) [clone .isra.0]".
 */
static struct slice get_qualified_name(const char *text)
{
    const char *first = text, *at = text;
    size_t depth = 0; /* of template arguments and braces */
    bool is_operator = false;

    while (*at) {
        if (depth == 0 && has_prefix(at, "operator") && (at == text || strchr(": ", at[-1]))) {
            is_operator = true; /* no return type follows: "my::T::operator at::Tensor" */
            at += strlen("operator");
            at += has_prefix(at, "()") ? 2 : strspn(at, "<>=!+-*/%&|^~,[]");
        } else if (has_prefix(at, "(anonymous namespace)") || has_prefix(at, "decltype(")) {
            at = skip_parentheses(strchr(at, '('));
        } else if (depth == 0 && (*at == '(' || has_prefix(at, " ["))) {
            break;
        } else {
            if (*at == '<' || *at == '{')
                depth++;
            else if (depth > 0 && (*at == '}' || (*at == '>' && at[-1] != '-')))
                depth--;
            else if (depth == 0 && *at == ' ' && !is_operator)
                first = at + 1;
            at++;
        }
    }
    return (struct slice){first, (size_t)(at - first)};
}

static bool is_python(const char *file)
{
    return has_suffix(file, ".py") || file[0] == '<';
}

/* Get whether a Python file belongs to Python's own library, or to a package that allocates for its callers. */
static bool is_python_library(const char *file)
{
    static const char *const packages[] = {"-packages/torch/", "-packages/xseg/", "/pytorch/torch/",
                                           "<frozen ", NULL};
    static const char *const standard[] = {"/lib/python3", "/lib64/python3", NULL};

    for (const char *const *package = packages; *package; package++)
        if (contains_part(file, *package))
            return true;
    return has_prefix(file, "torch/") ||
           (contains_any(file, standard) && !strstr(file, "-packages/"));
}

/* Get the last component of a path. */
static const char *get_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/*
 * Get whether a function belongs to CPython: by its module or source file, by a name of the C interface (`PyObject_Call`,
 * `_PyEval_EvalFrameDefault`), or, without a file, by a name of CPython's internal functions.
 */
static bool is_interpreter(const char *module, const char *file, struct slice name)
{
    static const char *const modules[] = {"libpython", "python3", NULL};
    static const char *const files[] = {"ython-3.", "ython3.", "/cpython/", NULL};
    static const char *const internal[] = {"builtin_",    "call_function",
                                           "cfunction_",  "context_run",
                                           "do_call_",    "function_code_fast",
                                           "gen_send_ex", "method_vectorcall",
                                           "object_va",   "partial_call",
                                           "pymain_",     "pyrun_",
                                           "run_eval_",   "run_mod",
                                           "slot_tp_",    "thread_run",
                                           "type_call",   "vectorcall_",
                                           NULL};
    const bool has_file = file[0] != '\0' && strcmp(file, "??") != 0;
    const size_t skip = name.length > 0 && name.text[0] == '_';

    if (has_any_prefix(get_base_name(module), modules) ||
        (contains_any(file, files) && !strstr(file, "-packages/") && !strstr(file, ".so")))
        return true;
    if (slice_contains(name, "::"))
        return false;
    if (!has_file && (slice_has_any_prefix(name, internal) ||
                      (name.length == 4 && has_prefix(name.text, "main"))))
        return true;
    return name.length > skip + 2 && has_prefix(name.text + skip, "Py") &&
           slice_contains(name, "_");
}

static bool is_any_of(struct slice name, const char *const *words)
{
    for (; *words; words++)
        if (strlen(*words) == name.length && memcmp(*words, name.text, name.length) == 0)
            return true;
    return false;
}

/* Get whether a function starts threads, interprets Python, schedules the backward graph, or captures the stack. */
static bool is_runtime(const char *module, const char *file, struct slice name)
{
    static const char *const functions[] = {
        "_start", "start_thread", "execute_native_thread_routine",
        "clone",  "__clone",      "torch::autograd::call_function",
        "clone3", "__clone3",     "torch::autograd::Node::operator()",
        NULL};
    static const char *const scopes[] = {"std::",
                                         "__gnu_cxx::",
                                         "__libc_start",
                                         "c10::ThreadPool::",
                                         "pybind11::",
                                         "torch::unwind::",
                                         "torch::CapturedTraceback::",
                                         "torch::autograd::Engine::",
                                         "torch::autograd::python::PythonEngine::",
                                         NULL};

    return is_any_of(name, functions) || slice_has_any_prefix(name, scopes) ||
           is_interpreter(module, file, name);
}

/* Get whether a function computes a gradient in PyTorch's backward graph: `torch::autograd::generated::MmBackward0::apply`. */
static bool is_autograd(struct slice name)
{
    static const char *const names[] = {"torch::autograd::", NULL};
    static const char apply[] = "::apply";
    const size_t tail = sizeof(apply) - 1;

    return name.length > tail && memcmp(name.text + name.length - tail, apply, tail) == 0 &&
           (slice_has_any_prefix(name, names) || slice_contains(name, "Backward"));
}

static bool is_library(const char *module, const char *file, struct slice name)
{
    static const char *const modules[] = {
        "libtorch",  "libc10",      "libcuda",    "libcudnn",    "libcublas",   "libcufft",
        "libcurand", "libcusolver", "libcuspa",   "libnv",       "libnccl",     "libc.",
        "libc-",     "libm.",       "libpthread", "libstdc++",   "libgcc_s",    "libgomp",
        "libunwind", "ld-linux",    "libtriton",  "libjemalloc", "libtcmalloc", NULL};
    static const char *const folders[] = {"/c10/",
                                          "/aten/src/",
                                          "/torch/csrc/",
                                          "libstdc++-v3/",
                                          "-packages/torch/",
                                          "-packages/nvidia/",
                                          "-packages/triton/",
                                          NULL};
    static const char *const relative[] = {"c10/",   "aten/src/",   "torch/csrc/", "./nptl/",
                                           "./csu/", "../sysdeps/", NULL};
    static const char *const names[] = {
        "c10::", "c10d::",     "at::", "torch::", "caffe2::", "xseg_",
        "cuMem", "cudaMalloc", "THP",  "nccl",    NULL};
    const char *base = get_base_name(module);

    /* The file of the PyTorch adapter is `torch-VERSION-xseg-VERSION.so`. */
    return has_any_prefix(base, modules) || (strstr(base, "xseg") && strstr(base, ".so")) ||
           contains_any(file, folders) || has_any_prefix(file, relative) ||
           slice_has_any_prefix(name, names);
}

static enum frame_kind get_frame_kind(const struct recording *recording, uint32_t number)
{
    const struct recording_frame *frame = &recording->frames[number];
    const char *file = recording_text(recording, frame->file);
    const char *module = frame->module ? recording_text(recording, frame->module) : file;
    const struct slice name = get_qualified_name(recording_text(recording, frame->name));

    if (is_python(file))
        return is_python_library(file) ? FRAME_PYTHON_LIBRARY : FRAME_PYTHON;
    if (is_autograd(name))
        return FRAME_AUTOGRAD;
    if (is_runtime(module, file, name))
        return FRAME_RUNTIME;
    if (is_library(module, file, name))
        return name.length > 0 && !has_prefix(name.text, "??") ? FRAME_LIBRARY : FRAME_RUNTIME;
    return sites_is_module(recording, number) ? FRAME_MODULE : FRAME_SOURCE;
}

/*
 * Find the position of the frame that is the site of a stack; frame 0 is the innermost.  Among functions of libraries the
 * outermost is the site, since it is the operation; the innermost is the allocator.
 *
 * Returns: stack->count if no frame can be a site
 */
static uint32_t find_site_position(const struct recording *recording,
                                   const struct recording_stack *stack, const uint8_t *kinds)
{
    const uint32_t *frames = recording->stack_frames + stack->first;
    uint32_t best = stack->count;

    for (uint32_t i = 0; i < stack->count; i++) {
        const uint8_t kind = kinds[frames[i]];
        const uint8_t best_kind = best < stack->count ? kinds[frames[best]] : FRAME_RUNTIME;

        if (kind > best_kind || (kind == FRAME_LIBRARY && best_kind == FRAME_LIBRARY))
            best = i;
    }
    return best;
}

/* Get whether --depth counts a frame as a caller of a site. */
static bool is_caller(enum frame_kind site, enum frame_kind caller)
{
    return caller >= (site >= FRAME_PYTHON_LIBRARY ? site : FRAME_LIBRARY);
}

/* --- Sites by their frames. --- */

static bool is_site(const void *owner, uint32_t number, const void *frames, size_t bytes)
{
    const struct sites *sites = owner;
    const struct site *site = &sites->sites[number];

    return site->count * sizeof(*sites->frames) == bytes &&
           memcmp(sites->frames + site->first, frames, bytes) == 0;
}

/* Find or add the site of the `count` frames that append_frames() has written. */
static bool find_or_add_site(struct sites *sites, struct index *index, uint32_t count,
                             uint32_t *out)
{
    const uint32_t *frames = sites->frames + sites->frame_count;
    const size_t bytes = count * sizeof(*frames);
    const uint64_t hash = index_hash(frames, bytes);

    *out = index_find(index, hash, frames, bytes, is_site, sites);
    if (*out != INDEX_NONE)
        return true;
    sites->sites[sites->count] =
        (struct site){.first = (uint32_t)sites->frame_count, .count = count};
    sites->frame_count += count;
    *out = sites->count++;
    return index_add(index, hash, *out);
}

/* Copy the frames of a stack's site to the end of sites->frames, where find_or_add_site() keeps the frames of a new site.
 * Returns the number of frames. */
static uint32_t append_frames(struct sites *sites, const struct recording_stack *stack,
                              const uint8_t *kinds, const uint32_t *representatives, uint32_t depth)
{
    const uint32_t *source = sites->recording->stack_frames + stack->first;
    uint32_t *target = sites->frames + sites->frame_count, count = 0, first;

    if (sites->by == SITES_BY_STACK) {
        memcpy(target, source, stack->count * sizeof(*target));
        return stack->count;
    }
    first = find_site_position(sites->recording, stack, kinds);
    for (uint32_t i = first; i < stack->count && count < depth; i++)
        if (i == first || is_caller(kinds[source[first]], kinds[source[i]]))
            target[count++] = representatives[source[i]];
    return count;
}

static bool find_sites(struct sites *sites, struct index *index, const uint8_t *kinds,
                       const uint32_t *representatives, uint32_t depth)
{
    for (size_t i = 0; i < sites->recording->stack_count; i++) {
        const uint32_t count =
            append_frames(sites, &sites->recording->stacks[i], kinds, representatives, depth);

        if (count > 0 && !find_or_add_site(sites, index, count, &sites->of_stack[i]))
            return false;
    }
    return true;
}

static bool is_function(const void *owner, uint32_t number, const void *name, size_t bytes)
{
    const struct recording *recording = owner;
    const struct slice function =
        get_qualified_name(recording_text(recording, recording->frames[number].name));

    return function.length == bytes && memcmp(function.text, name, bytes) == 0;
}

/* Set the kind of each frame, and the frame that represents it in sites: a function of a library has one frame per
 * call in it, and is one site. */
static bool classify_frames(const struct recording *recording, uint8_t *kinds,
                            uint32_t *representatives)
{
    struct index functions = {0};
    bool success = true;

    for (uint32_t i = 0; success && i < recording->frame_count; i++) {
        kinds[i] = (uint8_t)get_frame_kind(recording, i);
        representatives[i] = i;
        if (kinds[i] == FRAME_LIBRARY || kinds[i] == FRAME_AUTOGRAD) {
            const struct slice name =
                get_qualified_name(recording_text(recording, recording->frames[i].name));
            const uint64_t hash = index_hash(name.text, name.length);

            representatives[i] =
                index_find(&functions, hash, name.text, name.length, is_function, recording);
            if (representatives[i] == INDEX_NONE) {
                representatives[i] = i;
                success = index_add(&functions, hash, i);
            }
        }
    }
    index_fini(&functions);
    return success;
}

static bool make_stack_sites(struct sites *sites, uint32_t depth)
{
    const struct recording *recording = sites->recording;
    struct index index = {0};
    uint8_t *kinds = malloc(recording->frame_count + 1);
    uint32_t *representatives = malloc((recording->frame_count + 1) * sizeof(*representatives));
    size_t frames = 0;
    bool success;

    for (size_t i = 0; i < recording->stack_count; i++)
        frames += recording->stacks[i].count;
    sites->frames = malloc((frames + 1) * sizeof(*sites->frames));
    sites->sites = calloc(recording->stack_count + 2, sizeof(*sites->sites));
    sites->of_stack = calloc(recording->stack_count + 1, sizeof(*sites->of_stack));
    success = kinds && representatives && sites->frames && sites->sites && sites->of_stack &&
              classify_frames(recording, kinds, representatives) &&
              find_sites(sites, &index, kinds, representatives, depth);
    index_fini(&index);
    free(kinds);
    free(representatives);
    return success;
}

/* --- Sites by label. --- */

const char *sites_noun(enum sites_by by)
{
    static const char *const nouns[SITES_KINDS] = {
        [SITES_BY_FRAME] = "site",  [SITES_BY_STACK] = "stack",
        [SITES_BY_LABEL] = "label", [SITES_BY_REGION] = "compiled region",
        [SITES_BY_STEP] = "step",   [SITES_BY_STAGE] = "stage",
    };

    return nouns[by];
}

uint32_t sites_label(const struct recording_context *context, enum sites_by by)
{
    switch (by) {
    case SITES_BY_LABEL:
        return context->label;
    case SITES_BY_REGION:
        return context->region;
    case SITES_BY_STEP:
        return context->step;
    case SITES_BY_STAGE:
        return context->stage;
    case SITES_BY_FRAME:
    case SITES_BY_STACK:
        break;
    }
    return 0;
}

static void add_label(struct sites *sites, const struct recording_event *event)
{
    const uint32_t label = sites_label(&sites->recording->contexts[event->context], sites->by);

    if (label == 0 || sites->of_label[label] != 0)
        return;
    sites->of_label[label] = sites->count;
    sites->sites[sites->count++] = (struct site){.label = label};
}

static bool make_label_sites(struct sites *sites)
{
    const struct recording *recording = sites->recording;

    sites->of_label = calloc(recording->text_count + 1, sizeof(*sites->of_label));
    sites->sites = calloc(recording->text_count + 2, sizeof(*sites->sites));
    if (!sites->of_label || !sites->sites)
        return false;
    for (size_t i = 0; i < recording->device_count; i++)
        for (size_t at = 0; at < recording->devices[i].event_count; at++)
            add_label(sites, &recording->devices[i].events[at]);
    for (size_t at = 0; at < recording->host.event_count; at++)
        add_label(sites, &recording->host.events[at]);
    return true;
}

bool sites_init(struct sites *sites, const struct recording *recording, enum sites_by by,
                uint32_t depth)
{
    memset(sites, 0, sizeof(*sites));
    sites->recording = recording;
    sites->by = by;
    sites->count = 2;
    if (sites_are_labels(by) ? make_label_sites(sites) : make_stack_sites(sites, depth))
        return true;
    sites_fini(sites);
    return false;
}

void sites_fini(struct sites *sites)
{
    free(sites->sites);
    free(sites->frames);
    free(sites->of_stack);
    free(sites->of_label);
    memset(sites, 0, sizeof(*sites));
}

uint32_t sites_of(const void *self, const struct replay_model_block *block)
{
    const struct sites *sites = self;
    const struct recording_context *context = &sites->recording->contexts[block->context];
    const uint32_t site = sites_are_labels(sites->by)
                              ? sites->of_label[sites_label(context, sites->by)]
                              : sites->of_stack[block->stack];

    return site == SITES_UNKNOWN && block->is_older ? SITES_OLDER : site;
}

/* --- Names. --- */

bool sites_is_module(const struct recording *recording, uint32_t number)
{
    const struct recording_frame *frame = &recording->frames[number];

    return frame->build_id != 0 || strstr(recording_text(recording, frame->file), ".so") != NULL;
}

char *sites_frame_name(const struct recording *recording, uint32_t number)
{
    const struct recording_frame *frame = &recording->frames[number];
    const char *name = recording_text(recording, frame->name);
    const char *file = recording_text(recording, frame->file);
    char *text = NULL;
    int length;

    if (sites_is_module(recording, number))
        length = asprintf(&text, "%s (%s+0x%" PRIx64 ")", name, file, frame->line);
    else if (file[0] == '\0')
        length = asprintf(&text, "%s", name[0] ? name : "??");
    else
        length = asprintf(&text, "%s:%" PRIu64 "%s%s", file, frame->line, name[0] ? " " : "", name);
    return length < 0 ? NULL : text;
}

/* Get "MmBackward0" of "torch::autograd::generated::MmBackward0::apply". */
static struct slice get_node_name(struct slice name)
{
    const char *arguments = memchr(name.text, '<', name.length);
    const char *end = name.text + name.length - strlen("::apply");
    const char *first = name.text, *scope;

    if (!arguments || arguments > end)
        arguments = end;
    while ((scope = memmem(first, (size_t)(arguments - first), "::", 2)))
        first = scope + 2;
    return (struct slice){first, (size_t)(end - first)};
}

/* Name a frame of a site: only by the function, for a library's function and a node of the backward graph. */
static char *get_site_frame_name(const struct recording *recording, uint32_t number)
{
    const enum frame_kind kind = get_frame_kind(recording, number);
    struct slice name =
        get_qualified_name(recording_text(recording, recording->frames[number].name));
    char *text = NULL;

    if (kind == FRAME_AUTOGRAD) {
        name = get_node_name(name);
        return asprintf(&text, "backward pass: %.*s", (int)name.length, name.text) < 0 ? NULL
                                                                                       : text;
    }
    return kind == FRAME_LIBRARY ? strndup(name.text, name.length)
                                 : sites_frame_name(recording, number);
}

static char *join_frame_names(const struct sites *sites, const struct site *site)
{
    char *name = NULL;

    for (uint32_t i = 0; i < site->count; i++) {
        char *frame = get_site_frame_name(sites->recording, sites->frames[site->first + i]);
        char *joined = NULL;

        if (!frame || asprintf(&joined, "%s%s%s", name ? name : "", name ? " < " : "", frame) < 0)
            joined = NULL;
        free(frame);
        free(name);
        if (!joined)
            return NULL;
        name = joined;
    }
    return name;
}

char *sites_name(const struct sites *sites, uint32_t number)
{
    const struct site *site = &sites->sites[number];

    if (number == SITES_OLDER)
        return strdup("(allocated before the recording began)");
    if (number == SITES_UNKNOWN) {
        char *name = NULL;
        const enum sites_by by = sites->by == SITES_BY_FRAME ? SITES_BY_STACK : sites->by;

        return asprintf(&name, "(no %s)", sites_noun(by)) < 0 ? NULL : name;
    }
    if (sites_are_labels(sites->by))
        return strdup(recording_text(sites->recording, site->label));
    return join_frame_names(sites, site);
}
