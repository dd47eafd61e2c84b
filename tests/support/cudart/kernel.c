/* SPDX-License-Identifier: MIT */
/*
 * Kernels: fat binaries that are registered and never read, and launches that queue work without an effect on memory.
 *
 * nvcc generates calls of the functions that begin with __cuda, which no C header declares.
 */
#include <stddef.h>
#include <string.h>

#include "tests/support/cudart/driver.h"

enum { THREADS_MAX = 1024, BLOCKS_RESIDENT = 2 };

/* Registered objects, which are not inspected. */
void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, void *thread, void *block, void *block_size, void *grid_size,
                            int *warp);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_external,
                       size_t bytes, int is_constant, int is_global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream);

EXPORT void **__cudaRegisterFatBinary(void *image)
{
    static void *handle;

    return &handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {}

EXPORT void __cudaUnregisterFatBinary(void **handle) {}

EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                   int limit, void *thread, void *block, void *block_size,
                                   void *grid_size, int *warp)
{
}

EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name,
                              int is_external, size_t bytes, int is_constant, int is_global)
{
}

/* The configuration of a launch, which a push passes to the next pop. */
static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                            struct CUstream_st *stream)
{
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    memcpy(stream, &configuration.stream, sizeof(configuration.stream));
    return cudaSuccess;
}

static int is_launchable(dim3 grid, dim3 block)
{
    return grid.x != 0 && grid.y != 0 && grid.z != 0 && block.x != 0 && block.y != 0 &&
           block.z != 0 && (size_t)block.x * block.y * block.z <= THREADS_MAX;
}

static cudaError_t launch_kernel(dim3 grid, dim3 block, cudaStream_t stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cudaError_t error = enter_context();

    if (error == cudaSuccess)
        error = to_error(driver.cuStreamIsCapturing(stream, &status));
    if (error == cudaSuccess && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        error = cudaErrorStreamCaptureInvalidated;
    if (error != cudaSuccess)
        return error;
    if (!is_launchable(grid, block))
        return cudaErrorInvalidConfiguration;
    if (driver.launch == NULL)
        return cudaErrorNotSupported;
    return driver.launch(stream, 0) == 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream)
{
    return record_error(launch_kernel(grid, block, stream));
}

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block,
                                               void **arguments, size_t shared, cudaStream_t stream)
{
    return record_error(launch_kernel(grid, block, stream));
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                       void **arguments)
{
    return record_error(launch_kernel(config->gridDim, config->blockDim, config->stream));
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                      size_t shared, cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes,
                                         const void *function)
{
    memset(attributes, 0, sizeof(*attributes));
    attributes->maxThreadsPerBlock = THREADS_MAX;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 80;
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute,
                                        int value)
{
    return cudaSuccess;
}

EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel,
                                                   enum cudaFuncAttribute attribute, int value,
                                                   int device)
{
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *function, int threads, size_t shared, unsigned flags)
{
    *blocks = BLOCKS_RESIDENT;
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                                 int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                                  0);
}

/* Variables of kernels have no memory: copies to them have no effect, and they have no address. */
EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes,
                                      size_t offset, enum cudaMemcpyKind kind)
{
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetSymbolAddress(void **out, const void *symbol)
{
    return record_error(cudaErrorInvalidSymbol);
}

/* Libraries of kernels that are compiled at run time. */
EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                                       enum cudaJitOption *options, void **values, unsigned count,
                                       enum cudaLibraryOption *library_options,
                                       void **library_values, unsigned library_count)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *library, const char *path,
                                           enum cudaJitOption *options, void **values,
                                           unsigned count, enum cudaLibraryOption *library_options,
                                           void **library_values, unsigned library_count)
{
    return cudaLibraryLoadData(library, NULL, options, values, count, library_options,
                               library_values, library_count);
}

EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    return record_error(cudaErrorInvalidResourceHandle);
}

EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library,
                                        const char *name)
{
    return record_error(cudaErrorInvalidResourceHandle);
}

EXPORT cudaError_t cudaLibraryGetKernelCount(unsigned *count, cudaLibrary_t library)
{
    return record_error(cudaErrorInvalidResourceHandle);
}

EXPORT cudaError_t cudaLibraryGetGlobal(void **address, size_t *bytes, cudaLibrary_t library,
                                        const char *name)
{
    return record_error(cudaErrorInvalidResourceHandle);
}

EXPORT cudaError_t cudaLibraryGetManaged(void **address, size_t *bytes, cudaLibrary_t library,
                                         const char *name)
{
    return cudaLibraryGetGlobal(address, bytes, library, name);
}

EXPORT cudaError_t cudaLibraryGetUnifiedFunction(void **function, cudaLibrary_t library,
                                                 const char *symbol)
{
    return record_error(cudaErrorInvalidResourceHandle);
}
