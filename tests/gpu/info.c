/* SPDX-License-Identifier: MIT */
/*
 * Prints properties of the device, or the reason if there is none: lines of a name, a tab and a value.
 *
 *     gpu-info              driver, module, devices, name, capability, memory, free_mib, vmm, mig; or problem
 *     gpu-info --alive      no output if memory of device 0 can be allocated, written and read
 *
 * The program works with each driver, also with a driver that is too old for the library: it uses only calls of CUDA 11.0,
 * and reports missing calls.  Exit status: 0, 1 with an error message, or 2 for an unknown option.
 *
 * XSEG_DRIVER names the driver library; the default is libcuda.so.1.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <dlfcn.h>

#include "tests/support/symbol.h"

#define MIB ((size_t)1 << 20)
#define GIB ((double)(1 << 30))

/* The oldest driver whose entry points the library finds: R525, which brought CUDA 12.0. */
#define OLDEST_DRIVER 12000

/* Member, name in the library, parameters. */
#define CALLS(X)                                                                              \
    X(init, "cuInit", (unsigned flags))                                                       \
    X(error_name, "cuGetErrorName", (CUresult error, const char **name))                      \
    X(driver_version, "cuDriverGetVersion", (int *version))                                   \
    X(device_count, "cuDeviceGetCount", (int *count))                                         \
    X(device_get, "cuDeviceGet", (CUdevice * device, int ordinal))                            \
    X(device_name, "cuDeviceGetName", (char *name, int bytes, CUdevice device))               \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device)) \
    X(context_retain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))     \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                     \
    X(context_push, "cuCtxPushCurrent_v2", (CUcontext context))                               \
    X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))            \
    X(memory_alloc, "cuMemAlloc_v2", (CUdeviceptr * address, size_t bytes))                   \
    X(memory_free, "cuMemFree_v2", (CUdeviceptr address))                                     \
    X(copy_in, "cuMemcpyHtoD_v2", (CUdeviceptr to, const void *from, size_t bytes))           \
    X(copy_out, "cuMemcpyDtoH_v2", (void *to, CUdeviceptr from, size_t bytes))

static struct {
#define X(member, name, parameters) CUresult(*member) parameters;
    CALLS(X)
#undef X
} call;

__attribute__((format(printf, 1, 2), noreturn)) static void stop(const char *format, ...)
{
    va_list arguments;

    (void)printf("problem\t");
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    (void)putchar('\n');
    exit(1);
}

static void check_call(CUresult result, const char *operation)
{
    const char *name = NULL;

    if (result == CUDA_SUCCESS)
        return;
    if (call.error_name(result, &name) != CUDA_SUCCESS || name == NULL)
        name = "an error without a name";
    if (result == CUDA_ERROR_NO_DEVICE)
        stop("the driver has no device; see nvidia-smi, and CUDA_VISIBLE_DEVICES");
    stop("%s: %s (%d)", operation, name, (int)result);
}

static void find_call(void *library, const char *name, void *function)
{
    if (!symbol_find(library, name, function))
        stop("the driver has no %s: it is older than CUDA 11.0, and R525 (CUDA 12.0) is required",
             name);
}

static void open_driver(void)
{
    const char *name = getenv("XSEG_DRIVER");

    if (name == NULL || *name == '\0')
        name = "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        stop("there is no driver: %s (install R525 or later; without a GPU: --driver sim)",
             dlerror());
#define X(member, name, parameters) find_call(library, name, &call.member);
    CALLS(X)
#undef X
    check_call(call.init(0), "cuInit");
}

/* The first line of the file names the kernel module; a host with the simulated driver may have no such file. */
static void print_module(void)
{
    char line[256];
    FILE *file = fopen("/proc/driver/nvidia/version", "r");

    if (file == NULL)
        return;
    if (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        (void)printf("module\t%s\n", line);
    }
    (void)fclose(file);
}

static int attribute(CUdevice device, CUdevice_attribute id)
{
    int value = 0;

    return call.device_attribute(&value, (int)id, device) == CUDA_SUCCESS ? value : 0;
}

static void print_device(CUdevice device)
{
    char name[256] = "";
    size_t free_bytes = 0, total_bytes = 0;

    check_call(call.device_name(name, sizeof(name), device), "cuDeviceGetName");
    check_call(call.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
    (void)printf("name\t%s\n", name);
    (void)printf("capability\t%d.%d\n",
                 attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                 attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    (void)printf("memory\t%.2f GiB, %.2f GiB free\n", (double)total_bytes / GIB,
                 (double)free_bytes / GIB);
    (void)printf("total_mib\t%zu\n", total_bytes / MIB);
    (void)printf("free_mib\t%zu\n", free_bytes / MIB);
    (void)printf("vmm\t%s\n",
                 attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ? "yes"
                                                                                            : "no");
    /* No driver call reports MIG, but the name of an instance contains it. */
    if (strstr(name, " MIG ") != NULL)
        (void)printf("mig\tan instance: it shares its GPU with others\n");
}

static void push_context(CUdevice *device)
{
    CUcontext context;

    check_call(call.device_get(device, 0), "cuDeviceGet");
    check_call(call.context_retain(&context, *device), "cuDevicePrimaryCtxRetain");
    check_call(call.context_push(context), "cuCtxPushCurrent");
}

static void write_and_read(void)
{
    const uint32_t written = 0x7a5e1f03;
    uint32_t copy = 0;
    CUdeviceptr address = 0;

    check_call(call.memory_alloc(&address, sizeof(written)), "cuMemAlloc");
    check_call(call.copy_in(address, &written, sizeof(written)), "cuMemcpyHtoD");
    check_call(call.copy_out(&copy, address, sizeof(copy)), "cuMemcpyDtoH");
    check_call(call.memory_free(address), "cuMemFree");
    if (copy != written)
        stop("device memory contains 0x%08x, expected 0x%08x", copy, written);
}

int main(int argc, char **argv)
{
    const int is_alive = argc == 2 && strcmp(argv[1], "--alive") == 0;
    int version = 0, count = 0;
    CUdevice device = 0;

    if (argc > 1 && !is_alive) {
        (void)fprintf(stderr, "usage: %s [--alive]\n", argv[0]);
        return 2;
    }
    open_driver();
    if (!is_alive) {
        check_call(call.driver_version(&version), "cuDriverGetVersion");
        (void)printf("driver\tCUDA %d.%d\n", version / 1000, version % 1000 / 10);
        print_module();
        check_call(call.device_count(&count), "cuDeviceGetCount");
        (void)printf("devices\t%d\n", count);
    }
    push_context(&device);
    if (is_alive)
        write_and_read();
    else
        print_device(device);
    check_call(call.context_release(device), "cuDevicePrimaryCtxRelease");
    if (!is_alive && version < OLDEST_DRIVER)
        stop("the driver is of CUDA %d.%d, and the library requires 12.0 (R525) or later",
             version / 1000, version % 1000 / 10);
    return 0;
}
