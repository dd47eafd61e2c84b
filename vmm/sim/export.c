/* SPDX-License-Identifier: MIT */
/*
 * Memory that several processes use, by file descriptor.
 *
 * A descriptor is the file of the exporter's device, opened anew at each export.  Its position is the offset of the
 * memory's label, which the first export writes, and which says what the memory is; the contents are behind it.  A
 * fabric handle names the process that made the memory, the file there and the offset, and holds nothing.
 *
 * Each export by descriptor locks the first byte of the label, and the lock ends when the descriptor is closed, in
 * whatever process that is.  The first import of the memory into a process locks the label and the contents, through
 * one open file for all imports from a device, until the last handle is released.  So the process that made the memory
 * can see whether others hold it, and keeps it in its accounts until none does.  The kernel searches the locks of a
 * file linearly, but coalesces adjacent ones of one open file, so imports of adjacent memory are one lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"

/* The label of exported memory; it precedes the contents. */
struct label {
    char magic[8];
    uint64_t offset, bytes; /* of the contents */
    CUmemAllocationProp prop;
};

static const char magic[8] = "xsegsim";

/* The offset of the label in the file. */
static uint64_t label_offset(const struct sim_store *store)
{
    return store->offset - store->label_bytes;
}

/* Write the label of memory before its first export. */
static bool write_label(struct sim_physical *physical)
{
    struct label label;

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

static bool read_label(int file, uint64_t offset, struct label *label)
{
    struct stat status;

    return offset <= INT64_MAX - sizeof(*label) && fstat(file, &status) == 0 &&
           pread(file, label, sizeof(*label), (off_t)offset) == (ssize_t)sizeof(*label) &&
           memcmp(label->magic, magic, sizeof(magic)) == 0 &&
           label->offset == offset + sim_host_page() && label->offset <= (uint64_t)status.st_size &&
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
    const int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0 &&
        (lseek(again, (off_t)byte, SEEK_SET) < 0 || fcntl(again, F_OFD_SETLK, &lock) != 0)) {
        (void)close(again);
        return -1;
    }
    return again;
}

