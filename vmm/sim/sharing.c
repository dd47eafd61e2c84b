/* SPDX-License-Identifier: MIT */
#include "vmm/sim/sharing.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/event.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/stream.h"

/* Label of exported memory, before its contents. */
struct export_label {
    char magic[8];
    uint64_t offset, bytes; /* of the contents */
    CUmemAllocationProp prop;
};

static const char magic[8] = "xsegsim";

/* Get the offset of the label in the file. */
static uint64_t label_offset(const struct sim_store *store)
{
    return store->offset - store->label_bytes;
}

/* Write the label of memory before its first export. */
static bool write_label(struct sim_physical *physical)
{
    struct export_label label;

    if (physical->is_exported || physical->is_imported)
        return true;
    memset(&label, 0, sizeof(label));
    memcpy(label.magic, magic, sizeof(magic));
    label.offset = physical->store.offset;
    label.bytes = physical->bytes;
    label.prop = physical->prop;
    physical->is_exported = pwrite(physical->store.file, &label, sizeof(label),
                                   (off_t)label_offset(&physical->store)) == (ssize_t)sizeof(label);
    return physical->is_exported;
}

static bool read_label(int file, uint64_t offset, struct export_label *label)
{
    struct stat status;

    return offset <= INT64_MAX - sizeof(*label) && fstat(file, &status) == 0 &&
           pread(file, label, sizeof(*label), (off_t)offset) == (ssize_t)sizeof(*label) &&
           memcmp(label->magic, magic, sizeof(magic)) == 0 &&
           label->offset == offset + sim_host_page_size() &&
           label->offset <= (uint64_t)status.st_size &&
           label->bytes <= (uint64_t)status.st_size - label->offset;
}

static struct flock file_lock(short type, uint64_t byte, uint64_t count)
{
    struct flock lock;

    memset(&lock, 0, sizeof(lock));
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)byte;
    lock.l_len = (off_t)count;
    return lock;
}

int sim_file_open_locked(int file, uint64_t byte)
{
    struct flock lock = file_lock(F_RDLCK, byte, 1);
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const int reopened = open(path, O_RDWR | O_CLOEXEC);
    if (reopened >= 0 &&
        (lseek(reopened, (off_t)byte, SEEK_SET) < 0 || fcntl(reopened, F_OFD_SETLK, &lock) != 0)) {
        (void)close(reopened);
        return -1;
    }
    return reopened;
}

bool sim_file_is_locked(int file, uint64_t byte, uint64_t count)
{
    struct flock lock = file_lock(F_WRLCK, byte, count);

    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool sim_export_is_in_use(const struct sim_physical *physical)
{
    return physical->is_exported &&
           sim_file_is_locked(physical->store.file, label_offset(&physical->store),
                              physical->store.label_bytes + physical->bytes);
}

/* Lock or unlock imported memory.  Returns false if the system call fails. */
static bool lock_imported_memory(const struct sim_physical *physical, short type)
{
    const struct flock lock = file_lock(type, label_offset(&physical->store),
                                        physical->store.label_bytes + physical->bytes);

    return fcntl(physical->store.file, F_OFD_SETLK, &lock) == 0;
}

/* Open a descriptor of a process, or retain the file if it is open.  Returns NULL with errno if a system call fails. */
static struct sim_memory_file *open_memory_file(int64_t process, int file)
{
    struct sim_memory_file *memory_file = sim_machine.memory_files;
    struct stat status;
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)process, file);
    if (stat(path, &status) != 0)
        return NULL;
    while (memory_file != NULL &&
           (memory_file->device != status.st_dev || memory_file->inode != status.st_ino))
        memory_file = memory_file->next;
    if (memory_file != NULL) {
        memory_file->references++;
        return memory_file;
    }
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    memory_file = malloc(sizeof(*memory_file));
    if (memory_file == NULL || fstat(file, &status) != 0) {
        (void)close(file);
        free(memory_file);
        return NULL;
    }
    *memory_file = (struct sim_memory_file){.next = sim_machine.memory_files,
                                            .file = file,
                                            .references = 1,
                                            .device = status.st_dev,
                                            .inode = status.st_ino};
    return sim_machine.memory_files = memory_file;
}

