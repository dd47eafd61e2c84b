/* SPDX-License-Identifier: MIT */
#include "xseg/allocator.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/core/alloc/alloc.h"
#include "src/core/config/config.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "src/core/report/heap_copy.h"
#include "src/entry.h"
#include "xseg/observer.h"
#include "xseg/status.h"

/* Copy the options of the caller.  Members that the header of the caller does not have keep their
 * defaults. */
static struct xseg_options copy_options(const struct xseg_options *source)
{
    struct xseg_options options = {sizeof(options)};

    if (source != NULL)
        XSEG_ENTRY_COPY_IN(&options, source);
    return options;
}

xseg_status xseg_open(const char *config, const struct xseg_options *options,
                      struct xseg_allocator **out)
{
    XSEG_OPERATION(__func__);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    XSEG_ENTRY_IN(options, struct xseg_options, log_context);
    const struct xseg_options chosen = copy_options(options);
    const struct xseg_log log = {chosen.log, chosen.log_context};
    const struct xseg_clock clock = {chosen.clock, chosen.clock_context};
    return xseg_allocator_open(config, chosen.driver, &log, &clock, out);
}

xseg_status xseg_close(struct xseg_allocator *allocator)
{
    if (allocator == NULL)
        return XSEG_OK;
    XSEG_ENTRY(allocator);
    return xseg_allocator_close(allocator);
}

xseg_status xseg_config_set(struct xseg_allocator *allocator, const char *config)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(config != NULL, "config is NULL");
    return xseg_allocator_set_config(allocator, config);
}

xseg_status xseg_config_get(struct xseg_allocator *allocator, char *text, size_t bytes,
                            size_t *needed)
{
    struct xseg_strbuf builder;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(text != NULL || bytes == 0, "text is NULL, bytes %zu", bytes);
    xseg_strbuf_init(&builder, text, bytes);
    xseg_config_print(xseg_allocator_config(allocator), &builder);
    if (needed != NULL)
        *needed = builder.length + 1;
    return XSEG_OK;
}

const char *xseg_config_source(const struct xseg_allocator *allocator)
{
    return allocator == NULL ? "" : allocator->config_source;
}

xseg_status xseg_config_keys(const char *config, const char **source,
                             bool (*visit)(void *context, const struct xseg_config_key *key),
                             void *context)
{
    XSEG_OPERATION(__func__);
    struct xseg_config loaded;
    const char *loaded_source;
    uint64_t named;
    const xseg_status status = xseg_config_load(&loaded, config, &loaded_source, &named);

    if (status != XSEG_OK)
        return status;
    if (source != NULL)
        *source = loaded_source;
    if (visit != NULL)
        xseg_config_for_each_key(&loaded, named, visit, context);
    return XSEG_OK;
}

/* Fails for an argument that is NULL.  Not inlined, so that the two fast entry points save no
 * registers for it. */
static __attribute__((noinline, cold)) xseg_status reject_null(const char *name,
                                                               const char *argument)
{
    XSEG_OPERATION(name);
    return xseg_fail(XSEG_ERR_ARGUMENT, "%s is NULL", argument);
}

xseg_status xseg_alloc(struct xseg_allocator *allocator, int device, size_t bytes,
                       xseg_stream stream, void **out)
{
    if (__builtin_expect(allocator == NULL || out == NULL, 0))
        return reject_null("xseg_alloc", allocator == NULL ? "allocator" : "out");
    return xseg_hit_alloc(allocator, device, bytes, stream, out);
}

/* Copy the request of the caller.  Members that the header of the caller does not have keep their
 * defaults. */
static struct xseg_request copy_request(const struct xseg_request *source)
{
    struct xseg_request request = {sizeof(request)};

    if (__builtin_expect(source->struct_size == sizeof(request), 1))
        return *source;
    XSEG_ENTRY_COPY_IN(&request, source);
    return request;
}

xseg_status xseg_alloc_with(struct xseg_allocator *allocator, const struct xseg_request *request,
                            void **out)
{
    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(request != NULL, "request is NULL");
    XSEG_ENTRY_IN(request, struct xseg_request, alignment);
    const struct xseg_request chosen = copy_request(request);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    xseg_allocator_gather(allocator, chosen.user);
    return xseg_hit_alloc_request(allocator, &chosen, out);
}

