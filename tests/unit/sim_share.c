/* SPDX-License-Identifier: MIT */
/* Export and import of memory, and of events, between processes. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/unit/sim_setup.h"

#define BY_DESCRIPTOR   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define BY_WIN32_HANDLE CU_MEM_HANDLE_TYPE_WIN32

/* --- Memory by descriptors and fabric handles. --- */

static CUmemGenericAllocationHandle create_exportable(size_t bytes)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    prop.requestedHandleTypes = BY_DESCRIPTOR;
    ASSERT_OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static int export_of(CUmemGenericAllocationHandle handle)
{
    int file = -1;

    ASSERT_OK(cuMemExportToShareableHandle(&file, handle, BY_DESCRIPTOR, 0));
    assert_true(file >= 0);
    return file;
}

static CUresult import_from(int file, CUmemGenericAllocationHandle *handle)
{
    return cuMemImportFromShareableHandle(handle, (void *)(uintptr_t)file, BY_DESCRIPTOR);
}

SIM_TEST_BYTES(an_import_is_the_same_memory)
{
    CUmemGenericAllocationHandle handle = create_exportable(2 * GRANULE), imported = 0;
    CUdeviceptr first = reserve(2 * GRANULE), second = reserve(2 * GRANULE);
    CUmemAllocationProp prop;
    int file = export_of(handle);

    ASSERT_OK(import_from(file, &imported));
    assert_int_equal(close(file), 0);
    assert_true(imported != handle);
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    ASSERT_OK(cuMemMap(first, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemMap(second, 2 * GRANULE, 0, imported, 0));
    grant(first, 2 * GRANULE, 0);
    /* The importer needs its own access rights. */
    assert_int_equal(access_of(second, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    grant(second, 2 * GRANULE, 0);
    ASSERT_OK(cuMemsetD8(first, 6, 2 * GRANULE));
    assert_int_equal(bytes_at(second)[2 * GRANULE - 1], 6);
    assert_int_equal(pointer_attribute(second, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), 1);
    ASSERT_OK(cuMemGetAllocationPropertiesFromHandle(&prop, imported));
    assert_int_equal(prop.requestedHandleTypes, BY_DESCRIPTOR);

    ASSERT_OK(cuMemUnmap(first, 2 * GRANULE));
    ASSERT_OK(cuMemRelease(handle));
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    assert_int_equal(bytes_at(second)[0], 6);
    ASSERT_OK(cuMemUnmap(second, 2 * GRANULE));
    ASSERT_OK(cuMemRelease(imported));
    assert_int_equal(xseg_sim_used(0), 0);
}

/* smolvm #650 leaked memory this way. */
SIM_TEST(an_open_file_holds_memory)
{
    CUmemGenericAllocationHandle handle = create_exportable(GRANULE), imported[3];
    int first = export_of(handle), second = export_of(handle), copy = dup(second);

    assert_true(first != second);
    ASSERT_OK(cuMemRelease(handle));
    ASSERT_INVALID(cuMemRelease(handle));
    assert_int_equal(close(first), 0);
    assert_int_equal(close(second), 0);
    assert_int_equal(xseg_sim_used(0), GRANULE);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 2); /* the memory, and the context */
    /* Each handle of an import retains the memory as well. */
    for (size_t i = 0; i < COUNT_OF(imported); i++)
        ASSERT_OK(import_from(copy, &imported[i]));
    assert_int_equal(close(copy), 0);
    for (size_t i = 0; i < COUNT_OF(imported); i++) {
        assert_int_equal(xseg_sim_used(0), GRANULE);
        ASSERT_OK(cuMemRelease(imported[i]));
    }
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(free_memory(), total_memory(0));
    /* A close is counted without a later driver call. */
    handle = create_exportable(GRANULE);
    first = export_of(handle);
    ASSERT_OK(cuMemRelease(handle));
    assert_int_equal(xseg_sim_leaks(NULL, 0), 2);
    assert_int_equal(close(first), 0);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1);
}

/* Limit the number of additional open descriptors; returns the previous limits. */
static struct rlimit limit_descriptors(rlim_t count)
{
    struct rlimit previous;
    const int lowest_free = dup(STDERR_FILENO);

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &previous), 0);
    struct rlimit limits = previous;
    limits.rlim_cur = (rlim_t)lowest_free + count;
    (void)close(lowest_free);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limits), 0);
    return previous;
}

