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
};

enum { ORIGINALS = 4 };

#define LIBRARIES 4

/* Find a function after this library in the load order, or else in a loaded library with one of the names. */
static void *find_function(const char *symbol, const char *const libraries[LIBRARIES])
{
    void *function = dlsym(RTLD_NEXT, symbol);

    for (size_t i = 0; i < LIBRARIES && function == NULL; i++) {
        void *library = libraries[i] != NULL ? dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;

        function = library != NULL ? dlsym(library, symbol) : NULL;
        if (library != NULL)
            (void)dlclose(library); /* the program's reference keeps it loaded */
    }
    return function;
}

/* symbols: the names of the members of struct originals, in their order */
static struct originals find_originals(const char *const symbols[ORIGINALS],
                                       const char *const libraries[LIBRARIES])
{
    void *functions[ORIGINALS];
    struct originals found;

    for (size_t i = 0; i < ORIGINALS; i++)
        functions[i] = find_function(symbols[i], libraries);
    _Static_assert(sizeof(found) == sizeof(functions), "one member per symbol");
    /* ISO C has no cast to a function pointer. */
    memcpy(&found, functions, sizeof(found));
    return found;
}

static struct originals find_runtime(void)
{
    static const char *const symbols[] = {"cudaIpcGetMemHandle", "cudaIpcOpenMemHandle",
                                          "cudaIpcCloseMemHandle", "cudaGetDevice"};
    static const char *const libraries[LIBRARIES] = {"libcudart.so.13", "libcudart.so.12",
                                                     "libcudart.so.11.0", "libcudart.so"};

    return find_originals(symbols, libraries);
}

/* The names of the driver's library, for find_function(). */
struct driver_libraries {
    const char *name[LIBRARIES];
};

static struct driver_libraries driver_libraries(void)
{
    return (struct driver_libraries){{secure_getenv("XSEG_DRIVER"), "libcuda.so.1", "libcuda.so"}};
}

static struct originals find_driver(void)
{
    static const char *const symbols[] = {"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2",
                                          "cuIpcCloseMemHandle", "cuCtxGetDevice"};
    const struct driver_libraries libraries = driver_libraries();

    return find_originals(symbols, libraries.name);
}

/* Wait for the work in the primary context of a device, which need not be current. */
static int synchronize_device(int device)
{
    static const char *const symbols[] = {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
                                          "cuCtxSynchronize", "cuCtxPopCurrent_v2",
                                          "cuDevicePrimaryCtxRelease_v2"};
    struct {
        int (*retain)(void **context, int device);
        int (*push)(void *context);
        int (*synchronize)(void);
        int (*pop)(void **context);
        int (*release)(int device);
    } driver;
    void *functions[sizeof(symbols) / sizeof(symbols[0])], *context = NULL;
    const struct driver_libraries libraries = driver_libraries();

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        functions[i] = find_function(symbols[i], libraries.name);
        if (functions[i] == NULL)
            return SYMBOL_NOT_FOUND;
    }
    _Static_assert(sizeof(driver) == sizeof(functions), "one member per symbol");
    /* ISO C has no cast to a function pointer. */
    memcpy(&driver, functions, sizeof(driver));
    int result = driver.retain(&context, device);
    if (result != 0)
        return result;
    result = driver.push(context);
    if (result == 0) {
        result = driver.synchronize();
        (void)driver.pop(&context);
    }
    (void)driver.release(device);
    return result;
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