void sim_memory_file_close(struct sim_memory_file *memory_file)
{
    struct sim_memory_file **at = &sim_machine.memory_files;

    if (--memory_file->references != 0)
        return;
    while (*at != memory_file)
        at = &(*at)->next;
    *at = memory_file->next;
    (void)close(memory_file->file);
    free(memory_file->imports);
    free(memory_file);
}

/* Get the number of handles that import the memory of a label.  Returns NULL on host allocation failure. */
static uint32_t *find_import_count(struct sim_memory_file *memory_file, uint64_t offset)
{
    const uint64_t index = offset / SIM_GRANULE;
    uint64_t capacity = memory_file->import_capacity;
    uint32_t *grown;

    if (index < capacity)
        return &memory_file->imports[index];
    capacity = index + capacity + 64;
    grown = realloc(memory_file->imports, capacity * sizeof(*grown));
    if (grown == NULL)
        return NULL;
    memset(grown + memory_file->import_capacity, 0,
           (capacity - memory_file->import_capacity) * sizeof(*grown));
    memory_file->imports = grown;
    memory_file->import_capacity = capacity;
    return &grown[index];
}

void sim_import_release(const struct sim_physical *physical)
{
    uint32_t *imports =
        find_import_count(physical->store.memory_file, label_offset(&physical->store));

    /* A forked child shares the open file with its parent. */
    if (--*imports == 0 && !sim_machine.forked)
        (void)lock_imported_memory(physical, F_UNLCK);
}

/* A fabric handle. */
struct fabric_handle {
    char magic[8];
    int64_t process;
    uint64_t file, inode, offset;
    char unused[24];
};

_Static_assert(sizeof(struct fabric_handle) == 64, "a fabric handle has 64 bytes");

static const char fabric_magic[8] = "sim-fab";

static bool is_handle_type_supported(CUmemAllocationHandleType type)
{
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
           ((unsigned)type == SIM_HANDLE_FABRIC && sim_machine.config.fabric);
}