xseg_status xseg_free(struct xseg_allocator *allocator, void *ptr)
{
    if (__builtin_expect(allocator == NULL, 0))
        return reject_null("xseg_free", "allocator");
    return xseg_hit_free(allocator, ptr);
}

xseg_status xseg_block_query(struct xseg_allocator *allocator, const void *anywhere,
                             struct xseg_block_info *out)
{
    struct xseg_block_info info = {sizeof(info)};

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_OUT(out);
    const xseg_status status = xseg_block_info_at(allocator, anywhere, &info);
    if (status != XSEG_OK)
        return status;
    XSEG_ENTRY_COPY_OUT(out, &info);
    return XSEG_OK;
}

xseg_status xseg_record_stream(struct xseg_allocator *allocator, void *ptr, xseg_stream stream)
{
    XSEG_ENTRY_CHECK(allocator);
    xseg_allocator_gather(allocator, NULL);
    return ptr == NULL ? XSEG_OK : xseg_allocator_record_stream(allocator, ptr, stream);
}

xseg_status xseg_free_after(struct xseg_allocator *allocator, void *ptr, const xseg_event *events,
                            size_t count)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(events != NULL || count == 0, "events is NULL, count %zu", count);
    return ptr == NULL ? XSEG_OK : xseg_allocator_free_after(allocator, ptr, events, count);
}

xseg_status xseg_stream_synchronized(struct xseg_allocator *allocator, int ordinal,
                                     xseg_stream stream)
{
    struct xseg_known_stream *known = NULL;
    struct xseg_device *device = NULL;

    XSEG_ENTRY(allocator);
    xseg_status status = xseg_allocator_device(allocator, ordinal, &device);
    if (status == XSEG_OK && xseg_streams_is_per_thread(stream))
        status = xseg_streams_find_or_add(&device->streams, stream, &known);
    else if (status == XSEG_OK)
        known = xseg_streams_find(&device->streams, stream);
    if (status == XSEG_OK && known != NULL)
        xseg_pending_stream_synchronized(device->pending, known);
    return status;
}

xseg_status xseg_stream_retire(struct xseg_allocator *allocator, int ordinal, xseg_stream stream)
{
    struct xseg_device *device = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(!xseg_streams_is_default(stream),
                       "stream is a default stream, %p; default streams are never destroyed",
                       (void *)stream);
    const xseg_status status = xseg_allocator_device(allocator, ordinal, &device);
    return status == XSEG_OK ? xseg_stream_retirement_begin(device, stream) : status;
}

/* --- Observers. --- */

xseg_status xseg_observer_add(struct xseg_allocator *allocator,
                              const struct xseg_observer *observer, uint64_t *id)
{
    struct xseg_observer chosen = {sizeof(chosen)};

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(observer != NULL && id != NULL, "%s is NULL",
                       observer == NULL ? "observer" : "id");
    XSEG_ENTRY_IN(observer, struct xseg_observer, on_map);
    XSEG_ENTRY_REQUIRE(observer->on_low_memory != NULL || observer->on_out_of_memory != NULL ||
                           observer->on_rejected != NULL || observer->on_trace != NULL ||
                           observer->on_unmap != NULL || observer->on_map != NULL,
                       "all callbacks of the observer are NULL; set at least one");
    XSEG_ENTRY_COPY_IN(&chosen, observer);
    return xseg_allocator_add_observer(allocator, &chosen, id);
}

xseg_status xseg_observer_remove(struct xseg_allocator *allocator, uint64_t id)
{
    XSEG_ENTRY(allocator);
    return xseg_allocator_remove_observer(allocator, id);
}

/* --- Status and error messages. --- */

const char *xseg_status_name(xseg_status status)
{
    switch (status) {
#define X(name, number, text) \
    case XSEG_##name:         \
        return text;
        XSEG_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

size_t xseg_error_message(char *text, size_t bytes)
{
    struct xseg_strbuf message;

    xseg_strbuf_init(&message, text, bytes);
    xseg_fail_print(&message);
    return message.length;
}
