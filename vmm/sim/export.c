/* SPDX-License-Identifier: MIT */
/*
 * Memory that several processes use, by file descriptor.
 *
 * Memory that may be exported has a file of its own: its contents, and a page behind them that says
 * what it is.  A fabric handle names the process that made the memory and the file there, and holds
 * nothing.  Each export by file descriptor and each import is a new open file with a lock that ends with it, in
 * whatever process it is closed last.  So the process that made the memory can see whether others
 * hold it still, and keeps it in its accounts until none does.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"

enum { LABEL_BYTES = 4096 };

/* What stands behind the contents. */
struct label {
    char magic[8];
    uint64_t bytes;
    CUmemAllocationProp prop;
};

static const char magic[8] = "xsegsim";

bool sim_export_take(const CUmemAllocationProp *prop, uint64_t bytes, struct sim_store *store)
{
    struct label label;

    memset(&label, 0, sizeof(label));
    memcpy(label.magic, magic, sizeof(magic));
    label.bytes = bytes;
    label.prop = *prop;
    *store =
        (struct sim_store){.file = memfd_create("xseg-sim-export", MFD_CLOEXEC), .is_own = true};
    if (store->file < 0)
        return false;
    if (ftruncate(store->file, (off_t)(bytes + LABEL_BYTES)) == 0 &&
        pwrite(store->file, &label, sizeof(label), (off_t)bytes) == (ssize_t)sizeof(label))
        return true;
    (void)close(store->file);
    return false;
}

static bool read_label(int file, struct label *label)
{
    struct stat status;

    if (fstat(file, &status) != 0 || status.st_size < LABEL_BYTES)
        return false;
    return pread(file, label, sizeof(*label), status.st_size - LABEL_BYTES) ==
               (ssize_t)sizeof(*label) &&
           memcmp(label->magic, magic, sizeof(magic)) == 0 &&
           label->bytes == (uint64_t)status.st_size - LABEL_BYTES;
}

static struct flock whole_file(short type)
{
    struct flock lock;

    memset(&lock, 0, sizeof(lock));
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    return lock;
}

/* What a fabric handle is here. */
struct fabric {
    char magic[8];
    int64_t process;
    uint64_t file, inode;
    char rest[32];
};

static const char fabric_magic[8] = "xsegfab";

/* Open a file of a process anew, and lock it; -1 on failure. */
static int open_again_of(int64_t process, int file)
{
    struct flock lock = whole_file(F_RDLCK);
    char path[64];
    int again;

    (void)snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)process, file);
    again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0 && fcntl(again, F_OFD_SETLK, &lock) != 0) {
        (void)close(again);
        return -1;
    }
    return again;
}

int sim_export_open_again(int file)
{
    return open_again_of(getpid(), file);
}

bool sim_export_is_held(const struct sim_store *store)
{
    struct flock lock = whole_file(F_WRLCK);

    return store->is_own && fcntl(store->file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static bool is_known(CUmemAllocationHandleType type)
{
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
           ((unsigned)type == SIM_HANDLE_FABRIC && sim_machine.fabric);
}

static CUresult export_fabric(void *out, const struct sim_physical *physical)
{
    struct fabric fabric = {.process = getpid(), .file = (uint64_t)physical->store.file};
    struct stat status;

    if (fstat(physical->store.file, &status) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(fabric.magic, fabric_magic, sizeof(fabric.magic));
    fabric.inode = status.st_ino;
    memcpy(out, &fabric, sizeof(fabric));
    return CUDA_SUCCESS;
}

/* Open the memory that a fabric handle names; -1 if it is gone. */
static int open_fabric(const void *handle)
{
    struct fabric fabric;
    struct stat status;

    memcpy(&fabric, handle, sizeof(fabric));
    if (memcmp(fabric.magic, fabric_magic, sizeof(fabric.magic)) != 0 || fabric.file > INT32_MAX)
        return -1;
    const int file = open_again_of(fabric.process, (int)fabric.file);
    if (file < 0 || (fstat(file, &status) == 0 && status.st_ino == fabric.inode))
        return file;
    (void)close(file);
    return -1;
}

static CUresult export(void *out, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags)
{
    const struct sim_physical *physical = sim_physical_find(handle);
    int file;

    if (out == NULL || physical == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_known(type))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (((unsigned)physical->prop.requestedHandleTypes & (unsigned)type) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)type == SIM_HANDLE_FABRIC)
        return export_fabric(out, physical);
    file = sim_export_open_again(physical->store.file);
    if (file < 0)
        return errno == EMFILE || errno == ENFILE ? CUDA_ERROR_OUT_OF_MEMORY
                                                  : CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(out, &file, sizeof(file));
    return CUDA_SUCCESS;
}

/* Take memory over whose file has been opened anew; the file is the memory's, or closed. */
static CUresult take_over(CUmemGenericAllocationHandle *out, int file)
{
    const struct sim_store store = {.file = file, .is_own = true};
    struct sim_physical *physical;
    struct label label;

    if (!read_label(file, &label)) {
        (void)close(file);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (label.prop.location.id < 0 || (unsigned)label.prop.location.id >= sim_machine.devices) {
        (void)close(file);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    physical = sim_physical_make(&label.prop, label.bytes, &store);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->is_imported = true;
    *out = physical->handle;
    return CUDA_SUCCESS;
}

static CUresult import(CUmemGenericAllocationHandle *out, void *os_handle,
                       CUmemAllocationHandleType type)
{
    const intptr_t named = (intptr_t)os_handle;
    struct label label;
    int file;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_known(type))
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((unsigned)type == SIM_HANDLE_FABRIC) {
        file = os_handle == NULL ? -1 : open_fabric(os_handle);
        return file < 0 ? CUDA_ERROR_INVALID_VALUE : take_over(out, file);
    }
    if (named < 0 || named > INT32_MAX || !read_label((int)named, &label))
        return CUDA_ERROR_INVALID_VALUE;
    file = sim_export_open_again((int)named);
    return file < 0 ? CUDA_ERROR_OPERATING_SYSTEM : take_over(out, file);
}

SIM_ENTRY(MEM_EXPORT, cuMemExportToShareableHandle,
          (void *shareableHandle, CUmemGenericAllocationHandle handle,
           CUmemAllocationHandleType handleType, unsigned long long flags),
          export(shareableHandle, handle, handleType, flags));
SIM_ENTRY(MEM_IMPORT, cuMemImportFromShareableHandle,
          (CUmemGenericAllocationHandle *handle, void *osHandle,
           CUmemAllocationHandleType shHandleType),
          import(handle, osHandle, shHandleType));