static CUresult export_fabric(void *out, const struct sim_physical *physical)
{
    struct fabric_handle fabric = {.process = getpid(),
                                   .file = (uint64_t)physical->store.file,
                                   .offset = label_offset(&physical->store)};
    struct stat status;

    if (fstat(physical->store.file, &status) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(fabric.magic, fabric_magic, sizeof(fabric.magic));
    fabric.inode = status.st_ino;
    memcpy(out, &fabric, sizeof(fabric));
    return CUDA_SUCCESS;
}

/* Open the file of a fabric handle, and get the offset of the label.  Returns NULL if the exporter has ended. */
static struct sim_memory_file *open_fabric(const void *handle, uint64_t *offset)
{
    struct sim_memory_file *memory_file;
    struct fabric_handle fabric;

    memcpy(&fabric, handle, sizeof(fabric));
    if (memcmp(fabric.magic, fabric_magic, sizeof(fabric.magic)) != 0 || fabric.file > INT32_MAX)
        return NULL;
    *offset = fabric.offset;
    memory_file = open_memory_file(fabric.process, (int)fabric.file);
    if (memory_file == NULL || memory_file->inode == fabric.inode)
        return memory_file;
    sim_memory_file_close(memory_file);
    return NULL;
}

/* Get the CUresult for errno of a failed open. */
static CUresult open_error(void)
{
    return errno == EMFILE || errno == ENFILE ? CUDA_ERROR_OUT_OF_MEMORY
                                              : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult export_memory(void *out, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type, unsigned long long flags)
{
    struct sim_physical *physical = sim_physical_find(handle);
    int file;

    if (out == NULL || physical == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_handle_type_supported(type))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (((unsigned)physical->prop.requestedHandleTypes & (unsigned)type) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!write_label(physical))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if ((unsigned)type == SIM_HANDLE_FABRIC)
        return export_fabric(out, physical);
    file = sim_file_open_locked(physical->store.file, label_offset(&physical->store));
    if (file < 0)
        return open_error();
    memcpy(out, &file, sizeof(file));
    return CUDA_SUCCESS;
}

/* Import the memory whose label is at an offset of a file.  Ownership of the file passes to the memory; on failure the
 * file is closed. */
static CUresult import_label(CUmemGenericAllocationHandle *out, struct sim_memory_file *memory_file,
                             uint64_t offset)
{
    struct sim_store store = {.file = memory_file->file, .memory_file = memory_file};
    struct sim_physical *physical;
    struct export_label label;
    uint32_t *imports;

    if (!read_label(memory_file->file, offset, &label)) {
        sim_memory_file_close(memory_file);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (label.prop.location.id < 0 ||
        (unsigned)label.prop.location.id >= sim_machine.config.devices) {
        sim_memory_file_close(memory_file);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    imports = find_import_count(memory_file, offset);
    if (imports == NULL) {
        sim_memory_file_close(memory_file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    store.offset = label.offset;
    store.label_bytes = label.offset - offset;
    physical = sim_physical_create(&label.prop, label.bytes, &store);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->is_imported = true;
    /* Without the lock the exporter may release memory that a fabric handle names. */
    if (((*imports)++ == 0 && !lock_imported_memory(physical, F_RDLCK)) ||
        !read_label(memory_file->file, offset, &label)) {
        physical->references = 0;
        sim_physical_free_if_unused(physical);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = physical->handle;
    return CUDA_SUCCESS;
}

static CUresult import_memory(CUmemGenericAllocationHandle *out, void *os_handle,
                              CUmemAllocationHandleType type)
{
    const intptr_t descriptor = (intptr_t)os_handle;
    struct sim_memory_file *memory_file;
    uint64_t offset = 0;
    struct export_label label;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_handle_type_supported(type))
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((unsigned)type == SIM_HANDLE_FABRIC) {
        memory_file = os_handle == NULL ? NULL : open_fabric(os_handle, &offset);
        return memory_file == NULL ? CUDA_ERROR_INVALID_VALUE
                                   : import_label(out, memory_file, offset);
    }
    if (descriptor < 0 || descriptor > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    const off_t position = lseek((int)descriptor, 0, SEEK_CUR);
    if (position < 0 || !read_label((int)descriptor, (uint64_t)position, &label))
        return CUDA_ERROR_INVALID_VALUE;
    memory_file = open_memory_file(getpid(), (int)descriptor);
    return memory_file == NULL ? open_error() : import_label(out, memory_file, (uint64_t)position);
}

SIM_ENTRY(MEM_EXPORT, cuMemExportToShareableHandle,
          (void *shareableHandle, CUmemGenericAllocationHandle handle,
           CUmemAllocationHandleType handleType, unsigned long long flags),
          export_memory(shareableHandle, handle, handleType, flags));
SIM_ENTRY(MEM_IMPORT, cuMemImportFromShareableHandle,
          (CUmemGenericAllocationHandle *handle, void *osHandle,
           CUmemAllocationHandleType shHandleType),
          import_memory(handle, osHandle, shHandleType));

static const char memory_magic[8] = "sim-mem", event_magic[8] = "sim-evt";

/* Contents of an IPC handle. */
struct ipc_label {
    char magic[8];
    int32_t process, file; /* file -1: no contents */
    uint32_t device;
    uint32_t id_high; /* ID of the allocation in its process */
    uint32_t id_low;
    uint32_t unused;
    uint64_t offset, bytes;
};

_Static_assert(sizeof(struct ipc_label) <= CU_IPC_HANDLE_SIZE, "a label fits into a handle");

static CUresult get_ipc_memory(CUipcMemHandle *out, uint64_t address)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    struct ipc_label label;

    if (out == NULL || range == NULL || range->granule != NULL || range->is_ipc)
        return CUDA_ERROR_INVALID_VALUE;
    label = (struct ipc_label){
        .process = getpid(),
        .file = range->store.file,
        .device = range->device,
        .id_high = (uint32_t)(range->origin.number >> 32),
        .id_low = (uint32_t)range->origin.number,
        .offset = range->store.offset,
        .bytes = range->bytes,
    };
    memcpy(label.magic, memory_magic, sizeof(memory_magic));
    memset(out, 0, sizeof(*out));
    memcpy(out, &label, sizeof(label));
    return CUDA_SUCCESS;
}

/* Check that a handle has the expected kind, and that its process is alive and is not this process. */
static CUresult check_ipc_label(const struct ipc_label *label, const char *expected)
{
    if (memcmp(label->magic, expected, sizeof(label->magic)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (label->process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    return kill(label->process, 0) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static uint64_t allocation_id(const struct ipc_label *label)
{
    return (uint64_t)label->id_high << 32 | label->id_low;
}

/* Find the range that an earlier open of the same memory created, or NULL. */
static struct sim_range *find_opened_range(const struct ipc_label *label)
{
    for (size_t i = 0; i < sim_machine.addresses.count; i++) {
        struct sim_range *range = sim_machine.addresses.range[i];

        if (range != NULL && range->is_ipc && range->process == label->process &&
            range->exporter_id == allocation_id(label))
            return range;
    }
    return NULL;
}

static bool open_ipc_store(const struct ipc_label *label, struct sim_store *store)
{
    struct sim_memory_file *memory_file;

    *store = (struct sim_store){.file = -1};
    if (label->file < 0 || !sim_machine.config.real_bytes)
        return true;
    memory_file = open_memory_file(label->process, label->file);
    if (memory_file == NULL)
        return false;
    *store = (struct sim_store){
        .file = memory_file->file, .offset = label->offset, .memory_file = memory_file};
    return true;
}

static CUresult open_ipc_memory(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    struct sim_range *range;
    struct sim_store store;
    struct ipc_label label;
    CUresult result;

    memcpy(&label, &handle, sizeof(label));
    if (out == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_ipc_label(&label, memory_magic);
    if (result != CUDA_SUCCESS)
        return result;
    if (label.device >= sim_machine.config.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    range = find_opened_range(&label);
    if (range == NULL) {
        if (!open_ipc_store(&label, &store))
            return CUDA_ERROR_MAP_FAILED;
        range = sim_allocation_create(label.device, label.bytes, &store);
        if (range == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        range->is_ipc = true;
        range->process = label.process;
        range->exporter_id = allocation_id(&label);
    }
    range->open_count++;
    *out = range->base;
    return CUDA_SUCCESS;
}

static struct sim_range *find_ipc_range(uint64_t address)
{
    struct sim_range *range = sim_range_find(&sim_machine.addresses, address);

    return range != NULL && range->is_ipc && range->base == address ? range : NULL;
}

static CUresult close_ipc_memory(uint64_t address)
{
    struct sim_range *range = find_ipc_range(address);

    if (range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->open_count > 1) {
        range->open_count--;
        return CUDA_SUCCESS;
    }
    return sim_allocation_free(range);
}

static CUresult get_ipc_event(CUipcEventHandle *out, CUevent event)
{
    struct ipc_label label = {.process = getpid()};
    CUresult result;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_event_check_interprocess(event);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(label.magic, event_magic, sizeof(event_magic));
    memset(out, 0, sizeof(*out));
    memcpy(out, &label, sizeof(label));
    return CUDA_SUCCESS;
}

static CUresult open_ipc_event(CUevent *out, CUipcEventHandle handle)
{
    struct ipc_label label;
    CUresult result;

    memcpy(&label, &handle, sizeof(label));
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_ipc_label(&label, event_magic);
    return result == CUDA_SUCCESS
               ? sim_event_create(out, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)
               : result;
}

SIM_ENTRY_AT(IPC_GET_MEM, cuIpcGetMemHandle, (CUipcMemHandle *pHandle, CUdeviceptr dptr), dptr, 0,
             get_ipc_memory(pHandle, dptr));
SIM_ENTRY(IPC_OPEN_MEM, cuIpcOpenMemHandle_v2,
          (CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags),
          open_ipc_memory(pdptr, handle, Flags));
SIM_ENTRY_AT(IPC_CLOSE_MEM, cuIpcCloseMemHandle, (CUdeviceptr dptr), dptr, 0,
             close_ipc_memory(dptr));
SIM_ENTRY(IPC_GET_EVENT, cuIpcGetEventHandle, (CUipcEventHandle *pHandle, CUevent event),
          get_ipc_event(pHandle, event));
SIM_ENTRY(IPC_OPEN_EVENT, cuIpcOpenEventHandle, (CUevent *phEvent, CUipcEventHandle handle),
          open_ipc_event(phEvent, handle));
