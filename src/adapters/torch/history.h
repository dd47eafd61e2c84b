/* SPDX-License-Identifier: MIT */
/* Recording as PyTorch asks for it, by the library's history. */
#ifndef XSEG_ADAPTERS_TORCH_HISTORY_H
#define XSEG_ADAPTERS_TORCH_HISTORY_H

#include <vector>

#include "src/adapters/torch/allocator.h"

namespace xseg_torch
{

/** The newest events of a device, at most the entries of recordHistory(), as PyTorch's entries, the oldest first. */
std::vector<TraceEntry> trace_entries(Allocator *allocator, DeviceIndex device);

/** The newest annotations of a time, at most the entries of recordHistory(), the oldest first. */
std::vector<Annotation> time_annotations();

/** Write into the history that a snapshot was taken: the next one shows it. */
void note_snapshot(Allocator *allocator, DeviceIndex device, size_t active_bytes);

/** Give the calling thread's metadata and compile context to its events; before init() they only stay with the thread. */
void set_thread_label(Allocator *allocator);

/** While one exists, events of the calling thread say which call of PyTorch's causes them. */
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

/** Make an entry of a trace; versions of PyTorch differ in what it is made of. */
TraceEntry make_entry(TraceEntry::Action action, DeviceIndex device, size_t address, size_t bytes,
                      cudaStream_t stream, MempoolId_t pool);

} // namespace xseg_torch

#endif
