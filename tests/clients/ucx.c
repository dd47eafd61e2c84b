/* SPDX-License-Identifier: MIT */
/*
 * UCX with memory of xseg, and the simulated driver as libcuda.so.1: the properties that UCX detects of a block, its
 * registration, and a transfer of data.  ucx.py compiles this file with UCX's headers.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

#include "xseg/xseg.h"

#define MIB  ((size_t)1 << 20)
#define SENT (3 * MIB + 17)

static _Noreturn void fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
    exit(1);
}

#define EXPECT(condition)                                             \
    do {                                                              \
        if (!(condition))                                             \
            fail("%s:%d: false: %s", __FILE__, __LINE__, #condition); \
    } while (0)

static void expect_ucs(ucs_status_t status, const char *call)
{
    if (status != UCS_OK)
        fail("%s: %s", call, ucs_status_string(status));
}

static void expect_xseg(xseg_status status)
{
    char text[1024] = "";

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    fail("xseg: %s", text);
}

/* --- Driver calls, declared without the driver's header. --- */

static int (*memset_device)(unsigned long long address, unsigned char value, size_t bytes);
static int (*copy_from_device)(void *to, unsigned long long from, size_t bytes);

static void *driver_function(const char *name)
{
    void *function = dlsym(RTLD_DEFAULT, name);

    if (function == NULL)
        fail("the driver has no %s", name);
    return function;
}

/* Initializes the driver, and makes the context current, because UCX queries the context of the thread. */
static void set_up_driver(void)
{
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
    void *context = NULL, *function;

    function = driver_function("cuInit");
    memcpy(&init, &function, sizeof(init));
    function = driver_function("cuDevicePrimaryCtxRetain");
    memcpy(&retain, &function, sizeof(retain));
    function = driver_function("cuCtxSetCurrent");
    memcpy(&set, &function, sizeof(set));
    function = driver_function("cuMemsetD8_v2");
    memcpy(&memset_device, &function, sizeof(memset_device));
    function = driver_function("cuMemcpyDtoH_v2");
    memcpy(&copy_from_device, &function, sizeof(copy_from_device));
    EXPECT(init(0) == 0 && retain(&context, 0) == 0 && set(context) == 0);
}

/* --- Properties that UCX detects. --- */

static uct_md_h open_domain(void)
{
    uct_component_h *components;
    uct_md_config_t *config;
    uct_md_h domain = NULL;
    unsigned count;

    expect_ucs(uct_query_components(&components, &count), "uct_query_components");
    for (unsigned i = 0; i < count && domain == NULL; i++) {
        uct_component_attr_t attributes = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};

        expect_ucs(uct_component_query(components[i], &attributes), "uct_component_query");
        if (strcmp(attributes.name, "cuda_cpy") != 0)
            continue;
        expect_ucs(uct_md_config_read(components[i], NULL, NULL, &config), "uct_md_config_read");
        expect_ucs(uct_md_open(components[i], "cuda_cpy", config, &domain), "uct_md_open");
        uct_config_release(config);
    }
    uct_release_component_list(components);
    if (domain == NULL)
        fail("UCX has no component cuda_cpy: its module for CUDA was not loaded");
    return domain;
}

/* Queries the properties that UCX uses to register memory with a network card. */
static uct_md_mem_attr_t query_block(uct_md_h domain, const void *block, size_t bytes)
{
    uct_md_mem_attr_t attributes = {
        .field_mask = UCT_MD_MEM_ATTR_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS |
                      UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH | UCT_MD_MEM_ATTR_FIELD_DMABUF_FD |
                      UCT_MD_MEM_ATTR_FIELD_DMABUF_OFFSET,
        .dmabuf_fd = UCT_DMABUF_FD_INVALID,
    };

    expect_ucs(uct_md_mem_query(domain, block, bytes, &attributes), "uct_md_mem_query");
    EXPECT(attributes.mem_type == UCS_MEMORY_TYPE_CUDA);
    (void)printf("ucx detects %zu MiB from byte %td on, %s\n", attributes.alloc_length / MIB,
                 (const char *)attributes.base_address - (const char *)block,
                 attributes.dmabuf_fd == UCT_DMABUF_FD_INVALID ? "no dma-buf" : "a dma-buf");
    if (attributes.dmabuf_fd != UCT_DMABUF_FD_INVALID)
        (void)close(attributes.dmabuf_fd);
    return attributes;
}

/* --- Registration and transfer. --- */

static void register_block(ucp_context_h context, void *block, size_t bytes)
{
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = block,
        .length = bytes,
        .memory_type = UCS_MEMORY_TYPE_CUDA,
    };
    ucp_mem_attr_t attributes = {.field_mask =
                                     UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    ucp_mem_h memory;
    void *key;
    size_t key_bytes;

    expect_ucs(ucp_mem_map(context, &params, &memory), "ucp_mem_map");
    expect_ucs(ucp_mem_query(memory, &attributes), "ucp_mem_query");
    EXPECT((char *)attributes.address <= (char *)block &&
           (char *)attributes.address + attributes.length >= (char *)block + bytes);
    expect_ucs(ucp_rkey_pack(context, memory, &key, &key_bytes), "ucp_rkey_pack");
    (void)printf("ucx registers %zu MiB, with a key of %zu bytes\n", attributes.length / MIB,
                 key_bytes);
    ucp_rkey_buffer_release(key);
    expect_ucs(ucp_mem_unmap(context, memory), "ucp_mem_unmap");
}

