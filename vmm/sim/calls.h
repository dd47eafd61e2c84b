/* SPDX-License-Identifier: MIT */
/*
 * The call table: one row per entry point.
 *
 *   id       suffix of SIM_CALL_id, the number of the call.
 *   name     name without version suffix, as applications and cuGetProcAddress use it.
 *   symbol   exported function.
 *   version  CUDA version that introduced this signature.
 *   checks   checks on entry (enum sim_checks).
 *
 * Several rows have the same name if the call has several signatures.  Counters, fault injection, checks on entry and
 * cuGetProcAddress are generated from the table.
 */
#ifndef XSEG_SIM_CALLS_H
#define XSEG_SIM_CALLS_H

#include <cuda.h>

enum sim_checks {
    SIM_NEVER_FAILS = 1,   /* faults of "any call that can fail" do not apply */
    SIM_NEEDS_INIT = 2,    /* CUDA_ERROR_NOT_INITIALIZED before cuInit */
    SIM_NEEDS_CONTEXT = 4, /* CUDA_ERROR_INVALID_CONTEXT without a current context */
    SIM_NEEDS_VMM = 8,     /* CUDA_ERROR_NOT_SUPPORTED without virtual memory management */
    /* Potentially unsafe during a capture (capture.h).  Event calls check this themselves, after the checks of the event. */
    SIM_UNSAFE = 16
};

#define SIM_PLAIN   SIM_NEEDS_INIT
#define SIM_CURRENT (SIM_NEEDS_INIT | SIM_NEEDS_CONTEXT)
#define SIM_VMM     (SIM_NEEDS_INIT | SIM_NEEDS_VMM)