bool sim_file_is_locked(int file, uint64_t byte, uint64_t count)
{
    struct flock lock = file_lock(F_WRLCK, byte, count);

    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool sim_export_is_held(const struct sim_physical *physical)
{
    return physical->is_exported &&
           sim_file_is_locked(physical->store.file, label_offset(&physical->store),
                              physical->store.label_bytes + physical->bytes);
}

/* Lock or unlock imported memory.  Returns: whether the host has done it */
static bool lock_imported_memory(const struct sim_physical *physical, short type)
{
    const struct flock lock = file_lock(type, label_offset(&physical->store),
                                        physical->store.label_bytes + physical->bytes);

    return fcntl(physical->store.file, F_OFD_SETLK, &lock) == 0;
}

/* The number of handles that import the memory of a label.  Returns: NULL if there is no host memory */
static uint32_t *find_import_count(struct sim_opened *opened, uint64_t offset)
{
    const uint64_t index = offset / SIM_GRANULE;
    uint64_t capacity = opened->import_capacity;
    uint32_t *grown;

    if (index < capacity)
        return &opened->imports[index];
    capacity = index + capacity + 64;
    grown = realloc(opened->imports, capacity * sizeof(*grown));
    if (grown == NULL)
        return NULL;
    memset(grown + opened->import_capacity, 0,
           (capacity - opened->import_capacity) * sizeof(*grown));
    opened->imports = grown;
    opened->import_capacity = capacity;
    return &grown[index];
}

void sim_export_unlock(const struct sim_physical *physical)
{
    uint32_t *imports = find_import_count(physical->store.opened, label_offset(&physical->store));

    if (--*imports == 0 && !sim_machine.forked) /* a child has the open file of its parent */
        (void)lock_imported_memory(physical, F_UNLCK);
}

/* The contents of a fabric handle. */
struct fabric {
    char magic[8];
    int64_t process;
    uint64_t file, inode, offset;
    char rest[24];
};

_Static_assert(sizeof(struct fabric) == 64, "a fabric handle has 64 bytes");

static const char fabric_magic[8] = "xsegfab";

static bool is_handle_type_supported(CUmemAllocationHandleType type)
{
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
           ((unsigned)type == SIM_HANDLE_FABRIC && sim_machine.fabric);
}

static CUresult export_fabric(void *out, const struct sim_physical *physical)
{
    struct fabric fabric = {.process = getpid(),
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

/* Open the file that a fabric handle names, and set the offset of the label.  Returns: NULL if the exporter has ended */
static struct sim_opened *open_fabric(const void *handle, uint64_t *offset)
{
    struct sim_opened *opened;
    struct fabric fabric;

    memcpy(&fabric, handle, sizeof(fabric));
    if (memcmp(fabric.magic, fabric_magic, sizeof(fabric.magic)) != 0 || fabric.file > INT32_MAX)
        return NULL;
    *offset = fabric.offset;
    opened = sim_opened_retain(fabric.process, (int)fabric.file);
    if (opened == NULL || opened->inode == fabric.inode)
        return opened;
    sim_opened_release(opened);
    return NULL;
}

/* The result when no descriptor could be opened, by errno. */
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

/* Import the memory whose label is at an offset of an opened file.  Ownership of the file passes to the memory; on failure
 * the file is released. */
static CUresult import_label(CUmemGenericAllocationHandle *out, struct sim_opened *opened,
                             uint64_t offset)
{
    struct sim_store store = {.file = opened->file, .opened = opened};
    struct sim_physical *physical;
    struct label label;
    uint32_t *imports;

    if (!read_label(opened->file, offset, &label)) {
        sim_opened_release(opened);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (label.prop.location.id < 0 || (unsigned)label.prop.location.id >= sim_machine.devices) {
        sim_opened_release(opened);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    imports = find_import_count(opened, offset);
    if (imports == NULL) {
        sim_opened_release(opened);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    store.offset = label.offset;
    store.label_bytes = label.offset - offset;
    physical = sim_physical_make(&label.prop, label.bytes, &store);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->is_imported = true;
    /* Without the lock the exporter may release memory that a fabric handle names. */
    if (((*imports)++ == 0 && !lock_imported_memory(physical, F_RDLCK)) ||
        !read_label(opened->file, offset, &label)) {
        physical->references = 0;
        sim_physical_settle(physical);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = physical->handle;
    return CUDA_SUCCESS;
}

static CUresult import_memory(CUmemGenericAllocationHandle *out, void *os_handle,
                              CUmemAllocationHandleType type)
{
    const intptr_t named = (intptr_t)os_handle;
    struct sim_opened *opened;
    uint64_t offset = 0;
    struct label label;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_handle_type_supported(type))
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((unsigned)type == SIM_HANDLE_FABRIC) {
        opened = os_handle == NULL ? NULL : open_fabric(os_handle, &offset);
        return opened == NULL ? CUDA_ERROR_INVALID_VALUE : import_label(out, opened, offset);
    }
    if (named < 0 || named > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    const off_t position = lseek((int)named, 0, SEEK_CUR);
    if (position < 0 || !read_label((int)named, (uint64_t)position, &label))
        return CUDA_ERROR_INVALID_VALUE;
    opened = sim_opened_retain(getpid(), (int)named);
    return opened == NULL ? open_error() : import_label(out, opened, (uint64_t)position);
}

SIM_ENTRY(MEM_EXPORT, cuMemExportToShareableHandle,
          (void *shareableHandle, CUmemGenericAllocationHandle handle,
           CUmemAllocationHandleType handleType, unsigned long long flags),
          export_memory(shareableHandle, handle, handleType, flags));
SIM_ENTRY(MEM_IMPORT, cuMemImportFromShareableHandle,
          (CUmemGenericAllocationHandle *handle, void *osHandle,
           CUmemAllocationHandleType shHandleType),
          import_memory(handle, osHandle, shHandleType));