/* Log the message of the last error, and convert its status to an error code of CUDA. */
static int report_failure(const char *operation, xseg_status status)
{
    char message[512] = "";

    (void)attached.functions.error_message(message, sizeof(message));
    (void)fprintf(stderr, "xseg: %s: %s\n", operation, message);
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

/* Get whether an address is in expandable memory of the attached allocator.  The caller holds attached.lock. */
static bool is_expandable(const void *ptr)
{
    struct xseg_block_info block = {sizeof(block)};

    return attached.allocator != NULL &&
           attached.functions.block_query(attached.allocator, ptr, &block) == XSEG_OK &&
           block.is_expandable;
}

/* Get whether a handle contains an export token of xseg. */
static bool is_token(const struct ipc_handle *handle)
{
    return memcmp(handle->bytes, "xseg", 4) == 0;
}

/* --- Get. --- */

/* Get the handle of expandable memory.  Returns false if the original function must serve the call. */
static bool get_token(const char *operation, struct ipc_handle *handle, const void *ptr,
                      int *result)
{
    struct xseg_export_token token;

    if (handle == NULL || ptr == NULL)
        return false;
    (void)pthread_rwlock_rdlock(&attached.lock);
    const bool is_exported = is_expandable(ptr);
    if (is_exported) {
        const xseg_status status =
            attached.functions.export_segment(attached.allocator, ptr, &token);

        *result = status == XSEG_OK ? 0 : report_failure(operation, status);
        if (status == XSEG_OK)
            memcpy(handle->bytes, token.byte, sizeof(handle->bytes));
    }
    (void)pthread_rwlock_unlock(&attached.lock);
    return is_exported;
}

static int get_handle(const char *operation, struct originals (*find_functions)(void),
                      struct ipc_handle *handle, void *ptr)
{
    int result = SYMBOL_NOT_FOUND;

    if (get_token(operation, handle, ptr, &result))
        return result;
    const struct originals original = find_functions();
    return original.get != NULL ? original.get(handle, ptr) : SYMBOL_NOT_FOUND;
}

/* --- Imported addresses. --- */

/* An address that an open returned. */
struct opened {
    struct opened *next;
    void *ptr;
    int device; /* current at the open */
    unsigned count;
};

static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER; /* locked after attached.lock */
static struct opened *all_opened;

static struct opened **find_opened(const void *ptr)
{
    struct opened **link = &all_opened;

    while (*link != NULL && (*link)->ptr != ptr)
        link = &(*link)->next;
    return link;
}

/* Count an open of an address.  Ownership of the record passes to the function. */
static void add_opened(void *ptr, int device, struct opened *record)
{
    (void)pthread_mutex_lock(&opened_lock);
    struct opened **link = find_opened(ptr);
    if (*link == NULL) {
        *record = (struct opened){.ptr = ptr, .device = device};
        *link = record;
    } else {
        free(record);
    }
    (*link)->count++;
    (void)pthread_mutex_unlock(&opened_lock);
}

/* Find the device of an opened address.  Returns false if every open of the address has been closed. */
static bool find_opened_device(const void *ptr, int *device)
{
    (void)pthread_mutex_lock(&opened_lock);
    const struct opened *found = *find_opened(ptr);
    if (found != NULL)
        *device = found->device;
    (void)pthread_mutex_unlock(&opened_lock);
    return found != NULL;
}

static void remove_opened(const void *ptr)
{
    (void)pthread_mutex_lock(&opened_lock);
    struct opened **link = find_opened(ptr), *found = *link;
    if (found != NULL && --found->count == 0) {
        *link = found->next;
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
    struct opened *record = malloc(sizeof(*record));
    if (record == NULL) {
        (void)fprintf(stderr, "xseg: %s: out of host memory, record of the open\n", operation);
        return OUT_OF_MEMORY;
    }
    memcpy(token.byte, handle->bytes, sizeof(token.byte));
    const xseg_status status = attached.functions.import(attached.allocator, device, &token, out);
    if (status != XSEG_OK) {
        free(record);
        return report_failure(operation, status);
    }
    add_opened(*out, device, record);
    return 0;
}

static int open_handle(const char *operation, struct originals (*find_functions)(void), void **out,
                       const struct ipc_handle *handle, unsigned flags)
{
    const struct originals original = find_functions();
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
                      "xseg: %s: handle was exported by xseg, but no allocator is attached in "
                      "this process; start the process by xseg run, and initialize CUDA first\n",
                      operation);
        result = INVALID_HANDLE;
    }
    (void)pthread_rwlock_unlock(&attached.lock);
    return result;
}

/* --- Close. --- */

/* Close imported memory.  Returns false if the original function must serve the call. */
static bool close_import(const char *operation, void *ptr, int *result)
{
    int device = 0;

    (void)pthread_rwlock_rdlock(&attached.lock);
    /* Wait, because queued work may use the memory.  The wait returns the error of earlier work or of an active capture. */
    const bool is_imported = attached.allocator != NULL && find_opened_device(ptr, &device);
    if (is_imported)
        *result = synchronize_device(device);
    if (is_imported && *result == 0) {
        const xseg_status status = attached.functions.import_close(attached.allocator, ptr);

        if (status == XSEG_OK)
            remove_opened(ptr);
        else
            *result = report_failure(operation, status);
    }
    (void)pthread_rwlock_unlock(&attached.lock);
    return is_imported;
}

static int close_handle(const char *operation, struct originals (*find_functions)(void), void *ptr)
{
    int result = SYMBOL_NOT_FOUND;

    if (close_import(operation, ptr, &result))
        return result;
    const struct originals original = find_functions();
    return original.close != NULL ? original.close(ptr) : SYMBOL_NOT_FOUND;
}

/* --- Interposed functions. --- */

int cudaIpcGetMemHandle(struct ipc_handle *handle, void *ptr)
{
    return get_handle(__func__, find_runtime, handle, ptr);
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
    return get_handle(__func__, find_driver, handle, ptr);
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
