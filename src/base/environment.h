/* SPDX-License-Identifier: MIT */
/*
 * The environment: one table of all variables that the library, its tools, adapters, tests and benchmarks read.
 *
 * A variable whose name begins with "XSEG_" and is not in the table is a misspelling.  Opening an allocator logs a
 * warning for it.  lint/environment checks that the table is complete, and that docs/environment.md is printed from it,
 * without the variables of tests and benchmarks.
 */
#ifndef XSEG_BASE_ENVIRONMENT_H
#define XSEG_BASE_ENVIRONMENT_H

#include "src/base/error.h"

/* X(name after "XSEG_", reader, description) */
#define XSEG_ENVIRONMENT(X)                                                                        \
    X("ALLOC_CONF", "library", "configuration string of allocators that are opened without one")   \
    X("DRIVER", "library", "driver library to load instead of libcuda.so.1")                       \
    X("OOM_SNAPSHOT", "library", "directory for snapshots of failed requests, see oom_snapshot")   \
    X("LIBRARY", "Python", "libxseg.so to load instead of the library of the package xseg")        \
    X("TORCH", "Python", "1: import `xseg.torch` right after torch; 0 or empty: do not")           \
    X("TORCH_KEEP_EXPANDABLE", "Python", "1: ignore `expandable_segments:False` at run time")      \
    X("TORCH_REGISTERED", "Python", "regular expression of names of registered tags")              \
    X("SIM_ADDRESSES_MB", "simulator", "virtual addresses that can be reserved, in MiB")           \
    X("SIM_ADDRESS_RANGE", "simulator", "0 or 1: cuMemGetAddressRange supports mapped memory")     \
    X("SIM_BATCH", "simulator", "0 or 1: one call can unmap or set access of several mappings")    \
    X("SIM_BYTES", "simulator", "0 or 1: whether memory has contents")                             \
    X("SIM_COSTS", "simulator", "preset or file of driver call costs, also for `xseg probe`")      \
    X("SIM_DEVICES", "simulator", "number of devices")                                             \
    X("SIM_DMA_BUF", "simulator", "0 or 1: whether address ranges have dma-bufs")                  \
    X("SIM_FAIL", "simulator", "driver calls that fail")                                           \
    X("SIM_HOST_MB", "simulator", "memory of host programs on integrated devices, in MiB")         \
    X("SIM_INTEGRATED", "simulator", "0 or 1: whether the devices use the memory of the host")     \
    X("SIM_PAGE_CACHE_MB", "simulator", "page cache of the host on integrated devices, in MiB")    \
    X("SIM_MEMORY_MB", "simulator", "memory of each device, in MiB")                               \
    X("SIM_PEERS", "simulator", "0 or 1: whether devices can access each other's memory")          \
    X("SIM_FABRIC", "simulator", "0 or 1: whether memory can be exported by fabric handles")       \
    X("SIM_ADDRESS_ORDER", "simulator", "order of addresses: rising, falling or shuffled")         \
    X("SIM_RDMA", "simulator", "behavior of memory that is created for GPUDirect RDMA")            \
    X("SIM_REUSE_HANDLES", "simulator",                                                            \
      "0 or 1: whether handles of streams and events are reused")                                  \
    X("SIM_SHARED", "simulator", "name of a simulated machine that processes share")               \
    X("SIM_STRICT", "simulator", "0 or 1: whether undefined behavior ends the process")            \
    X("SIM_TAILS", "simulator", "seed of the distribution of costs; 0: constant costs")            \
    X("SIM_VMM", "simulator", "0 or 1: whether devices support virtual memory management")         \
    X("OLD_DRIVER", "tests", "entry point that the old driver of a test lacks, or its version")    \
    X("TEST_EVERY", "tests", "steps of torch/steps between two snapshots")                         \
    X("TEST_INJECTED", "tests", "set: the tool of support/injection.c reports that it was loaded") \
    X("TEST_OLD_DRIVER", "tests", "path of the stand-in for an old driver")                        \
    X("TEST_SEED", "tests", "first seed of a suite of model tests")                                \
    X("TEST_SEEDS", "tests", "number of seeds of a suite of model tests")                          \
    X("TEST_SNAPSHOTS", "tests", "directory for the snapshots of model/history")                   \
    X("TEST_STEPS", "tests", "number of steps of each program of model tests")                     \
    X("TEST_TRACE", "tests", "set: model tests print each step")                                   \
    X("REFERENCE", "benchmarks", "Python environment with PyTorch, or a directory with one as v/") \
    X("REFERENCE_BUSY", "benchmarks", "function of the CUDA stand-in that keeps a stream busy")    \
    X("REFERENCE_CUDA", "benchmarks", "directory of a CUDA stand-in, for hosts without a GPU")

/* Log a warning, with the closest match, for each variable of the process that begins with "XSEG_" and is not in the table. */
void xseg_environment_check(const struct xseg_log *log);

#endif
