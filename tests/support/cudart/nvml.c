/* SPDX-License-Identifier: MIT */
/*
 * NVML for tests: the functions of libnvidia-ml.so.1 that PyTorch calls, for devices without NVLink.
 *
 * Like NVML, this library does not initialize the driver, so that a program may call it and fork afterwards.  Therefore it
 * reads the number of devices from the variable of the simulator.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Functions whose signature is NVML's ignore some of their arguments. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define EXPORT __attribute__((visibility("default")))

/* Values of nvmlReturn_t. */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

/* The first version of nvmlProcessInfo_t. */
struct process {
    unsigned id;
    unsigned long long bytes;
};

int nvmlInit(void);
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device);
int nvmlDeviceGetUUID(void *device, char *text, unsigned bytes);
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes);
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info);
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info);
int nvmlSystemGetCudaDriverVersion_v2(int *version);
const char *nvmlErrorString(int result);

static unsigned devices(void)
{
    const char *text = getenv("XSEG_SIM_DEVICES");
    const long count = text != NULL ? strtol(text, NULL, 10) : 1;

    return count > 0 && count <= 64 ? (unsigned)count : 1;
}

EXPORT int nvmlInit(void)
{
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void)
{
    return SUCCESS;
}

EXPORT int nvmlShutdown(void)
{
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = devices();
    return SUCCESS;
}

/* The handle of a device is its index plus one. */
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index >= devices())
        return INVALID_ARGUMENT;
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    unsigned domain = 0, index = 0;

    if (sscanf(bus, "%x:%x", &domain, &index) != 2 || index == 0)
        return INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(index - 1, device);
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned bytes)
{
    (void)snprintf(text, bytes, "GPU-78736567-2d73-696d-2064-6576696365%02x",
                   (unsigned)(uintptr_t)device - 1);
    return SUCCESS;
}

/* The processes in the variable NVML_PROCESSES, such as "self:1048576,77:2097152"; by default none. */
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes)
{
    struct process *out = processes;
    const unsigned capacity = *count;
    const char *at = getenv("NVML_PROCESSES");

    for (*count = 0; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        const char *bytes = strchr(at, ':');
        if (bytes == NULL)
            break;
        if (*count < capacity)
            out[*count] = (struct process){
                strncmp(at, "self", 4) == 0 ? (unsigned)getpid() : (unsigned)strtoul(at, NULL, 10),
                strtoull(bytes + 1, NULL, 10)};
        ++*count;
    }
    return *count <= capacity ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes)
{
    *count = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type)
{
    return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info)
{
    return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(void *device, void *info)
{
    /* The first word is the version of the structure, which contains its size; a state of 0 is "not supported". */
    const uint32_t version = *(const uint32_t *)info;

    memset((char *)info + sizeof(version), 0, (version & 0xffffff) - sizeof(version));
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 13000;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int result)
{
    return result == SUCCESS ? "no error" : "operation failed";
}