static void wait_for(ucp_worker_h worker, void *request, const char *call)
{
    if (request == NULL)
        return;
    if (UCS_PTR_IS_ERR(request))
        fail("%s: %s", call, ucs_status_string(UCS_PTR_STATUS(request)));
    while (ucp_request_check_status(request) == UCS_INPROGRESS)
        (void)ucp_worker_progress(worker);
    expect_ucs(ucp_request_check_status(request), call);
    ucp_request_free(request);
}

/* Copies between two blocks by a worker that is connected to itself. */
static void transfer(ucp_context_h context, char *from, char *to)
{
    const ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                               .thread_mode = UCS_THREAD_MODE_SINGLE};
    const ucp_request_param_t request_params = {.op_attr_mask = 0};
    ucp_ep_params_t endpoint_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_worker_h worker;
    ucp_address_t *address;
    ucp_ep_h endpoint;
    size_t length;
    unsigned char *data = malloc(SENT);

    EXPECT(data != NULL);
    expect_ucs(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
    expect_ucs(ucp_worker_get_address(worker, &address, &length), "ucp_worker_get_address");
    endpoint_params.address = address;
    expect_ucs(ucp_ep_create(worker, &endpoint_params, &endpoint), "ucp_ep_create");
    EXPECT(memset_device((uintptr_t)from, 0x5a, SENT) == 0);
    EXPECT(memset_device((uintptr_t)to, 0, SENT) == 0);
    void *received = ucp_tag_recv_nbx(worker, to, SENT, 7, UINT64_MAX, &request_params);
    void *sent = ucp_tag_send_nbx(endpoint, from, SENT, 7, &request_params);
    wait_for(worker, sent, "ucp_tag_send_nbx");
    wait_for(worker, received, "ucp_tag_recv_nbx");
    EXPECT(copy_from_device(data, (uintptr_t)to, SENT) == 0);
    for (size_t i = 0; i < SENT; i++)
        EXPECT(data[i] == 0x5a);
    (void)printf("ucx sends %zu bytes\n", (size_t)SENT);
    wait_for(worker, ucp_ep_close_nbx(endpoint, &request_params), "ucp_ep_close_nbx");
    ucp_worker_release_address(worker, address);
    ucp_worker_destroy(worker);
    free(data);
}

/* --- The program. --- */

static void *allocate(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes)
{
    struct xseg_request request = {sizeof(request)};
    void *block = NULL;

    request.bytes = bytes;
    request.pool = pool;
    expect_xseg(xseg_alloc_with(allocator, &request, &block));
    return block;
}

int main(void)
{
    struct xseg_pool_options options = {sizeof(options)};
    const ucp_params_t features = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                   .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA};
    struct xseg_allocator *allocator = NULL;
    struct xseg_pool *pool = NULL;
    ucp_context_h context;

    set_up_driver();
    expect_xseg(xseg_open("expandable_segments:True", NULL, &allocator));
    options.rdma = options.single_page = options.exportable = true;
    expect_xseg(xseg_pool_create(allocator, 0, &options, &pool));
    char *const paged_block = allocate(allocator, NULL, 200 * MIB);
    char *const single_page_block = allocate(allocator, pool, 200 * MIB);
    const uct_md_h domain = open_domain();

    /* In a block with pages of 20 MiB that are not RDMA capable, UCX detects only the first page. */
    uct_md_mem_attr_t attributes = query_block(domain, paged_block, 200 * MIB);
    EXPECT(attributes.alloc_length < 200 * MIB && attributes.dmabuf_fd == UCT_DMABUF_FD_INVALID);
    attributes = query_block(domain, single_page_block, 200 * MIB);
    EXPECT(attributes.base_address == single_page_block && attributes.alloc_length == 200 * MIB);
    EXPECT(attributes.dmabuf_fd != UCT_DMABUF_FD_INVALID && attributes.dmabuf_offset == 0);
    uct_md_close(domain);

    expect_ucs(ucp_init(&features, NULL, &context), "ucp_init");
    register_block(context, single_page_block, 200 * MIB);
    transfer(context, single_page_block, paged_block);
    transfer(context, paged_block + 100 * MIB, single_page_block + 100 * MIB);
    ucp_cleanup(context);
    expect_xseg(xseg_free(allocator, paged_block));
    expect_xseg(xseg_free(allocator, single_page_block));
    expect_xseg(xseg_pool_release(pool));
    expect_xseg(xseg_close(allocator));
    return 0;
}
