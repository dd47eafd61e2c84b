# SPDX-License-Identifier: MIT
"""Snapshots and histories without addresses, to compare two allocators.

Addresses depend on the driver.  So a block is identified by its offset in the segment and by its tensor, and an event by
the index of the event that allocated its memory.  Intended differences are removed; each of them has a row in
docs/differences.md.
"""
import itertools

import torch

MEMBERS = ("device", "segment_pool_id", "segment_type", "is_expandable", "total_size", "allocated_size", "active_size",
           "requested_size")
GOES_BACK = ("segment_free", "segment_unmap")
# Their addresses are of parts of a segment, or no addresses.
NOT_NAMED = ("segment_map", "segment_unmap", "snapshot", "oom")


def in_one_order(events):
    """Events, with those sorted by which segments go back one after the other."""
    for goes_back, run in itertools.groupby(events, lambda event: event[0] in GOES_BACK):
        yield from sorted(run, key=str) if goes_back else run


class Pictures:
    """Pictures of one process; streams are named by their place in a list."""

    def __init__(self, streams):
        self.streams = {stream.cuda_stream: number for number, stream in enumerate(streams)}
        self.numbers = {}
        self.count = 0
        self.record()

    def record(self):
        torch.cuda.memory._record_memory_history(context=None, max_entries=1 << 20, clear_history=True, compile_context=True,
                                                 global_record_annotations=True)

    def stream(self, handle):
        """A stream's number, or that it is the one that captures."""
        if handle not in self.streams and handle == torch.cuda.graph.default_capture_stream.cuda_stream:
            return "capture"
        return self.streams[handle]

    def segment(self, segment, tensors):
        blocks = [[block["address"] - segment["address"], block["size"], block["requested_size"], block["state"],
                   tensors.get(block["address"]) if block["state"] == "active_allocated" else None]
                  for block in segment["blocks"]]
        return [[segment[name] for name in MEMBERS], str(self.stream(segment["stream"])), blocks]

    def number(self, action, address):
        """The number of the event that allocated what lies at this address: a block, or a segment."""
        kind = "segment" if action.startswith("segment") else "block"
        if action in ("alloc", "segment_alloc"):
            self.count += 1
            self.numbers[kind, address] = self.count
        return self.numbers.get((kind, address))

    def event(self, event):
        """An event without its address and time."""
        action = event["action"]
        return [action, None if action in NOT_NAMED else self.number(action, event["addr"]), event["size"],
                self.stream(event["stream"]), event["pool_id"], event["compile_context"], event["user_metadata"]]

    def take(self, tensors):
        """All segments, and the events since the last picture; tensors has a number for the address of each live tensor."""
        taken = torch.cuda.memory._snapshot()
        events = [self.event(event) for event in taken["device_traces"][0]]
        self.record()
        segments = sorted((self.segment(segment, tensors) for segment in taken["segments"]), key=str)
        annotations = [[note["stage"], note["name"]] for note in taken["external_annotations"]]
        return [segments, list(in_one_order(events)), annotations, taken["allocator_settings"]]
