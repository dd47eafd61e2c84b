/* SPDX-License-Identifier: MIT */
#include "xseg/ipc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IPC_EXPORT __attribute__((visibility("default")))

/* Error codes, whose values are equal in the runtime and in the driver. */
enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    MAP_FAILED = 205,
    SYMBOL_NOT_FOUND = 302,
    INVALID_HANDLE = 400,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
};

/* cudaIpcMemLazyEnablePeerAccess, the only flag, which CUDA requires. */
#define LAZY_PEER_ACCESS 1u

/* The layout of cudaIpcMemHandle_t and CUipcMemHandle, which are passed by value. */
struct ipc_handle {
    unsigned char bytes[XSEG_EXPORT_TOKEN_SIZE];
};

/* In the driver, an address has the type CUdeviceptr, an integer of the size of a pointer. */
IPC_EXPORT int cudaIpcGetMemHandle(struct ipc_handle *handle, void *ptr);
IPC_EXPORT int cudaIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags);
IPC_EXPORT int cudaIpcCloseMemHandle(void *ptr);
IPC_EXPORT int cuIpcGetMemHandle(struct ipc_handle *handle, void *ptr);
IPC_EXPORT int cuIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags);
IPC_EXPORT int cuIpcOpenMemHandle_v2(void **out, struct ipc_handle handle, unsigned flags);
IPC_EXPORT int cuIpcCloseMemHandle(void *ptr);

/* --- Original functions. --- */

/* The functions of a runtime or of a driver; NULL: not found. */
struct originals {
    int (*get)(struct ipc_handle *handle, void *ptr);
    int (*open)(void **out, struct ipc_handle handle, unsigned flags);
    int (*close)(void *ptr);
    int (*current_device)(int *device);
    int (*synchronize)(void);
};

#define LIBRARIES 4

/* Find a function after this library in the load order, else in a loaded library of these names. */
static void *find_function(const char *symbol, const char *const libraries[LIBRARIES])
{
    void *function = dlsym(RTLD_NEXT, symbol);

    for (size_t i = 0; i < LIBRARIES && function == NULL; i++) {
        void *library = libraries[i] != NULL ? dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;

        function = library != NULL ? dlsym(library, symbol) : NULL;
        if (library != NULL)
            (void)dlclose(library); /* it stays loaded, because the program uses it */
    }
    return function;
}

/* symbols: the names of the members, in their order */
static struct originals find_originals(const char *const symbols[5],
                                       const char *const libraries[LIBRARIES])
{
    void *functions[5];
    struct originals found;

    for (size_t i = 0; i < 5; i++)
        functions[i] = find_function(symbols[i], libraries);
    _Static_assert(sizeof(found) == sizeof(functions), "five functions");
    memcpy(&found, functions, sizeof(found)); /* C has no cast for this */
    return found;
}

static struct originals find_runtime(void)
{
    static const char *const symbols[] = {"cudaIpcGetMemHandle", "cudaIpcOpenMemHandle",
                                          "cudaIpcCloseMemHandle", "cudaGetDevice",
                                          "cudaDeviceSynchronize"};
    static const char *const libraries[LIBRARIES] = {"libcudart.so.13", "libcudart.so.12",
                                                     "libcudart.so.11.0", "libcudart.so"};

    return find_originals(symbols, libraries);
}

static struct originals find_driver(void)
{
    static const char *const symbols[] = {"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2",
                                          "cuIpcCloseMemHandle", "cuCtxGetDevice",
                                          "cuCtxSynchronize"};
    const char *const libraries[LIBRARIES] = {secure_getenv("XSEG_DRIVER"), "libcuda.so.1",
                                              "libcuda.so"};

    return find_originals(symbols, libraries);
}

/* --- The attached allocator. --- */

static struct {
    pthread_rwlock_t lock;            /* guards the other members; held for reading during calls */
    struct xseg_allocator *allocator; /* NULL: none */
    struct xseg_ipc_functions functions;
} attached = {.lock = PTHREAD_RWLOCK_INITIALIZER};

