# SPDX-License-Identifier: MIT
"""Snapshots and histories without addresses, for comparisons of two allocators.

Addresses depend on the driver.  So a block is identified by its offset in the segment and by its tensor, and an event by
the index of the event that allocated its memory.  Intended differences are removed; each of them has a row in
docs/differences.md.
"""
import itertools

import torch

MEMBERS = ("device", "segment_pool_id", "segment_type", "is_expandable", "total_size", "allocated_size", "active_size",
           "requested_size")
UNMAPPING = ("segment_free", "segment_unmap")
# The addresses of these events are within a segment, or are no addresses.
WITHOUT_INDEX = ("segment_map", "segment_unmap", "snapshot", "oom")


def in_canonical_order(events):
    """Yields the events; consecutive events that unmap segments are sorted."""
    for is_unmapping, run in itertools.groupby(events, lambda event: event[0] in UNMAPPING):
        yield from sorted(run, key=str) if is_unmapping else run


class NormalizedSnapshots:
    """Normalized snapshots of one process; streams are identified by their index in a list."""

    def __init__(self, streams):
        self.streams = {stream.cuda_stream: index for index, stream in enumerate(streams)}
        self.indexes = {}
        self.count = 0
        self.record()

    def record(self):
        torch.cuda.memory._record_memory_history(context=None, max_entries=1 << 20, clear_history=True, compile_context=True,
                                                 global_record_annotations=True)

    def stream(self, handle):
        """The index of a stream, or "capture" for the capture stream."""
        if handle not in self.streams and handle == torch.cuda.graph.default_capture_stream.cuda_stream:
            return "capture"
        return self.streams[handle]

    def segment(self, segment, tensors):
        blocks = [[block["address"] - segment["address"], block["size"], block["requested_size"], block["state"],
                   tensors.get(block["address"]) if block["state"] == "active_allocated" else None]
                  for block in segment["blocks"]]
        return [[segment[name] for name in MEMBERS], str(self.stream(segment["stream"])), blocks]

    def index(self, action, address):
        """The index of the event that allocated the block or the segment at this address."""
        kind = "segment" if action.startswith("segment") else "block"
        if action in ("alloc", "segment_alloc"):
            self.count += 1
            self.indexes[kind, address] = self.count
        return self.indexes.get((kind, address))

    def event(self, event):
        """An event without its address and time."""
        action = event["action"]
        return [action, None if action in WITHOUT_INDEX else self.index(action, event["addr"]), event["size"],
                self.stream(event["stream"]), event["pool_id"], event["compile_context"], event["user_metadata"]]

    def collect(self, tensors):
        """Returns all segments, and the events since the last call; `tensors` maps the addresses of tensors to indexes."""
        snapshot = torch.cuda.memory._snapshot()
        events = [self.event(event) for event in snapshot["device_traces"][0]]
        self.record()
        segments = sorted((self.segment(segment, tensors) for segment in snapshot["segments"]), key=str)
        annotations = [[entry["stage"], entry["name"]] for entry in snapshot["external_annotations"]]
        return [segments, list(in_canonical_order(events)), annotations, snapshot["allocator_settings"]]
