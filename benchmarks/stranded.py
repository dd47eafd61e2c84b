# SPDX-License-Identifier: MIT
"""PyTorch's placement on pages of one size, until the driver refuses for the first time.

Until then xseg places every block as PyTorch does, so which parts of which pages are stranded beside
live blocks at that moment is up to the trace alone.  For `shortage.py TOOL --stranded`.
"""
import bisect
import collections

MIB = 1 << 20
GRANULE = 2 * MIB
ENDLESS = 1 << 60
LIVE, CACHED, HOLE = range(3)
SMALL, LARGE = (0, 0, True), (0, 0, False)  # pool, stream, whether small: the default ones


class Block:
    __slots__ = ("base", "bytes", "state", "prev", "next")

    def __init__(self, base, size, state, prev, following):
        self.base, self.bytes, self.state = base, size, state
        self.prev, self.next = prev, following

    def can_grow(self):
        return self.next is not None and self.next.state == HOLE

    def effective(self):
        return self.bytes + (self.next.bytes if self.can_grow() else 0)


class Arena:
    """One pool of one stream: a segment without end, best fit, growth at the lowest stretch."""

    def __init__(self, page):
        self.page = page
        self.shelf = []  # (bytes, base) of what is cached
        self.holes = [0]
        self.at = {0: Block(0, ENDLESS, HOLE, None, None)}
        self.mapped = 0

    def insert(self, block):
        if block.state == CACHED:
            bisect.insort(self.shelf, (block.bytes, block.base))
        elif block.state == HOLE:
            bisect.insort(self.holes, block.base)

    def erase(self, block):
        if block.state == CACHED:
            del self.shelf[bisect.bisect_left(self.shelf, (block.bytes, block.base))]
        elif block.state == HOLE:
            del self.holes[bisect.bisect_left(self.holes, block.base)]

    def cut(self, block, size):
        """The rest of a block that is in no list, as a block of its own."""
        rest = Block(block.base + size, block.bytes - size, block.state, block, block.next)
        if rest.next is not None:
            rest.next.prev = rest
        block.next, block.bytes = rest, size
        self.at[rest.base] = rest
        return rest

    def settle(self, block, state):
        """Give a block that is in no list a state, joined with neighbours in the same."""
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

    def hand_out(self, block, size):
        self.erase(block)
        if block.bytes > size:
            self.insert(self.cut(block, size))
        block.state = LIVE
        return block

    def find(self, size):
        """The smallest cached block that is large enough; what could grow is passed over."""
        i = bisect.bisect_left(self.shelf, (size, 0))
        if i == len(self.shelf):
            return None
        block = self.at[self.shelf[i][1]]
        while block.can_grow() and i + 1 < len(self.shelf):
            following = self.at[self.shelf[i + 1][1]]
            if following.effective() >= block.effective():
                break
            block, i = following, i + 1
        return block

    def stretch(self, size):
        """The lowest run of holes and cached blocks that is long enough, as its pieces."""
        for base in self.holes:
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
        raise AssertionError("a segment without end has no room")

    def wanted(self, pieces, size):
        """What is to be mapped of each hole of a stretch."""
        wanted = []
        for piece in pieces:
            if piece.state == HOLE:
                wanted.append((piece, min(piece.bytes, -(-size // self.page) * self.page)))
            size -= piece.bytes
        return wanted

    def grow(self, wanted):
        for hole, size in wanted:
            self.erase(hole)
            if hole.bytes > size:
                self.insert(self.cut(hole, size))
            self.mapped += size
            self.settle(hole, CACHED)

    def free(self, block):
        self.settle(block, CACHED)

    def trim(self):
        """Unmap the whole pages inside each cached block; their bases."""
        gone = []
        for size, base in list(self.shelf):
            first, end = -(-base // self.page), (base + size) // self.page
            if first >= end:
                continue
            block = self.at[base]
            self.erase(block)
            if first * self.page > base:
                inner = self.cut(block, first * self.page - base)
                self.insert(block)
                block = inner
            if block.bytes > (end - first) * self.page:
                self.insert(self.cut(block, (end - first) * self.page))
            self.mapped -= block.bytes
            self.settle(block, HOLE)
            gone += range(first, end)
        return gone


class Pages:
    """The full pages of a large arena: how many blocks use each, and how the first of these came."""

    def __init__(self, page):
        self.page = page
        self.users = collections.Counter()
        self.taken_when_mapped = {}
        self.begun_by_hit = {}
        self.idle_at = {}  # page: the largest part of the device taken at a miss while it was idle

    def over(self, block):
        return range(block.base // self.page, (block.base + block.bytes - 1) // self.page + 1)

    def miss(self, taken):
        for page in self.taken_when_mapped:
            if self.users[page] == 0:
                self.idle_at[page] = max(taken, self.idle_at.get(page, 0))

    def map(self, base, size, taken):
        for page in range(base // self.page, (base + size) // self.page):
            self.taken_when_mapped[page] = taken

    def unmap(self, pages):
        for page in pages:
            del self.taken_when_mapped[page]
            self.idle_at.pop(page, None)

    def use(self, block, hit):
        for page in self.over(block):
            if self.users[page] == 0:
                self.begun_by_hit[page] = hit
            self.users[page] += 1

    def leave(self, block):
        for page in self.over(block):
            self.users[page] -= 1


class Model:
    """Play a trace on a device of so many bytes, up to the first request that the driver refuses."""

    def __init__(self, device, page=20 * MIB):
        self.device = device
        self.page = page
        self.arenas = {}
        self.pages = Pages(page)  # of the default pool on stream 0
        self.blocks = {}  # by name: block, its arena's key
        self.events = self.last_miss = 0
        self.asked = 0  # bytes of the request that was refused
        self.made = collections.Counter()  # pages by their size
        self.given_back = collections.Counter()

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
            wanted = arena.wanted(arena.stretch(size), size)
            missing = sum(part for _, part in wanted)
            if self.physical() + missing > self.device:
                self.asked = size
                return False
            if key == LARGE:
                self.note_growth(wanted)
            self.made[arena.page] += missing // arena.page
            arena.grow(wanted)
            block = arena.find(size)
        block = arena.hand_out(block, size)
        if key == LARGE:
            self.pages.use(block, hit)
        self.blocks[name] = block, key
        return True

    def note_growth(self, wanted):
        self.last_miss = self.events
        self.pages.miss(self.physical() / self.device)
        for hole, size in wanted:
            self.pages.map(hole.base, size, self.physical() / self.device)

    def free(self, name):
        block, key = self.blocks.pop(name)
        if key == LARGE:
            self.pages.leave(block)
        self.arenas[key].free(block)

    def trim(self):
        """What empty_cache gives back: private pools are held."""
        for key, arena in self.arenas.items():
            if key[0] == 0:
                gone = arena.trim()
                self.given_back[arena.page] += len(gone)
                if key == LARGE:
                    self.pages.unmap(gone)

    def step(self, word):
        """One line; false if the driver refuses."""
        if word[0] == "e":
            self.trim()
        elif word[0] == "u":
            raise ValueError("the model knows no uses on other streams")
        elif word[0] == "f":
            self.events += 1
            self.free(word[1])
        elif word[0] == "a":
            self.events += 1
            return self.alloc(word[1], int(word[2]), int(word[3]), int((word + ["0"])[4]))
        return True

    def play(self, lines):
        """Returns the lines from the one on that was refused."""
        for at, line in enumerate(lines):
            if line and not self.step(line.split()):
                return lines[at:]
        return []

    def large_blocks(self):
        return {name: block for name, (block, key) in self.blocks.items() if key == LARGE}

    def covered(self, blocks):
        return {granule for block in blocks for granule in range(
            block.base // GRANULE, (block.base + block.bytes - 1) // GRANULE + 1)}

    def stranded(self, blocks):
        """Of the pages under these blocks: granules that none of them touches."""
        covered = self.covered(blocks)
        count = self.page // GRANULE
        return {page: left for page in {granule // count for granule in covered}
                if (left := [granule for granule in range(page * count, (page + 1) * count)
                             if granule not in covered])}

    def lacks(self):
        """Bytes that the refused request lacks when all that is idle is taken for it."""
        pieces = self.arena(LARGE).stretch(self.asked)
        cached = [piece for piece in pieces if piece.state == CACHED]
        unmapped = self.asked - sum(piece.bytes for piece in cached)
        own = {page for piece in cached for page in self.pages.over(piece)}
        idle = sum(self.pages.users[page] == 0 for page in self.pages.taken_when_mapped
                   if page not in own)
        small = self.arena(SMALL)
        used = self.covered(block for block, key in self.blocks.values() if key == SMALL)
        return (-(-unmapped // GRANULE) * GRANULE - (self.device - self.physical())
                - idle * self.page - (small.mapped - len(used) * GRANULE))

    def rescued(self, piece):
        """Bytes that would not be stranded if each page were pieces of so many bytes."""
        count = piece // GRANULE
        return sum(piece for granules in self.stranded(self.large_blocks().values()).values()
                   for first in range(granules[0] // count * count, granules[-1] + 1, count)
                   if set(range(first, first + count)) <= set(granules))

    def forced(self, costs):
        """Microseconds that the driver takes at least: every page lies inside one of PyTorch's, so one
        as large is the cheapest, and what empty_cache has to give back is unmapped and released."""
        return (self.made[GRANULE] * (costs["create_2"] + costs["map"] + costs["access_2"])
                + self.made[self.page] * (costs["create_20"] + costs["map"] + costs["access_20"])
                + sum(self.given_back.values()) * (costs["unmap"] + costs["release"])
                + len(self.arenas) * costs["reserve"])

    def least_later(self, lines):
        """The most bytes that are taken at once later on, wherever the rest of the trace is placed: what
        is live, and the gaps between blocks from before that are too short for any block since."""
        old, new = self.large_blocks(), {}
        small = {name: block.bytes for name, (block, key) in self.blocks.items() if key != LARGE}
        live = sum(block.bytes for block, _ in self.blocks.values())
        all_gaps = sum(gaps(old.values(), ENDLESS))
        most = 0
        for line in lines:
            word = line.split() or ["#"]
            if word[0] == "a":
                new[word[1]] = -(-int(word[2]) // 512) * 512
                live += new[word[1]]
                if live + all_gaps > most:
                    smallest = min((size for size in new.values() if size > MIB), default=ENDLESS)
                    most = max(most, live + sum(gaps(old.values(), min(smallest, self.page))))
            elif word[0] == "f":
                live -= new.pop(word[1], 0) or small.pop(word[1], 0) or old.pop(word[1]).bytes
        return most


def gaps(blocks, most):
    """The gaps between blocks that are shorter than so much, so that no page is free in them."""
    ordered = sorted((block.base, block.bytes) for block in blocks)
    for (base, size), (following, _) in zip(ordered, ordered[1:]):
        if following - base - size < most:
            yield following - base - size