bool xseg_ipc_attach(struct xseg_allocator *allocator, const struct xseg_ipc_functions *functions)
{
    (void)pthread_rwlock_wrlock(&attached.lock);
    const bool is_free = attached.allocator == NULL && functions->struct_size == sizeof(*functions);
    if (is_free) {
        attached.allocator = allocator;
        attached.functions = *functions;
    }
    (void)pthread_rwlock_unlock(&attached.lock);
    return is_free;
}

void xseg_ipc_detach(void)
{
    (void)pthread_rwlock_wrlock(&attached.lock);
    attached.allocator = NULL;
    (void)pthread_rwlock_unlock(&attached.lock);
}

/* Write a log line with the message of the last error, and convert its status. */
static int fail(const char *operation, xseg_status status)
{
    char text[512] = "";

    (void)attached.functions.error_message(text, sizeof(text));
    (void)fprintf(stderr, "xseg: %s: %s\n", operation, text);
    switch (status) {
    case XSEG_ERR_HOST_MEMORY:
    case XSEG_ERR_NO_MEMORY:
    case XSEG_ERR_NO_ADDRESSES:
        return OUT_OF_MEMORY;
    case XSEG_ERR_ARGUMENT:
        return INVALID_HANDLE;
    case XSEG_ERR_UNSUPPORTED:
        return NOT_SUPPORTED;
    case XSEG_ERR_BUSY:
        return CAPTURE_UNSUPPORTED;
    default:
        return MAP_FAILED;
    }
}

/* Whether an address is expandable memory of the attached allocator.  The lock is held. */
static bool is_expandable(const void *ptr)
{
    struct xseg_block_info block = {sizeof(block)};

    return attached.allocator != NULL &&
           attached.functions.block_query(attached.allocator, ptr, &block) == XSEG_OK &&
           block.is_expandable;
}

/* Whether a handle is a token. */
static bool is_token(const struct ipc_handle *handle)
{
    return memcmp(handle->bytes, "xseg", 4) == 0;
}

/* --- Get. --- */

/* Get the handle of expandable memory.  Returns false if the original function serves the call. */
static bool get_token(const char *operation, struct ipc_handle *handle, const void *ptr,
                      int *result)
{
    struct xseg_export_token token;

    if (handle == NULL || ptr == NULL)
        return false;
    (void)pthread_rwlock_rdlock(&attached.lock);
    const bool is_served = is_expandable(ptr);
    if (is_served) {
        const xseg_status status =
            attached.functions.export_segment(attached.allocator, ptr, &token);

        *result = status == XSEG_OK ? 0 : fail(operation, status);
        if (status == XSEG_OK)
            memcpy(handle->bytes, token.byte, sizeof(handle->bytes));
    }
    (void)pthread_rwlock_unlock(&attached.lock);
    return is_served;
}

static int get(const char *operation, struct originals (*find)(void), struct ipc_handle *handle,
               void *ptr)
{
    int result = SYMBOL_NOT_FOUND;

    if (get_token(operation, handle, ptr, &result))
        return result;
    const struct originals original = find();
    return original.get != NULL ? original.get(handle, ptr) : SYMBOL_NOT_FOUND;
}

/* --- Imported addresses. --- */

/* An address that an open returned. */
struct opened {
    struct opened *next;
    void *ptr;
    unsigned count;
};

static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER; /* locked after attached.lock */
static struct opened *all_opened;

static struct opened **find_opened(const void *ptr)
{
    struct opened **at = &all_opened;

    while (*at != NULL && (*at)->ptr != ptr)
        at = &(*at)->next;
    return at;
}

/* Count an open.  Returns false without host memory. */
static bool add_opened(void *ptr)
{
    (void)pthread_mutex_lock(&opened_lock);
    struct opened **at = find_opened(ptr);
    if (*at == NULL) {
        *at = calloc(1, sizeof(**at));
        if (*at != NULL)
            (*at)->ptr = ptr;
    }
    const bool is_added = *at != NULL;
    if (is_added)
        (*at)->count++;
    (void)pthread_mutex_unlock(&opened_lock);
    return is_added;
}

/* Whether an address has more opens than closes. */
static bool is_opened(const void *ptr)
{
    (void)pthread_mutex_lock(&opened_lock);
    const bool result = *find_opened(ptr) != NULL;
    (void)pthread_mutex_unlock(&opened_lock);
    return result;
}