/* clang-format off */
#define SIM_CALL_MAP(X)                                                                                                     \
    X(INIT, "cuInit", cuInit, 2000, 0)                                                                                      \
    X(DRIVER_GET_VERSION, "cuDriverGetVersion", cuDriverGetVersion, 2020, SIM_NEVER_FAILS)                                  \
    X(GET_ERROR_NAME, "cuGetErrorName", cuGetErrorName, 6000, SIM_NEVER_FAILS)                                              \
    X(GET_ERROR_STRING, "cuGetErrorString", cuGetErrorString, 6000, SIM_NEVER_FAILS)                                        \
    X(GET_PROC_ADDRESS_V1, "cuGetProcAddress", cuGetProcAddress, 11030, SIM_NEVER_FAILS)                                    \
    X(GET_PROC_ADDRESS, "cuGetProcAddress", cuGetProcAddress_v2, 12000, SIM_NEVER_FAILS)                                    \
    X(DEVICE_GET_COUNT, "cuDeviceGetCount", cuDeviceGetCount, 2000, SIM_PLAIN)                                              \
    X(DEVICE_GET, "cuDeviceGet", cuDeviceGet, 2000, SIM_PLAIN)                                                              \
    X(DEVICE_GET_NAME, "cuDeviceGetName", cuDeviceGetName, 2000, SIM_PLAIN)                                                 \
    X(DEVICE_GET_UUID, "cuDeviceGetUuid", cuDeviceGetUuid, 9020, SIM_PLAIN)                                                 \
    X(DEVICE_GET_UUID_V2, "cuDeviceGetUuid", cuDeviceGetUuid_v2, 11040, SIM_PLAIN)                                          \
    X(DEVICE_TOTAL_MEM, "cuDeviceTotalMem", cuDeviceTotalMem_v2, 3020, SIM_PLAIN)                                           \
    X(DEVICE_GET_ATTRIBUTE, "cuDeviceGetAttribute", cuDeviceGetAttribute, 2000, SIM_PLAIN)                                  \
    X(DEVICE_GET_PCI_BUS_ID, "cuDeviceGetPCIBusId", cuDeviceGetPCIBusId, 4010, SIM_PLAIN)                                   \
    X(PRIMARY_CTX_RETAIN, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain, 7000, SIM_PLAIN)                            \
    X(PRIMARY_CTX_RELEASE, "cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2, 11000, SIM_PLAIN)                     \
    X(PRIMARY_CTX_GET_STATE, "cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState, 7000, SIM_PLAIN)                     \
    X(PRIMARY_CTX_RESET, "cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2, 11000, SIM_PLAIN)                           \
    X(CTX_PUSH_CURRENT, "cuCtxPushCurrent", cuCtxPushCurrent_v2, 4000, SIM_PLAIN)                                           \
    X(CTX_POP_CURRENT, "cuCtxPopCurrent", cuCtxPopCurrent_v2, 4000, SIM_PLAIN)                                              \
    X(CTX_GET_CURRENT, "cuCtxGetCurrent", cuCtxGetCurrent, 4000, SIM_PLAIN)                                                 \
    X(CTX_SET_CURRENT, "cuCtxSetCurrent", cuCtxSetCurrent, 4000, SIM_PLAIN)                                                 \
    X(CTX_GET_DEVICE, "cuCtxGetDevice", cuCtxGetDevice, 2000, SIM_CURRENT)                                                  \
    X(CTX_GET_DEVICE_V2, "cuCtxGetDevice", cuCtxGetDevice_v2, 13000, SIM_PLAIN)                                             \
    X(CTX_GET_ID, "cuCtxGetId", cuCtxGetId, 12000, SIM_PLAIN)                                                               \
    X(CTX_GET_FLAGS, "cuCtxGetFlags", cuCtxGetFlags, 7000, SIM_CURRENT)                                                     \
    X(CTX_SET_FLAGS, "cuCtxSetFlags", cuCtxSetFlags, 12010, SIM_CURRENT)                                                    \
    X(CTX_SYNCHRONIZE, "cuCtxSynchronize", cuCtxSynchronize, 2000, SIM_CURRENT)                                             \
    X(CTX_SYNCHRONIZE_V2, "cuCtxSynchronize", cuCtxSynchronize_v2, 13000, SIM_PLAIN)                                        \
    X(CTX_GET_PRIORITIES, "cuCtxGetStreamPriorityRange", cuCtxGetStreamPriorityRange, 5050, SIM_CURRENT)                    \
    X(MEM_GET_INFO, "cuMemGetInfo", cuMemGetInfo_v2, 3020, SIM_CURRENT)                                                     \
    X(MEM_ALLOC, "cuMemAlloc", cuMemAlloc_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                               \
    X(MEM_FREE, "cuMemFree", cuMemFree_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                                  \
    X(MEM_GET_GRANULARITY, "cuMemGetAllocationGranularity", cuMemGetAllocationGranularity, 10020, SIM_VMM)                  \
    X(MEM_ADDRESS_RESERVE, "cuMemAddressReserve", cuMemAddressReserve, 10020, SIM_VMM)                                      \
    X(MEM_ADDRESS_FREE, "cuMemAddressFree", cuMemAddressFree, 10020, SIM_VMM)                                               \
    X(MEM_CREATE, "cuMemCreate", cuMemCreate, 10020, SIM_VMM)                                                               \
    X(MEM_RELEASE, "cuMemRelease", cuMemRelease, 10020, SIM_VMM)                                                            \
    X(MEM_MAP, "cuMemMap", cuMemMap, 10020, SIM_VMM)                                                                        \
    X(MEM_UNMAP, "cuMemUnmap", cuMemUnmap, 10020, SIM_VMM)                                                                  \
    X(MEM_SET_ACCESS, "cuMemSetAccess", cuMemSetAccess, 10020, SIM_VMM)                                                     \
    X(MEM_GET_ACCESS, "cuMemGetAccess", cuMemGetAccess, 10020, SIM_VMM)                                                     \
    X(MEM_RETAIN_HANDLE, "cuMemRetainAllocationHandle", cuMemRetainAllocationHandle, 11000, SIM_VMM)                        \
    X(DEVICE_CAN_ACCESS_PEER, "cuDeviceCanAccessPeer", cuDeviceCanAccessPeer, 4000, SIM_PLAIN)                              \
    X(CTX_ENABLE_PEER, "cuCtxEnablePeerAccess", cuCtxEnablePeerAccess, 4000, SIM_CURRENT)                                   \
    X(CTX_DISABLE_PEER, "cuCtxDisablePeerAccess", cuCtxDisablePeerAccess, 4000, SIM_CURRENT)                                \
    X(POINTER_GET_ATTRIBUTE, "cuPointerGetAttribute", cuPointerGetAttribute, 4000, SIM_PLAIN)                               \
    X(POINTER_GET_ATTRIBUTES, "cuPointerGetAttributes", cuPointerGetAttributes, 7000, SIM_PLAIN)                            \
    X(POINTER_SET_ATTRIBUTE, "cuPointerSetAttribute", cuPointerSetAttribute, 6000, SIM_PLAIN)                               \
    X(MEM_GET_ADDRESS_RANGE, "cuMemGetAddressRange", cuMemGetAddressRange_v2, 3020, SIM_CURRENT)                            \
    X(MEM_GET_PROPERTIES, "cuMemGetAllocationPropertiesFromHandle", cuMemGetAllocationPropertiesFromHandle, 10020, SIM_VMM) \
    X(MEM_EXPORT, "cuMemExportToShareableHandle", cuMemExportToShareableHandle, 10020, SIM_VMM)                             \
    X(MEM_IMPORT, "cuMemImportFromShareableHandle", cuMemImportFromShareableHandle, 10020, SIM_VMM)                         \
    X(MEM_GET_RANGE_HANDLE, "cuMemGetHandleForAddressRange", cuMemGetHandleForAddressRange, 11070, SIM_PLAIN)               \
    X(IPC_GET_MEM, "cuIpcGetMemHandle", cuIpcGetMemHandle, 4010, SIM_CURRENT)                                               \
    X(IPC_OPEN_MEM, "cuIpcOpenMemHandle", cuIpcOpenMemHandle_v2, 11000, SIM_CURRENT | SIM_UNSAFE)                           \
    X(IPC_CLOSE_MEM, "cuIpcCloseMemHandle", cuIpcCloseMemHandle, 4010, SIM_CURRENT | SIM_UNSAFE)                            \
    X(IPC_GET_EVENT, "cuIpcGetEventHandle", cuIpcGetEventHandle, 4010, SIM_CURRENT)                                         \
    X(IPC_OPEN_EVENT, "cuIpcOpenEventHandle", cuIpcOpenEventHandle, 4010, SIM_CURRENT)                                      \
    X(MEM_HOST_ALLOC, "cuMemHostAlloc", cuMemHostAlloc, 2020, SIM_CURRENT | SIM_UNSAFE)                                     \
    X(MEM_FREE_HOST, "cuMemFreeHost", cuMemFreeHost, 2000, SIM_CURRENT | SIM_UNSAFE)                                        \
    X(MEM_HOST_REGISTER, "cuMemHostRegister", cuMemHostRegister_v2, 6050, SIM_CURRENT | SIM_UNSAFE)                         \
    X(MEM_HOST_UNREGISTER, "cuMemHostUnregister", cuMemHostUnregister, 4000, SIM_CURRENT | SIM_UNSAFE)                      \
    X(MEMCPY, "cuMemcpy", cuMemcpy, 4000, SIM_CURRENT | SIM_UNSAFE)                                                         \
    X(MEMCPY_ASYNC, "cuMemcpyAsync", cuMemcpyAsync, 4000, SIM_CURRENT)                                                      \
    X(MEMCPY_PEER_ASYNC, "cuMemcpyPeerAsync", cuMemcpyPeerAsync, 4000, SIM_CURRENT)                                         \
    X(MEMCPY_HTOD, "cuMemcpyHtoD", cuMemcpyHtoD_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                         \
    X(MEMCPY_HTOD_ASYNC, "cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, 3020, SIM_CURRENT)                                      \
    X(MEMCPY_DTOH, "cuMemcpyDtoH", cuMemcpyDtoH_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                         \
    X(MEMCPY_DTOH_ASYNC, "cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, 3020, SIM_CURRENT)                                      \
    X(MEMCPY_DTOD, "cuMemcpyDtoD", cuMemcpyDtoD_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                         \
    X(MEMCPY_DTOD_ASYNC, "cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2, 3020, SIM_CURRENT)                                      \
    X(MEMSET_D8, "cuMemsetD8", cuMemsetD8_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                               \
    X(MEMSET_D16, "cuMemsetD16", cuMemsetD16_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                            \
    X(MEMSET_D32, "cuMemsetD32", cuMemsetD32_v2, 3020, SIM_CURRENT | SIM_UNSAFE)                                            \
    X(MEMSET_D8_ASYNC, "cuMemsetD8Async", cuMemsetD8Async, 3020, SIM_CURRENT)                                               \
    X(MEMSET_D16_ASYNC, "cuMemsetD16Async", cuMemsetD16Async, 3020, SIM_CURRENT)                                            \
    X(MEMSET_D32_ASYNC, "cuMemsetD32Async", cuMemsetD32Async, 3020, SIM_CURRENT)                                            \
    X(LAUNCH_HOST_FUNC, "cuLaunchHostFunc", cuLaunchHostFunc, 10000, SIM_CURRENT)                                           \
    X(STREAM_WRITE_VALUE32, "cuStreamWriteValue32", cuStreamWriteValue32_v2, 11070, SIM_CURRENT)                            \
    X(STREAM_CREATE, "cuStreamCreate", cuStreamCreate, 2000, SIM_CURRENT)                                                   \
    X(STREAM_CREATE_PRIORITY, "cuStreamCreateWithPriority", cuStreamCreateWithPriority, 5050, SIM_CURRENT)                  \
    X(STREAM_DESTROY, "cuStreamDestroy", cuStreamDestroy_v2, 4000, SIM_CURRENT)                                             \
    X(STREAM_QUERY, "cuStreamQuery", cuStreamQuery, 2000, SIM_CURRENT | SIM_UNSAFE)                                         \
    X(STREAM_SYNCHRONIZE, "cuStreamSynchronize", cuStreamSynchronize, 2000, SIM_CURRENT | SIM_UNSAFE)                       \
    X(STREAM_WAIT_EVENT, "cuStreamWaitEvent", cuStreamWaitEvent, 3020, SIM_CURRENT)                                         \
    X(STREAM_GET_ID, "cuStreamGetId", cuStreamGetId, 12000, SIM_PLAIN)                                                      \
    X(STREAM_GET_FLAGS, "cuStreamGetFlags", cuStreamGetFlags, 5050, SIM_PLAIN)                                              \
    X(STREAM_GET_PRIORITY, "cuStreamGetPriority", cuStreamGetPriority, 5050, SIM_PLAIN)                                     \
    X(STREAM_GET_CTX, "cuStreamGetCtx", cuStreamGetCtx, 9020, SIM_PLAIN)                                                    \
    X(STREAM_GET_CTX_V2, "cuStreamGetCtx", cuStreamGetCtx_v2, 12050, SIM_PLAIN)                                             \
    X(STREAM_BEGIN_CAPTURE, "cuStreamBeginCapture", cuStreamBeginCapture_v2, 10010, SIM_CURRENT)                            \
    X(STREAM_BEGIN_CAPTURE_TO_GRAPH, "cuStreamBeginCaptureToGraph", cuStreamBeginCaptureToGraph, 12030, SIM_CURRENT)        \
    X(STREAM_END_CAPTURE, "cuStreamEndCapture", cuStreamEndCapture, 10000, SIM_CURRENT)                                     \
    X(STREAM_IS_CAPTURING, "cuStreamIsCapturing", cuStreamIsCapturing, 10000, SIM_PLAIN)                                    \
    X(STREAM_GET_CAPTURE_INFO, "cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v2, 11030, SIM_PLAIN)                       \
    X(STREAM_GET_CAPTURE_INFO_V3, "cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v3, 12030, SIM_PLAIN)                    \
    X(EXCHANGE_CAPTURE_MODE, "cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode, 10010, SIM_PLAIN)      \
    X(STREAM_UPDATE_DEPENDENCIES, "cuStreamUpdateCaptureDependencies", cuStreamUpdateCaptureDependencies, 11030, SIM_PLAIN)        \
    X(STREAM_UPDATE_DEPENDENCIES_V2, "cuStreamUpdateCaptureDependencies", cuStreamUpdateCaptureDependencies_v2, 12030, SIM_PLAIN)  \
    X(GRAPH_GET_NODES, "cuGraphGetNodes", cuGraphGetNodes, 10000, SIM_PLAIN)                                                \
    X(GRAPH_GET_ROOT_NODES, "cuGraphGetRootNodes", cuGraphGetRootNodes, 10000, SIM_PLAIN)                                   \
    X(GRAPH_GET_EDGES, "cuGraphGetEdges", cuGraphGetEdges, 10000, SIM_PLAIN)                                                \
    X(GRAPH_GET_EDGES_V2, "cuGraphGetEdges", cuGraphGetEdges_v2, 12030, SIM_PLAIN)                                          \
    X(GRAPH_NODE_GET_DEPENDENCIES, "cuGraphNodeGetDependencies", cuGraphNodeGetDependencies, 10000, SIM_PLAIN)                     \
    X(GRAPH_NODE_GET_DEPENDENCIES_V2, "cuGraphNodeGetDependencies", cuGraphNodeGetDependencies_v2, 12030, SIM_PLAIN)               \
    X(GRAPH_NODE_GET_TYPE, "cuGraphNodeGetType", cuGraphNodeGetType, 10000, SIM_PLAIN)                                      \
    X(GRAPH_CREATE, "cuGraphCreate", cuGraphCreate, 10000, SIM_PLAIN)                                                       \
    X(GRAPH_DESTROY, "cuGraphDestroy", cuGraphDestroy, 10000, SIM_PLAIN)                                                    \
    X(GRAPH_INSTANTIATE, "cuGraphInstantiate", cuGraphInstantiateWithFlags, 12000, SIM_CURRENT)                             \
    X(GRAPH_INSTANTIATE_FLAGS, "cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags, 11040, SIM_CURRENT)              \
    X(GRAPH_LAUNCH, "cuGraphLaunch", cuGraphLaunch, 10000, SIM_CURRENT)                                                     \
    X(GRAPH_EXEC_DESTROY, "cuGraphExecDestroy", cuGraphExecDestroy, 10000, SIM_PLAIN)                                       \
    X(USER_OBJECT_CREATE, "cuUserObjectCreate", cuUserObjectCreate, 11030, SIM_PLAIN)                                       \
    X(USER_OBJECT_RETAIN, "cuUserObjectRetain", cuUserObjectRetain, 11030, SIM_PLAIN)                                       \
    X(USER_OBJECT_RELEASE, "cuUserObjectRelease", cuUserObjectRelease, 11030, SIM_PLAIN)                                    \
    X(GRAPH_RETAIN_OBJECT, "cuGraphRetainUserObject", cuGraphRetainUserObject, 11030, SIM_PLAIN)                            \
    X(EVENT_CREATE, "cuEventCreate", cuEventCreate, 2000, SIM_CURRENT)                                                      \
    X(EVENT_DESTROY, "cuEventDestroy", cuEventDestroy_v2, 4000, SIM_PLAIN)                                                  \
    X(EVENT_RECORD, "cuEventRecord", cuEventRecord, 2000, SIM_CURRENT)                                                      \
    X(EVENT_RECORD_FLAGS, "cuEventRecordWithFlags", cuEventRecordWithFlags, 11010, SIM_CURRENT)                             \
    X(EVENT_QUERY, "cuEventQuery", cuEventQuery, 2000, SIM_PLAIN)                                                           \
    X(EVENT_SYNCHRONIZE, "cuEventSynchronize", cuEventSynchronize, 2000, SIM_PLAIN)                                         \
    X(EVENT_ELAPSED, "cuEventElapsedTime", cuEventElapsedTime, 2000, SIM_PLAIN)                                             \
    X(EVENT_ELAPSED_V2, "cuEventElapsedTime", cuEventElapsedTime_v2, 12080, SIM_PLAIN)                                      \
    SIM_CALL_MAP_12_4(X)

/* Calls whose types are in cuda.h since 12.4. */
#if CUDA_VERSION >= 12040
#define SIM_CALL_MAP_12_4(X)                                                                                                \
    X(GRAPH_CONDITIONAL_CREATE, "cuGraphConditionalHandleCreate", cuGraphConditionalHandleCreate, 12030, SIM_PLAIN)           \
    X(GRAPH_ADD_NODE, "cuGraphAddNode", cuGraphAddNode_v2, 12030, SIM_PLAIN)
#else
#define SIM_CALL_MAP_12_4(X)
#endif
/* clang-format on */

enum sim_call {
#define SIM_CALL_ENUM_(id, name, symbol, version, checks) SIM_CALL_##id,
    SIM_CALL_MAP(SIM_CALL_ENUM_)
#undef SIM_CALL_ENUM_
        SIM_CALL_COUNT
};

/* The checks of each call as constants, SIM_CHECKS_id. */
enum {
#define SIM_CHECKS_ENUM_(id, name, symbol, version, checks) SIM_CHECKS_##id = (checks),
    SIM_CALL_MAP(SIM_CHECKS_ENUM_)
#undef SIM_CHECKS_ENUM_
};

/** A row of the table, without the symbol. */
struct sim_call_info {
    const char *name;
    int version;
    unsigned checks;
};

extern const struct sim_call_info sim_call_info[SIM_CALL_COUNT];

#endif
