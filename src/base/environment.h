/* SPDX-License-Identifier: MIT */
/*
 * The environment: every variable that anything of this tree reads, in one table.
 *
 * A variable that begins "XSEG_" and is not in the table has been mistyped, so opening an allocator says
 * so.  lint/environment holds that what the tree reads is in the table, and that docs/environment.md is
 * printed from it.
 */
#ifndef XSEG_BASE_ENVIRONMENT_H
#define XSEG_BASE_ENVIRONMENT_H

#include "src/base/log.h"

/* X(name behind "XSEG_", who reads it, what it says) */
#define XSEG_ENVIRONMENT(X)                                                                      \
    X("ALLOC_CONF", "library", "configuration string of allocators that are opened without one") \
    X("DRIVER", "library", "driver library to load instead of libcuda.so.1")                     \
    X("OOM_SNAPSHOT", "library",                                                                 \
      "folder for snapshots of refused requests; the key oom_snapshot wins")                     \
    X("LIBRARY", "Python", "libxseg.so that the package xseg loads instead of its own")          \
    X("TORCH", "Python", "1: `xseg.torch` is imported right after torch")                        \
    X("TORCH_REGISTERED", "Python",                                                              \
      "regular expression: tags and labels that it matches are `xseg.torch.registered` ones")    \
    X("SIM_ADDRESSES_MB", "simulator", "addresses that can be reserved in all")                  \
    X("SIM_ADDRESS_RANGE", "simulator", "whether cuMemGetAddressRange knows mapped memory")      \
    X("SIM_BATCH", "simulator", "whether one call may cover several mappings")                   \
    X("SIM_BYTES", "simulator", "whether memory keeps what it contains")                         \
    X("SIM_COSTS", "simulator",                                                                  \
      "preset or file of what driver calls cost; `xseg probe` reads it, too")                    \
    X("SIM_DEVICES", "simulator", "number of devices")                                           \
    X("SIM_DMA_BUF", "simulator", "whether address ranges have dma-bufs")                        \
    X("SIM_FAIL", "simulator", "calls that fail")                                                \
    X("SIM_MEMORY_MB", "simulator", "memory of each device")                                     \
    X("SIM_PEERS", "simulator", "whether devices can use each other's memory")                   \
    X("SIM_FABRIC", "simulator", "whether memory can be exported by fabric handles")             \
    X("SIM_ADDRESS_ORDER", "simulator", "whether addresses rise, fall or are shuffled")          \
    X("SIM_RDMA", "simulator", "what comes of memory that RDMA is to reach")                     \
    X("SIM_REUSE_HANDLES", "simulator", "whether handles of streams and events come again")      \
    X("SIM_SHARED", "simulator", "machine whose memory processes share, by name")                \
    X("SIM_STRICT", "simulator", "whether to abort on what a driver leaves undefined")           \
    X("SIM_TAILS", "simulator", "seed of the spread of costs")                                   \
    X("SIM_VMM", "simulator", "whether devices offer virtual memory management")                 \
    X("OLD_DRIVER", "tests", "what the stand-in for an old driver lacks")                        \
    X("TEST_EVERY", "tests", "how many steps of torch/steps lie between two pictures")           \
    X("TEST_INJECTED", "tests", "set: the tool of support/injection.c says that it was loaded")  \
    X("TEST_OLD_DRIVER", "tests", "path of the stand-in for an old driver")                      \
    X("TEST_SEED", "tests", "first seed of model/streams")                                       \
    X("TEST_SEEDS", "tests", "how many seeds model/streams tries")                               \
    X("TEST_SNAPSHOTS", "tests", "folder into which model/history writes snapshots")             \
    X("TEST_STEPS", "tests", "steps of each programme of the suite model")                       \
    X("TEST_TRACE", "tests", "set: model/streams prints every step")                             \
    X("REFERENCE", "benchmarks",                                                                 \
      "a Python environment with PyTorch, or a folder that has one as v/")                       \
    X("REFERENCE_BUSY", "benchmarks", "function of a stand-in CUDA that keeps a stream at work") \
    X("REFERENCE_CUDA", "benchmarks", "folder with a stand-in CUDA, for machines without a GPU")

/* Log a warning for each variable of the process that begins "XSEG_" and is not in the table, with the
 * nearest name. */
void xseg_environment_check(const struct xseg_log *log);

#endif