static void remove_opened(const void *ptr)
{
    (void)pthread_mutex_lock(&opened_lock);
    struct opened **at = find_opened(ptr), *found = *at;
    if (found != NULL && --found->count == 0) {
        *at = found->next;
        free(found);
    }
    (void)pthread_mutex_unlock(&opened_lock);
}

/* --- Open. --- */

static int import_token(const char *operation, const struct originals *original, void **out,
                        const struct ipc_handle *handle)
{
    struct xseg_export_token token;
    int device = 0, result = original->current_device != NULL ? original->current_device(&device)
                                                              : SYMBOL_NOT_FOUND;

    if (result != 0)
        return result;
    memcpy(token.byte, handle->bytes, sizeof(token.byte));
    const xseg_status status = attached.functions.import(attached.allocator, device, &token, out);
    if (status != XSEG_OK)
        return fail(operation, status);
    if (add_opened(*out))
        return 0;
    (void)attached.functions.import_close(attached.allocator, *out);
    (void)fprintf(stderr, "xseg: %s: out of host memory, record of the open\n", operation);
    return OUT_OF_MEMORY;
}

static int open_handle(const char *operation, struct originals (*find)(void), void **out,
                       const struct ipc_handle *handle, unsigned flags)
{
    const struct originals original = find();
    int result;

    if (!is_token(handle))
        return original.open != NULL ? original.open(out, *handle, flags) : SYMBOL_NOT_FOUND;
    if (out == NULL || flags != LAZY_PEER_ACCESS)
        return INVALID_VALUE;
    (void)pthread_rwlock_rdlock(&attached.lock);
    if (attached.allocator != NULL) {
        result = import_token(operation, &original, out, handle);
    } else {
        (void)fprintf(stderr,
                      "xseg: %s: handle is of another process's xseg, but this process has no "
                      "allocator; run it on xseg as well, such as by xseg run\n",
                      operation);
        result = INVALID_HANDLE;
    }
    (void)pthread_rwlock_unlock(&attached.lock);
    return result;
}

/* --- Close. --- */

/* Close imported memory.  Returns false if the original function serves the call. */
static bool close_import(const char *operation, const struct originals *original, void *ptr,
                         int *result)
{
    (void)pthread_rwlock_rdlock(&attached.lock);
    /* Queued work may use the memory.  An error of earlier work, or an active capture, is the result. */
    const bool is_served = attached.allocator != NULL && is_opened(ptr);
    if (is_served)
        *result = original->synchronize != NULL ? original->synchronize() : SYMBOL_NOT_FOUND;
    if (is_served && *result == 0) {
        const xseg_status status = attached.functions.import_close(attached.allocator, ptr);

        if (status == XSEG_OK)
            remove_opened(ptr);
        else
            *result = fail(operation, status);
    }
    (void)pthread_rwlock_unlock(&attached.lock);
    return is_served;
}

static int close_handle(const char *operation, struct originals (*find)(void), void *ptr)
{
    const struct originals original = find();
    int result = SYMBOL_NOT_FOUND;

    if (close_import(operation, &original, ptr, &result))
        return result;
    return original.close != NULL ? original.close(ptr) : SYMBOL_NOT_FOUND;
}

/* --- Interposed functions. --- */

int cudaIpcGetMemHandle(struct ipc_handle *handle, void *ptr)
{
    return get(__func__, find_runtime, handle, ptr);
}

int cudaIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags)
{
    return open_handle(__func__, find_runtime, out, &handle, flags);
}

int cudaIpcCloseMemHandle(void *ptr)
{
    return close_handle(__func__, find_runtime, ptr);
}

int cuIpcGetMemHandle(struct ipc_handle *handle, void *ptr)
{
    return get(__func__, find_driver, handle, ptr);
}

int cuIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags)
{
    return open_handle(__func__, find_driver, out, &handle, flags);
}

int cuIpcOpenMemHandle_v2(void **out, struct ipc_handle handle, unsigned flags)
{
    return open_handle("cuIpcOpenMemHandle", find_driver, out, &handle, flags);
}

int cuIpcCloseMemHandle(void *ptr)
{
    return close_handle(__func__, find_driver, ptr);
}
