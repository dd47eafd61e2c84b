/* SPDX-License-Identifier: MIT */
/* PyTorch's memory history, implemented by the library's history. */
#ifndef XSEG_ADAPTERS_TORCH_HISTORY_H
#define XSEG_ADAPTERS_TORCH_HISTORY_H

#include <vector>

#include "src/adapters/torch/allocator.h"

namespace xseg_torch
{

/** Get the newest events of a device as PyTorch's entries, the oldest first; at most the entries of recordHistory(). */
std::vector<TraceEntry> trace_entries(Allocator *allocator, DeviceIndex device);

/** Get the newest annotations of a time, the oldest first; at most the entries of recordHistory(). */
std::vector<Annotation> time_annotations();

/** Record a snapshot as an event, which the next snapshot contains. */
void record_snapshot(Allocator *allocator, DeviceIndex device, size_t active_bytes);

/** Attach the calling thread's metadata and compile context to its events.  Before init() the thread only stores them. */
void set_thread_label(Allocator *allocator);

/** While an object exists, events of the calling thread contain the name of the PyTorch function that causes them. */
class InternalMetadata
{
  public:
    InternalMetadata(Allocator *allocator, const char *text);
    ~InternalMetadata();
    InternalMetadata(const InternalMetadata &) = delete;
    InternalMetadata &operator=(const InternalMetadata &) = delete;

  private:
    Allocator *allocator_; /* NULL: nothing is recorded */
};

/** Create an entry of a trace, whose constructor depends on the version of PyTorch. */
TraceEntry make_entry(TraceEntry::Action action, DeviceIndex device, size_t address, size_t bytes,
                      cudaStream_t stream, MempoolId_t pool);

} // namespace xseg_torch

#endif
