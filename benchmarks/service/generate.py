#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the week of a service as a trace with a clock: generate.py [--weeks N] >week.xtrace

Two models share a device: a language model by day on two streams, and an image model in sessions on a third one.  Requests
arrive in bursts.  Sizes and order of allocations are those of two recorded traces.  From llama_serve: weights and prompts, with
the temporary memory of the first layer only, and the caches of all layers.  From sd_unet: weights, one denoising step and the
decoder for each image size, blocks of 8 MiB or more.  A cache grows by 64 tokens at a time.  The times are pseudo-random with a
fixed seed, so the output is reproducible.
"""
import argparse
import heapq
import pathlib
import random
import subprocess
import sys

TRACES = pathlib.Path(__file__).resolve().parents[1] / "traces"
SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
TEXT_STREAMS, IMAGE_STREAM, COPY_STREAM = (1, 2), 3, 4
GROWTH = 64  # tokens
BIG = 8 << 20


def read_sections(name):
    """The sections of a recorded trace between its marks, as (operation, block, bytes)."""
    text = subprocess.run(["zstd", "-dc", TRACES / f"{name}.xtrace.zst"], check=True,
                          stdout=subprocess.PIPE).stdout.decode()
    sections = [[]]
    for line in text.splitlines():
        fields = line.split()
        if fields[0] == "m":
            sections.append([])
        elif fields[0] in "af":
            sections[-1].append((fields[0], fields[1], int(fields[2]) if fields[0] == "a" else 0))
    return sections


class Part:
    """A part of a recorded trace: its operations, and the blocks that are allocated at its end."""

    def __init__(self, steps):
        ended = {block for kind, block, _ in steps if kind == "f"}
        begun = {block for kind, block, _ in steps if kind == "a"}
        self.steps = [step for step in steps if step[0] == "a" or step[1] in begun]
        self.allocated = [block for kind, block, _ in steps if kind == "a" and block not in ended]

    def peak(self):
        """The index of the operation at the peak of allocated bytes."""
        sizes, allocated, peak, index = {}, 0, 0, 0
        for i, (kind, block, size) in enumerate(self.steps):
            if kind == "a":
                sizes[block] = size
            allocated += sizes[block] if kind == "a" else -sizes[block]
            if allocated > peak:
                peak, index = allocated, i
        return index


class Prompt:
    """A prompt of the language model: the first layer, and the caches of all layers."""

    def __init__(self, section):
        prompt = Part(section)
        sizes = {block: size for kind, block, size in section if kind == "a"}
        caches = [block for block in prompt.allocated if 4096 <= sizes[block]]
        cache = max(set(sizes[block] for block in caches),
                    key=[sizes[block] for block in caches].count)
        caches = [block for block in caches if sizes[block] == cache]
        # The third cache belongs to the second layer.
        end = next(i for i, step in enumerate(section) if step[1] == caches[2])
        self.layer = Part([step for step in section[:end] if step[1] not in caches])
        self.cache_bytes, self.caches = cache, len(caches)


class Image:
    """An image: a denoising step and the decoder; blocks of 8 MiB or more."""

    def __init__(self, section):
        sizes = {block: size for kind, block, size in section if kind == "a"}
        period = len(section) // 23
        self.step, self.decoder = (
            Part([step for step in steps if sizes.get(step[1], 0) >= BIG])
            for steps in (section[period:2 * period], section[-period:]))


class Service:
    """The clock, the blocks, and the active coroutines."""

    def __init__(self, out):
        self.out = out
        self.next_block = 0
        self.queue = []
        self.sequence = 0

    def schedule(self, time, coroutine):
        """Resume a coroutine, which yields its next delay, at a time."""
        heapq.heappush(self.queue, (time, self.sequence, coroutine))
        self.sequence += 1

    def run(self):
        last = None
        while self.queue:
            time, _, coroutine = heapq.heappop(self.queue)
            if time != last:
                self.out.write(f"@ {time}\n")
                last = time
            pause = next(coroutine, None)
            if pause is not None:
                self.schedule(time + pause, coroutine)

    def alloc(self, size, stream):
        block = self.next_block
        self.next_block += 1
        self.out.write(f"a {block} {size} {stream}\n")
        return block

    def write(self, *fields):
        self.out.write(" ".join(map(str, fields)) + "\n")

    def play(self, part, stream, start=0, end=None, blocks=None):
        """Replay the operations of a part; returns the allocated blocks."""
        blocks = {} if blocks is None else blocks
        for kind, name, size in part.steps[start:end]:
            if kind == "a":
                blocks[name] = self.alloc(size, stream)
            else:
                self.write("f", blocks.pop(name))
        return blocks


def model(service, name, weights, stream, duration):
    """Load, use and unload a model."""
    service.write("m", name, "comes")
    blocks = [service.alloc(size, stream) for size in weights]
    service.write("k", stream)
    yield 10 * SECOND
    service.write("y", stream)
    yield duration
    service.write("m", name, "goes")
    for block in blocks:
        service.write("f", block)


def text_request(service, number, prompt, stream, rng):
    """A request to the language model: a prompt, then one or two growths of the caches."""
    service.write("m", "request", number)
    for block in service.play(prompt.layer, stream).values():
        service.write("f", block)
    size = prompt.cache_bytes
    growth = max(size // 274, 512) * GROWTH // 8 * 8
    caches = [service.alloc(size, stream) for _ in range(prompt.caches)]
    service.write("k", stream)
    yield rng.randrange(SECOND // 10, SECOND // 2)
    service.write("y", stream)
    for _ in range(rng.choice((1, 1, 2))):
        yield rng.randrange(SECOND, 3 * SECOND)
        service.write("m", "request", number)
        size += growth
        for i, cache in enumerate(caches):
            caches[i] = service.alloc(size, stream)
            service.write("f", cache)
        service.write("k", stream)
        yield rng.randrange(SECOND // 10, SECOND)
        service.write("y", stream)
    yield rng.randrange(SECOND // 10)
    service.write("m", "request", number)
    for cache in caches:
        service.write("f", cache)


def image_request(service, number, image, rng):
    """A request for an image: denoising, decoding, and a copy to the host on a separate stream."""
    service.write("m", "request", number)
    allocated = service.play(image.step, IMAGE_STREAM)
    service.write("k", IMAGE_STREAM)
    yield rng.randrange(3 * SECOND, 6 * SECOND)
    service.write("m", "request", number)
    service.write("y", IMAGE_STREAM)
    for block in allocated.values():
        service.write("f", block)
    peak = image.decoder.peak() + 1
    allocated = service.play(image.decoder, IMAGE_STREAM, 0, peak)
    service.write("k", IMAGE_STREAM)
    service.write("m", "between")
    yield rng.randrange(SECOND // 2, SECOND)
    service.write("m", "request", number)
    service.play(image.decoder, IMAGE_STREAM, peak, None, allocated)
    result = service.alloc(3 * 1024 * 1024 * 2, IMAGE_STREAM)
    service.write("k", IMAGE_STREAM)
    service.write("u", result, COPY_STREAM)
    for block in [*allocated.values(), result]:
        service.write("f", block)
    service.write("m", "between")
    yield rng.randrange(SECOND // 2, SECOND)
    service.write("y", IMAGE_STREAM)
    service.write("y", COPY_STREAM)


def worker(start, requests):
    """Serve requests, pairs of time and coroutine, one after the other."""
    now = start
    for time, request in requests:
        if time > now:
            yield time - now
            now = time
        for pause in request:
            now += pause
            yield pause


def bursts(start, end, lull, count, gap, rng):
    """Times of requests: bursts of `count` requests on average, with the mean distance `gap`, and the mean pause `lull`."""
    time = start + int(rng.expovariate(1 / lull))
    while time < end:
        for _ in range(1 + int(rng.expovariate(1 / (count - 1)))):
            if time >= end:
                return
            yield time
            time += int(rng.expovariate(1 / gap))
        time += int(rng.expovariate(1 / lull))


def weeks(service, count, rng):
    text, images = read_sections("llama_serve"), read_sections("sd_unet")
    prompts = [Prompt(text[i]) for i in (1, 4, 5)]
    sizes = [Image(section) for section in images[1:-1]]
    weights = {"text": [size for kind, _, size in text[0] if kind == "a"],
               "image": [size for kind, _, size in images[0] if kind == "a"]}
    number = 0
    for day in range(7 * count):
        is_weekend = day % 7 >= 5
        start = day * DAY + int((10 if is_weekend else 7.5) * HOUR)
        end = day * DAY + int((19 if is_weekend else 22.5) * HOUR)
        service.schedule(start, model(service, "text", weights["text"], 1, end - start))
        for time in bursts(start + 60 * SECOND, end - 60 * SECOND, 2 * HOUR, 16, 12 * SECOND, rng):
            number += 1
            service.schedule(time, text_request(service, number, rng.choice(prompts), rng.choice(TEXT_STREAMS), rng))
        for hour, hours in ((11, 3),) if is_weekend else ((9, 2), (14, 2.5), (20, 1.5)):
            start, end = day * DAY + hour * HOUR, day * DAY + int((hour + hours) * HOUR)
            service.schedule(start, model(service, "image", weights["image"], IMAGE_STREAM, end - start))
            queue = []
            for time in bursts(start + 60 * SECOND, end - 900 * SECOND, 3 * HOUR // 2, 22,
                               10 * SECOND, rng):
                number += 1
                queue.append((time, image_request(service, number, rng.choice(sizes), rng)))
            service.schedule(start, worker(start, queue))
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--weeks", type=int, default=1)
    arguments = parser.parse_args()
    service = Service(sys.stdout)
    print("xtrace 1\n# A service: two models, bursts and lulls, by benchmarks/service/generate.py")
    print("d 24576\n@ 0")
    weeks(service, arguments.weeks, random.Random(20261122))
    service.run()
    print(f"@ {arguments.weeks * 7 * DAY}")


if __name__ == "__main__":
    main()
