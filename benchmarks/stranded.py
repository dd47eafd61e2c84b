# SPDX-License-Identifier: MIT
"""Model of PyTorch's placement on pages of one size, up to the first out-of-memory error of the driver.

Up to this error, xseg places every block as PyTorch does, so the memory that is stranded on pages next to allocated blocks
depends only on the trace.  Used by `shortage.py TOOL --stranded`.
"""
import bisect
import collections

MIB = 1 << 20
GRANULE = 2 * MIB
UNLIMITED = 1 << 60
ALLOCATED, CACHED, UNMAPPED = range(3)
SMALL, LARGE = (0, 0, True), (0, 0, False)  # default pool and stream, whether small


class Block:
    __slots__ = ("base", "bytes", "state", "prev", "next")

    def __init__(self, base, size, state, prev, next_block):
        self.base, self.bytes, self.state = base, size, state
        self.prev, self.next = prev, next_block

    def can_grow(self):
        return self.next is not None and self.next.state == UNMAPPED

    def effective(self):
        return self.bytes + (self.next.bytes if self.can_grow() else 0)


class Arena:
    """A pool of one stream: an unlimited segment, best fit, growth of the lowest candidate range."""

    def __init__(self, page):
        self.page = page
        self.cached_blocks = []  # (bytes, base) of cached blocks
        self.unmapped_bases = [0]
        self.blocks_by_base = {0: Block(0, UNLIMITED, UNMAPPED, None, None)}
        self.mapped = 0

    def insert(self, block):
        if block.state == CACHED:
            bisect.insort(self.cached_blocks, (block.bytes, block.base))
        elif block.state == UNMAPPED:
            bisect.insort(self.unmapped_bases, block.base)

    def erase(self, block):
        if block.state == CACHED:
            del self.cached_blocks[bisect.bisect_left(self.cached_blocks, (block.bytes, block.base))]
        elif block.state == UNMAPPED:
            del self.unmapped_bases[bisect.bisect_left(self.unmapped_bases, block.base)]

    def split(self, block, size):
        """Split a block that is in no list; returns the remainder."""
        remainder = Block(block.base + size, block.bytes - size, block.state, block, block.next)
        if remainder.next is not None:
            remainder.next.prev = remainder
        block.next, block.bytes = remainder, size
        self.blocks_by_base[remainder.base] = remainder
        return remainder

    def set_state(self, block, state):
        """Set the state of a block that is in no list, and coalesce it with neighbors in that state."""
        block.state = state
        for neighbor in (block.next, block.prev):
            if neighbor is not None and neighbor.state == state:
                self.erase(neighbor)
                low, high = (block, neighbor) if neighbor is block.next else (neighbor, block)
                low.bytes += high.bytes
                low.next = high.next
                if low.next is not None:
                    low.next.prev = low
                del self.blocks_by_base[high.base]
                block = low
        self.insert(block)
        return block

    def allocate(self, block, size):
        self.erase(block)
        if block.bytes > size:
            self.insert(self.split(block, size))
        block.state = ALLOCATED
        return block

    def find(self, size):
        """The best fit among cached blocks.  A block that can grow is skipped if the next one is effectively smaller."""
        i = bisect.bisect_left(self.cached_blocks, (size, 0))
        if i == len(self.cached_blocks):
            return None
        block = self.blocks_by_base[self.cached_blocks[i][1]]
        while block.can_grow() and i + 1 < len(self.cached_blocks):
            next_block = self.blocks_by_base[self.cached_blocks[i + 1][1]]
            if next_block.effective() >= block.effective():
                break
            block, i = next_block, i + 1
        return block

    def candidate(self, size):
        """The lowest candidate range of unmapped and cached blocks that is long enough, as a list of blocks."""
        for base in self.unmapped_bases:
            block = self.blocks_by_base[base]
            if block.prev is not None and block.prev.state == CACHED:
                block = block.prev
            blocks, total = [], 0
            while block is not None and block.state != ALLOCATED and total < size:
                blocks.append(block)
                total += block.bytes
                block = block.next
            if total >= size:
                return blocks
        raise AssertionError("an unlimited segment is full")

    def growth(self, blocks, size):
        """The bytes to map in each unmapped block of a candidate range."""
        ranges = []
        for block in blocks:
            if block.state == UNMAPPED:
                ranges.append((block, min(block.bytes, -(-size // self.page) * self.page)))
            size -= block.bytes
        return ranges

    def grow(self, ranges):
        for unmapped, size in ranges:
            self.erase(unmapped)
            if unmapped.bytes > size:
                self.insert(self.split(unmapped, size))
            self.mapped += size
            self.set_state(unmapped, CACHED)

    def free(self, block):
        self.set_state(block, CACHED)

    def trim(self):
        """Unmap the whole pages inside each cached block; returns their numbers."""
        unmapped_pages = []
        for size, base in list(self.cached_blocks):
            first, end = -(-base // self.page), (base + size) // self.page
            if first >= end:
                continue
            block = self.blocks_by_base[base]
            self.erase(block)
            if first * self.page > base:
                inner = self.split(block, first * self.page - base)
                self.insert(block)
                block = inner
            if block.bytes > (end - first) * self.page:
                self.insert(self.split(block, (end - first) * self.page))
            self.mapped -= block.bytes
            self.set_state(block, UNMAPPED)
            unmapped_pages += range(first, end)
        return unmapped_pages


class Pages:
    """The pages of the large arena: the number of blocks on each page, and whether the first block was a hit."""

    def __init__(self, page):
        self.page = page
        self.users = collections.Counter()
        self.used_when_mapped = {}
        self.first_use_was_hit = {}
        self.max_use_while_idle = {}  # page: the largest fraction of the device in use at a miss while the page was idle

    def pages_of(self, block):
        return range(block.base // self.page, (block.base + block.bytes - 1) // self.page + 1)

    def record_miss(self, used):
        for page in self.used_when_mapped:
            if self.users[page] == 0:
                self.max_use_while_idle[page] = max(used, self.max_use_while_idle.get(page, 0))

    def map(self, base, size, used):
        for page in range(base // self.page, (base + size) // self.page):
            self.used_when_mapped[page] = used

    def unmap(self, pages):
        for page in pages:
            del self.used_when_mapped[page]
            self.max_use_while_idle.pop(page, None)

    def use(self, block, hit):
        for page in self.pages_of(block):
            if self.users[page] == 0:
                self.first_use_was_hit[page] = hit
            self.users[page] += 1

    def release(self, block):
        for page in self.pages_of(block):
            self.users[page] -= 1


class Model:
    """Replay a trace on a device of `device` bytes, up to the first out-of-memory error."""

    def __init__(self, device, page=20 * MIB):
        self.device = device
        self.page = page
        self.arenas = {}
        self.pages = Pages(page)  # of the default pool on stream 0
        self.blocks = {}  # by name: block, its arena's key
        self.events = self.last_miss = 0
        self.failed_bytes = 0  # bytes of the failed request
        self.created = collections.Counter()  # number of pages by size
        self.released = collections.Counter()

    def arena(self, key):
        pool, stream, small = key
        if key not in self.arenas:
            self.arenas[key] = Arena(GRANULE if small else self.page)
        return self.arenas[key]

    def physical(self):
        return sum(arena.mapped for arena in self.arenas.values())

    def alloc(self, name, size, stream, pool):
        size = -(-size // 512) * 512
        key = pool, stream, size <= MIB
        arena = self.arena(key)
        block = arena.find(size)
        hit = block is not None
        if not hit:
            ranges = arena.growth(arena.candidate(size), size)
            missing = sum(bytes_to_map for _, bytes_to_map in ranges)
            if self.physical() + missing > self.device:
                self.failed_bytes = size
                return False
            if key == LARGE:
                self.record_growth(ranges)
            self.created[arena.page] += missing // arena.page
            arena.grow(ranges)
            block = arena.find(size)
        block = arena.allocate(block, size)
        if key == LARGE:
            self.pages.use(block, hit)
        self.blocks[name] = block, key
        return True

    def record_growth(self, ranges):
        self.last_miss = self.events
        self.pages.record_miss(self.physical() / self.device)
        for unmapped, size in ranges:
            self.pages.map(unmapped.base, size, self.physical() / self.device)

    def free(self, name):
        block, key = self.blocks.pop(name)
        if key == LARGE:
            self.pages.release(block)
        self.arenas[key].free(block)

    def trim(self):
        """The effect of empty_cache(), which does not release private pools."""
        for key, arena in self.arenas.items():
            if key[0] == 0:
                unmapped_pages = arena.trim()
                self.released[arena.page] += len(unmapped_pages)
                if key == LARGE:
                    self.pages.unmap(unmapped_pages)

    def step(self, fields):
        """Execute a line; returns False on an out-of-memory error."""
        if fields[0] == "e":
            self.trim()
        elif fields[0] == "u":
            raise ValueError("uses on other streams are not modeled")
        elif fields[0] == "f":
            self.events += 1
            self.free(fields[1])
        elif fields[0] == "a":
            self.events += 1
            return self.alloc(fields[1], int(fields[2]), int(fields[3]), int((fields + ["0"])[4]))
        return True

    def play(self, lines):
        """Execute lines; returns the line that fails and the lines after it."""
        for number, line in enumerate(lines):
            if line and not self.step(line.split()):
                return lines[number:]
        return []

    def large_blocks(self):
        return {name: block for name, (block, key) in self.blocks.items() if key == LARGE}

    def covered(self, blocks):
        return {granule for block in blocks for granule in range(
            block.base // GRANULE, (block.base + block.bytes - 1) // GRANULE + 1)}

    def stranded(self, blocks):
        """For each page of these blocks, the granules that contain none of the blocks."""
        covered = self.covered(blocks)
        count = self.page // GRANULE
        return {page: unused for page in {granule // count for granule in covered}
                if (unused := [granule for granule in range(page * count, (page + 1) * count)
                             if granule not in covered])}

    def missing_bytes(self):
        """The bytes that are missing for the failed request after all idle memory is used for the request."""
        candidate = self.arena(LARGE).candidate(self.failed_bytes)
        cached = [block for block in candidate if block.state == CACHED]
        unmapped = self.failed_bytes - sum(block.bytes for block in cached)
        candidate_pages = {page for block in cached for page in self.pages.pages_of(block)}
        idle = sum(self.pages.users[page] == 0 for page in self.pages.used_when_mapped
                   if page not in candidate_pages)
        small = self.arena(SMALL)
        used = self.covered(block for block, key in self.blocks.values() if key == SMALL)
        return (-(-unmapped // GRANULE) * GRANULE - (self.device - self.physical())
                - idle * self.page - (small.mapped - len(used) * GRANULE))

    def reusable_bytes(self, page_bytes):
        """Bytes that would not be stranded with pages of `page_bytes` bytes."""
        count = page_bytes // GRANULE
        return sum(page_bytes for granules in self.stranded(self.large_blocks().values()).values()
                   for first in range(granules[0] // count * count, granules[-1] + 1, count)
                   if set(range(first, first + count)) <= set(granules))

    def min_driver_time(self, costs):
        """The minimum driver time in microseconds.  Every page is inside a page of PyTorch, so a page of the same size is the
        cheapest; empty_cache() unmaps and releases its pages."""
        return (self.created[GRANULE] * (costs["create_2"] + costs["map"] + costs["access_2"])
                + self.created[self.page] * (costs["create_20"] + costs["map"] + costs["access_20"])
                + sum(self.released.values()) * (costs["unmap"] + costs["release"])
                + len(self.arenas) * costs["reserve"])

    def min_remaining_peak(self, lines):
        """The minimum peak of bytes for the remaining trace with any placement: allocated bytes, and the gaps between earlier
        blocks that are too short for any later block."""
        earlier, later = self.large_blocks(), {}
        small = {name: block.bytes for name, (block, key) in self.blocks.items() if key != LARGE}
        allocated = sum(block.bytes for block, _ in self.blocks.values())
        all_gaps = sum(gaps(earlier.values(), UNLIMITED))
        peak = 0
        for line in lines:
            fields = line.split() or ["#"]
            if fields[0] == "a":
                later[fields[1]] = -(-int(fields[2]) // 512) * 512
                allocated += later[fields[1]]
                if allocated + all_gaps > peak:
                    smallest = min((size for size in later.values() if size > MIB), default=UNLIMITED)
                    peak = max(peak, allocated + sum(gaps(earlier.values(), min(smallest, self.page))))
            elif fields[0] == "f":
                allocated -= later.pop(fields[1], 0) or small.pop(fields[1], 0) or earlier.pop(fields[1]).bytes
        return peak


def gaps(blocks, limit):
    """The gaps between blocks that are shorter than `limit`, so that no page in them is free."""
    ordered = sorted((block.base, block.bytes) for block in blocks)
    for (base, size), (next_base, _) in zip(ordered, ordered[1:]):
        if next_base - base - size < limit:
            yield next_base - base - size
