/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's allocator interface, and its differences between versions.
 *
 * The adapter declares each method with the signatures of all supported versions.  The signatures of the compiled version
 * override its virtual methods; the others are unused overloads.  Other differences are in this header, and depend on the
 * contents of PyTorch's headers rather than on the version.
 *
 * The build defines XSEG_TORCH_SEGMENT_SIZES if the headers have StreamSegmentSize.
 */
#ifndef XSEG_ADAPTERS_TORCH_INTERFACE_H
#define XSEG_ADAPTERS_TORCH_INTERFACE_H

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#if __has_include(<c10/core/AllocatorConfig.h>)
#include <c10/core/AllocatorConfig.h>
#define XSEG_TORCH_HAS_ALLOCATOR_CONFIG 1
#else
#define XSEG_TORCH_HAS_ALLOCATOR_CONFIG 0
#endif

#if __has_include(<c10/cuda/CUDAAllocatorConfig.h>)
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif

namespace xseg_torch
{

namespace caching = c10::cuda::CUDACachingAllocator;

using c10::DeviceIndex;
using c10::GatheredContext;
using c10::cuda::MempoolId_t;
using caching::AllocatorConfigInfo;
using caching::AllocatorState;
using caching::AllocatorTraceTracker;
using caching::BlockInfo;
using caching::CheckpointDelta;
using caching::CreateContextFn;
using caching::CUDAAllocator;
using caching::DeviceStats;
using caching::OutOfMemoryObserver;
using caching::RecordContext;
using caching::SegmentInfo;
using caching::ShareableHandle;
using caching::SnapshotInfo;
using caching::TraceEntry;

/* An entry of record_function(), whose namespace differs. */
using Annotation = decltype(SnapshotInfo::external_annotations)::value_type;

} // namespace xseg_torch

#endif
