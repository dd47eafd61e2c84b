# SPDX-License-Identifier: MIT
"""Model of PyTorch's placement on pages of one size, up to the first out-of-memory error of the driver.

Up to this error, xseg places every block as PyTorch does, so the parts of pages that are stranded next to allocated blocks depend
only on the trace.  Used by `shortage.py TOOL --stranded`.
"""
import bisect
import collections

MIB = 1 << 20
GRANULE = 2 * MIB
ENDLESS = 1 << 60
LIVE, CACHED, UNMAPPED = range(3)
SMALL, LARGE = (0, 0, True), (0, 0, False)  # default pool and stream, whether small


class Block:
    __slots__ = ("base", "bytes", "state", "prev", "next")

    def __init__(self, base, size, state, prev, following):
        self.base, self.bytes, self.state = base, size, state
        self.prev, self.next = prev, following

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
        self.at = {0: Block(0, ENDLESS, UNMAPPED, None, None)}
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
        self.at[remainder.base] = remainder
        return remainder

    def set_state(self, block, state):
        """Set the state of a block that is in no list, and coalesce it with neighbors in that state."""
        block.state = state
        for other in (block.next, block.prev):
            if other is not None and other.state == state:
                self.erase(other)
                low, high = (block, other) if other is block.next else (other, block)
                low.bytes += high.bytes
                low.next = high.next
                if low.next is not None:
                    low.next.prev = low
                del self.at[high.base]
                block = low
        self.insert(block)
        return block

    def allocate(self, block, size):
        self.erase(block)
        if block.bytes > size:
            self.insert(self.split(block, size))
        block.state = LIVE
        return block

    def find(self, size):
        """The smallest cached block that is large enough, unless it can grow and the next one is effectively smaller."""
        i = bisect.bisect_left(self.cached_blocks, (size, 0))
        if i == len(self.cached_blocks):
            return None
        block = self.at[self.cached_blocks[i][1]]
        while block.can_grow() and i + 1 < len(self.cached_blocks):
            following = self.at[self.cached_blocks[i + 1][1]]
            if following.effective() >= block.effective():
                break
            block, i = following, i + 1
        return block

    def candidate(self, size):
        """The lowest candidate range of unmapped and cached blocks that is long enough, as a list of blocks."""
        for base in self.unmapped_bases:
            block = self.at[base]
            if block.prev is not None and block.prev.state == CACHED:
                block = block.prev
            pieces, total = [], 0
            while block is not None and block.state != LIVE and total < size:
                pieces.append(block)
                total += block.bytes
                block = block.next
            if total >= size:
                return pieces
        raise AssertionError("an unlimited segment is full")

    def growth(self, pieces, size):
        """The bytes to map in each unmapped block of a candidate range."""
        ranges = []
        for piece in pieces:
            if piece.state == UNMAPPED:
                ranges.append((piece, min(piece.bytes, -(-size // self.page) * self.page)))
            size -= piece.bytes
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
            block = self.at[base]
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
        self.begun_by_hit = {}
        self.idle_at = {}  # page: the largest fraction of the device in use at a miss while the page was idle

    def pages_of(self, block):
        return range(block.base // self.page, (block.base + block.bytes - 1) // self.page + 1)

    def record_miss(self, used):
        for page in self.used_when_mapped:
            if self.users[page] == 0:
                self.idle_at[page] = max(used, self.idle_at.get(page, 0))

    def map(self, base, size, used):
        for page in range(base // self.page, (base + size) // self.page):
            self.used_when_mapped[page] = used

    def unmap(self, pages):
        for page in pages:
            del self.used_when_mapped[page]
            self.idle_at.pop(page, None)

    def use(self, block, hit):
        for page in self.pages_of(block):
            if self.users[page] == 0:
                self.begun_by_hit[page] = hit
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
        self.made = collections.Counter()  # number of pages by size
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
            missing = sum(part for _, part in ranges)
            if self.physical() + missing > self.device:
                self.failed_bytes = size
                return False
            if key == LARGE:
                self.record_growth(ranges)
            self.made[arena.page] += missing // arena.page
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

    def step(self, word):
        """Execute a line; returns False on an out-of-memory error."""
        if word[0] == "e":
            self.trim()
        elif word[0] == "u":
            raise ValueError("uses on other streams are not modeled")
        elif word[0] == "f":
            self.events += 1
            self.free(word[1])
        elif word[0] == "a":
            self.events += 1
            return self.alloc(word[1], int(word[2]), int(word[3]), int((word + ["0"])[4]))
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

    def lacks(self):
        """The bytes that the failed request lacks after all idle memory is used for it."""
        pieces = self.arena(LARGE).candidate(self.failed_bytes)
        cached = [piece for piece in pieces if piece.state == CACHED]
        unmapped = self.failed_bytes - sum(piece.bytes for piece in cached)
        own = {page for piece in cached for page in self.pages.pages_of(piece)}
        idle = sum(self.pages.users[page] == 0 for page in self.pages.used_when_mapped
                   if page not in own)
        small = self.arena(SMALL)
        used = self.covered(block for block, key in self.blocks.values() if key == SMALL)
        return (-(-unmapped // GRANULE) * GRANULE - (self.device - self.physical())
                - idle * self.page - (small.mapped - len(used) * GRANULE))

    def rescued(self, piece):
        """Bytes that would not be stranded with pages of `piece` bytes."""
        count = piece // GRANULE
        return sum(piece for granules in self.stranded(self.large_blocks().values()).values()
                   for first in range(granules[0] // count * count, granules[-1] + 1, count)
                   if set(range(first, first + count)) <= set(granules))

    def forced(self, costs):
        """The minimum driver time in microseconds.  Every page is inside a page of PyTorch, so a page of the same size is the
        cheapest; empty_cache() unmaps and releases its pages."""
        return (self.made[GRANULE] * (costs["create_2"] + costs["map"] + costs["access_2"])
                + self.made[self.page] * (costs["create_20"] + costs["map"] + costs["access_20"])
                + sum(self.released.values()) * (costs["unmap"] + costs["release"])
                + len(self.arenas) * costs["reserve"])

    def min_later(self, lines):
        """The minimum peak of bytes for the remaining trace with any placement: live bytes, and the gaps between earlier blocks
        that are too short for any later block."""
        old, new = self.large_blocks(), {}
        small = {name: block.bytes for name, (block, key) in self.blocks.items() if key != LARGE}
        live = sum(block.bytes for block, _ in self.blocks.values())
        all_gaps = sum(gaps(old.values(), ENDLESS))
        peak = 0
        for line in lines:
            word = line.split() or ["#"]
            if word[0] == "a":
                new[word[1]] = -(-int(word[2]) // 512) * 512
                live += new[word[1]]
                if live + all_gaps > peak:
                    smallest = min((size for size in new.values() if size > MIB), default=ENDLESS)
                    peak = max(peak, live + sum(gaps(old.values(), min(smallest, self.page))))
            elif word[0] == "f":
                live -= new.pop(word[1], 0) or small.pop(word[1], 0) or old.pop(word[1]).bytes
        return peak


def gaps(blocks, limit):
    """The gaps between blocks that are shorter than `limit`, so that no page in them is free."""
    ordered = sorted((block.base, block.bytes) for block in blocks)
    for (base, size), (following, _) in zip(ordered, ordered[1:]):
        if following - base - size < limit:
            yield following - base - size