enum { HANDLES = 200, DESCRIPTORS = 8 };

/* The number of allocations and of imports is not limited by `ulimit -n`, and neither are exports that are closed. */
SIM_TEST_BYTES(exportable_memory_needs_no_separate_descriptor)
{
    CUmemGenericAllocationHandle handle[HANDLES], imported[HANDLES];
    CUdeviceptr base = reserve(HANDLES * GRANULE), import_base = reserve(HANDLES * GRANULE);
    const struct rlimit before = limit_descriptors(DESCRIPTORS);

    for (size_t i = 0; i < HANDLES; i++) {
        handle[i] = create_exportable(GRANULE);
        ASSERT_OK(cuMemMap(base + i * GRANULE, GRANULE, 0, handle[i], 0));
    }
    grant(base, HANDLES * GRANULE, 0);
    for (size_t i = 0; i < HANDLES; i++)
        bytes_at(base)[i * GRANULE] = (unsigned char)(i + 1);
    for (size_t i = 0; i < HANDLES; i++) {
        const int file = export_of(handle[i]);

        ASSERT_OK(import_from(file, &imported[i]));
        assert_int_equal(close(file), 0);
        ASSERT_OK(cuMemMap(import_base + i * GRANULE, GRANULE, 0, imported[i], 0));
    }
    grant(import_base, HANDLES * GRANULE, 0);

    /* Handles with odd indices are released first by the exporter, those with even indices first by the importer. */
    ASSERT_OK(cuMemUnmap(base, HANDLES * GRANULE));
    for (size_t i = 1; i < HANDLES; i += 2)
        ASSERT_OK(cuMemRelease(handle[i]));
    assert_int_equal(xseg_sim_used(0), HANDLES * GRANULE);
    for (size_t i = 0; i < HANDLES; i++)
        assert_int_equal(bytes_at(import_base)[i * GRANULE], (unsigned char)(i + 1));
    ASSERT_OK(cuMemUnmap(import_base, HANDLES * GRANULE));
    for (size_t i = 0; i < HANDLES; i++)
        ASSERT_OK(cuMemRelease(imported[i]));
    assert_int_equal(xseg_sim_used(0), HANDLES / 2 * GRANULE);
    for (size_t i = 0; i < HANDLES; i += 2)
        ASSERT_OK(cuMemRelease(handle[i]));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

SIM_TEST(an_export_without_a_descriptor_is_out_of_memory)
{
    CUmemGenericAllocationHandle handle = create_exportable(GRANULE), third = 0;
    const struct rlimit before = limit_descriptors(DESCRIPTORS);
    int file[DESCRIPTORS + 1] = {-1};
    CUresult result;
    size_t count = 0;

    while ((result = cuMemExportToShareableHandle(&file[count], handle, BY_DESCRIPTOR, 0)) ==
           CUDA_SUCCESS)
        assert_true(++count <= DESCRIPTORS);
    ASSERT_CU(result, CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(count >= 2);
    CUmemGenericAllocationHandle second = create_exportable(GRANULE);
    ASSERT_OK(cuMemRelease(second));
    /* The first import from a device opens its file; further ones need no descriptor. */
    ASSERT_CU(import_from(file[1], &second), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(close(file[0]), 0);
    ASSERT_OK(import_from(file[1], &second));
    ASSERT_OK(import_from(file[1], &third));
    ASSERT_OK(cuMemRelease(second));
    ASSERT_OK(cuMemRelease(third));
    file[0] = export_of(handle);
    while (count-- != 0)
        assert_int_equal(close(file[count]), 0);
    ASSERT_OK(cuMemRelease(handle));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* The kernel searches the locks of a file linearly, and each creation of memory searches for locks of released memory.
 * So imports of adjacent memory share one lock, which is divided when memory in the middle is released. */
SIM_TEST(imports_of_adjacent_memory_share_a_lock)
{
    CUmemGenericAllocationHandle handle[HANDLES], imported[HANDLES], imported_again = 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int first = -1;

    for (size_t i = 0; i < HANDLES; i++)
        handle[i] = create_exportable(GRANULE);
    for (size_t i = 0; i < HANDLES; i++) {
        const int file = export_of(handle[i]);

        ASSERT_OK(import_from(file, &imported[i]));
        if (i == HANDLES / 2)
            ASSERT_OK(import_from(file, &imported_again));
        if (i == 0)
            first = file;
        else
            assert_int_equal(close(file), 0);
        ASSERT_OK(cuMemRelease(handle[i]));
    }
    assert_int_equal(fcntl(first, F_OFD_GETLK, &lock), 0);
    assert_int_equal(lock.l_type, F_RDLCK);
    assert_true((uint64_t)lock.l_len >= HANDLES * GRANULE);
    assert_int_equal(xseg_sim_used(0), HANDLES * GRANULE);
    ASSERT_OK(cuMemRelease(imported[HANDLES / 2]));
    assert_int_equal(xseg_sim_used(0), HANDLES * GRANULE);
    ASSERT_OK(cuMemRelease(imported_again));
    assert_int_equal(xseg_sim_used(0), (HANDLES - 1) * GRANULE);
    for (size_t i = 0; i < HANDLES; i++)
        if (i != HANDLES / 2)
            ASSERT_OK(cuMemRelease(imported[i]));
    assert_int_equal(xseg_sim_used(0), GRANULE);
    assert_int_equal(close(first), 0);
    assert_int_equal(xseg_sim_used(0), 0);
}

/* A descriptor keeps the contents of memory after a reset of the machine. */
SIM_TEST_BYTES(a_descriptor_outlives_its_machine)
{
    CUmemGenericAllocationHandle handle = create_exportable(GRANULE), imported = 0;
    CUdeviceptr base = reserve(GRANULE);
    const int file = export_of(handle);

    map_usable(base, GRANULE, handle);
    bytes_at(base)[5] = 7;
    assert_int_equal(with_bytes(state), 0);
    base = reserve(GRANULE);
    ASSERT_OK(import_from(file, &imported));
    assert_int_equal(close(file), 0);
    map_usable(base, GRANULE, imported);
    assert_int_equal(bytes_at(base)[5], 7);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    ASSERT_OK(cuMemRelease(imported));
}

SIM_TEST(exports_and_imports_are_checked)
{
    CUmemGenericAllocationHandle not_exportable = create(GRANULE),
                                 handle = create_exportable(GRANULE), out = 0;
    const struct xseg_sim_settings settings = {sizeof(settings)};
    CUmemAllocationProp prop = on_device(1);
    int file = -1, ends[2];

    ASSERT_INVALID(cuMemExportToShareableHandle(&file, not_exportable, BY_DESCRIPTOR, 0));
    ASSERT_CU(cuMemExportToShareableHandle(&file, handle, BY_WIN32_HANDLE, 0),
              CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_INVALID(cuMemExportToShareableHandle(&file, handle, BY_DESCRIPTOR, 1));
    ASSERT_INVALID(cuMemExportToShareableHandle(NULL, handle, BY_DESCRIPTOR, 0));
    assert_int_equal(file, -1);
    assert_int_equal(pipe(ends), 0);
    ASSERT_INVALID(import_from(ends[0], &out));
    ASSERT_INVALID(import_from(-1, &out));
    ASSERT_INVALID(import_from(1000000, &out));
    file = memfd_create("empty", 0);
    ASSERT_INVALID(import_from(file, &out));
    assert_int_equal(ftruncate(file, 8192), 0);
    ASSERT_INVALID(import_from(file, &out));
    (void)close(file);
    (void)close(ends[0]);
    (void)close(ends[1]);
    prop.requestedHandleTypes = BY_DESCRIPTOR;
    ASSERT_OK(cuMemCreate(&handle, GRANULE, &prop, 0));
    file = export_of(handle);
    ASSERT_CU(cuMemImportFromShareableHandle(&out, (void *)(uintptr_t)file, BY_WIN32_HANDLE),
              CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_INVALID(import_from(file, NULL));
    /* The new machine has no device 1. */
    start(&settings);
    ASSERT_CU(import_from(file, &out), CUDA_ERROR_INVALID_DEVICE);
    (void)close(file);
    assert_int_equal(out, 0);
}

union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static void send_file(int socket, int file)
{
    union control control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
                                        .cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS}};
    char byte = 1;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};

    memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
    assert_int_equal(sendmsg(socket, &message, 0), 1);
}

static int receive_file(int socket)
{
    union control control;
    char byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    int file = -1;

    if (recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
    return file;
}

/* The second process: read a byte of the first process, write one, respond, and wait for a byte. */
static int import_in_child(int socket)
{
    const CUmemAccessDesc desc = read_write(0);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    char byte;

    if (with_bytes(NULL) != 0)
        return 1;
    int file = receive_file(socket);
    if (file < 0 || import_from(file, &handle) != CUDA_SUCCESS || close(file) != 0 ||
        cuMemAddressReserve(&base, GRANULE, 0, 0, 0) != CUDA_SUCCESS ||
        cuMemMap(base, GRANULE, 0, handle, 0) != CUDA_SUCCESS ||
        cuMemSetAccess(base, GRANULE, &desc, 1) != CUDA_SUCCESS)
        return 2;
    if (bytes_at(base)[100] != 42)
        return 3;
    bytes_at(base)[101] = 43;
    if (write(socket, "x", 1) != 1 || read(socket, &byte, 1) != 1)
        return 4;
    return 0;
}

/* CU_MEM_HANDLE_TYPE_FABRIC, absent from older headers. */
#define FABRIC ((CUmemAllocationHandleType)8)

SIM_TEST(memory_has_fabric_handles_if_requested)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0, without_fabric = 0, imported = 0;
    unsigned char fabric_handle[64] = {0};
    int file = -1;

    prop.requestedHandleTypes = (CUmemAllocationHandleType)(BY_DESCRIPTOR | 8);
    ASSERT_CU(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    start_with((struct xseg_sim_settings){.fabric = true, .real_bytes = true});
    ASSERT_OK(cuMemCreate(&handle, GRANULE, &prop, 0));
    ASSERT_OK(cuMemExportToShareableHandle(&file, handle, BY_DESCRIPTOR, 0));
    (void)close(file);
    ASSERT_OK(cuMemExportToShareableHandle(fabric_handle, handle, FABRIC, 0));
    ASSERT_OK(cuMemImportFromShareableHandle(&imported, fabric_handle, FABRIC));
    CUdeviceptr base = reserve(2 * GRANULE), import_base = base + GRANULE;
    ASSERT_OK(cuMemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemMap(import_base, GRANULE, 0, imported, 0));
    grant(base, 2 * GRANULE, 0);
    *(volatile char *)(uintptr_t)base = 33;
    assert_int_equal(*(volatile char *)(uintptr_t)import_base, 33);
    /* Memory without fabric handles, an invalid handle, and a handle of released memory. */
    prop.requestedHandleTypes = BY_DESCRIPTOR;
    ASSERT_OK(cuMemCreate(&without_fabric, GRANULE, &prop, 0));
    ASSERT_INVALID(cuMemExportToShareableHandle(fabric_handle, without_fabric, FABRIC, 0));
    ASSERT_INVALID(cuMemImportFromShareableHandle(&imported, NULL, FABRIC));
    ASSERT_OK(cuMemRelease(imported));
    ASSERT_OK(cuMemRelease(handle));
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_INVALID(cuMemImportFromShareableHandle(&imported, fabric_handle, FABRIC));
    fabric_handle[0] ^= 1;
    ASSERT_INVALID(cuMemImportFromShareableHandle(&imported, fabric_handle, FABRIC));
}

SIM_TEST_BYTES(memory_is_shared_with_another_process)
{
    CUdeviceptr base = reserve(GRANULE);
    int socket = -1;
    char byte;
    pid_t child = child_fork_with_socket(&socket);

    if (child == 0)
        _exit(import_in_child(socket));
    CUmemGenericAllocationHandle handle = create_exportable(GRANULE);
    map_usable(base, GRANULE, handle);
    bytes_at(base)[100] = 42;
    const int file = export_of(handle);
    send_file(socket, file);
    (void)close(file);
    assert_int_equal(read(socket, &byte, 1), 1);
    assert_int_equal(bytes_at(base)[101], 43);
    /* The memory is retained until the other process closes it, exits or is killed. */
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    ASSERT_OK(cuMemRelease(handle));
    assert_int_equal(xseg_sim_used(0), GRANULE);
    assert_int_equal(write(socket, "x", 1), 1);
    child_expect_success(child);
    assert_int_equal(xseg_sim_used(0), 0);
    (void)close(socket);
}

/* --- Allocations and events by IPC handles. --- */

static CUipcMemHandle memory_handle;
static CUipcEventHandle event_handle;

/* Run a part in another process with its own machine.  The part returns whether all its checks passed. */
static void expect_in_child(bool (*part)(void))
{
    const pid_t child = fork();

    if (child == 0) {
        (void)with_bytes(NULL);
        _exit(part() ? 0 : 1);
    }
    child_expect_success(child);
}

static bool open_and_write(void)
{
    CUdeviceptr first = 0, second = 0;
    bool succeeded = cuIpcOpenMemHandle(&first, memory_handle, 1) == CUDA_SUCCESS &&
                     cuIpcOpenMemHandle(&second, memory_handle, 1) == CUDA_SUCCESS;

    succeeded = succeeded && first == second && bytes_at(first)[5] == 42 && xseg_sim_used(0) == 0;
    succeeded = succeeded && cuMemsetD8(first + 6, 43, 1) == CUDA_SUCCESS;
    succeeded = succeeded && cuMemFree(first) == CUDA_ERROR_INVALID_VALUE;
    succeeded = succeeded && cuIpcGetMemHandle(&memory_handle, first) == CUDA_ERROR_INVALID_VALUE;
    succeeded = succeeded && cuIpcCloseMemHandle(first + 1) == CUDA_ERROR_INVALID_VALUE;
    succeeded = succeeded && cuIpcCloseMemHandle(first) == CUDA_SUCCESS && bytes_at(first)[6] == 43;
    succeeded = succeeded && cuIpcCloseMemHandle(first) == CUDA_SUCCESS;
    succeeded = succeeded && cuIpcCloseMemHandle(first) == CUDA_ERROR_INVALID_VALUE;
    return succeeded && xseg_sim_leaks(NULL, 0) == 1; /* the context */
}

SIM_TEST_BYTES(two_processes_use_an_allocation)
{
    const CUdeviceptr address = allocate(3 * GRANULE);

    (void)allocate(GRANULE);
    bytes_at(address)[5] = 42;
    ASSERT_OK(cuIpcGetMemHandle(&memory_handle, address + 100));
    expect_in_child(open_and_write);
    assert_int_equal(bytes_at(address)[6], 43);
    ASSERT_OK(cuMemFree(address));
}

SIM_TEST(address_outside_allocations_is_rejected)
{
    const CUdeviceptr reserved = reserve(GRANULE), address = allocate(GRANULE);
    CUdeviceptr opened = 0;
    const CUipcMemHandle invalid = {{0}};

    ASSERT_INVALID(cuIpcGetMemHandle(&memory_handle, reserved));
    ASSERT_INVALID(cuIpcGetMemHandle(NULL, address));
    ASSERT_INVALID(cuIpcOpenMemHandle(&opened, invalid, 1));
    ASSERT_OK(cuIpcGetMemHandle(&memory_handle, address));
    ASSERT_INVALID(cuIpcOpenMemHandle(&opened, memory_handle, 0));
    ASSERT_CU(cuIpcOpenMemHandle(&opened, memory_handle, 1), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_INVALID(cuIpcCloseMemHandle(address));
}

static bool wait_for_the_event(void)
{
    const CUstream stream = new_stream();
    CUevent event = NULL;

    return cuIpcOpenEventHandle(&event, event_handle) == CUDA_SUCCESS &&
           cuEventQuery(event) == CUDA_SUCCESS &&
           cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS &&
           cuStreamQuery(stream) == CUDA_SUCCESS && cuEventDestroy(event) == CUDA_SUCCESS;
}

SIM_TEST_BYTES(event_is_shared_with_another_process)
{
    const CUevent not_interprocess = new_event();
    CUevent event = NULL, opened = NULL;
    const CUipcEventHandle invalid = {{0}};

    ASSERT_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    ASSERT_CU(cuIpcGetEventHandle(&event_handle, not_interprocess), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_INVALID(cuIpcGetEventHandle(NULL, event));
    ASSERT_INVALID(cuIpcOpenEventHandle(&opened, invalid));
    ASSERT_OK(cuIpcGetEventHandle(&event_handle, event));
    ASSERT_CU(cuIpcOpenEventHandle(&opened, event_handle), CUDA_ERROR_INVALID_CONTEXT);
    expect_in_child(wait_for_the_event);
}
