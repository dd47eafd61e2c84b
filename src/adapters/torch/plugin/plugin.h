/* SPDX-License-Identifier: MIT */
/* The functions that CUDAPluggableAllocator is given by name; docs/pytorch.md says how. */
#ifndef XSEG_ADAPTERS_TORCH_PLUGIN_H
#define XSEG_ADAPTERS_TORCH_PLUGIN_H

#include "xseg/allocator.h"

/** Allocate; the function that CUDAPluggableAllocator is given as `alloc_fn_name`. */
XSEG_API void *xseg_torch_malloc(size_t bytes, int device, xseg_stream stream);

/** Free; the function that CUDAPluggableAllocator is given as `free_fn_name`. */
XSEG_API void xseg_torch_free(void *ptr, size_t bytes, int device, xseg_stream stream);

/** For set_init_fn(). */
XSEG_API void xseg_torch_init(int device_count);

/** For set_reset_fn(): torch.cuda.empty_cache(). */
XSEG_API void xseg_torch_reset(void);

/** For set_memory_fraction_fn(). */
XSEG_API void xseg_torch_memory_fraction(double fraction, int device);

/** For set_base_alloc_fn(): where the memory around a block begins, and how long it is. */
XSEG_API void *xseg_torch_base_alloc(void *ptr, size_t *bytes);

/** For set_record_stream_fn(). */
XSEG_API void xseg_torch_record_stream(void *ptr, xseg_stream stream);

/** For set_begin_allocate_to_pool(); the predicate that PyTorch passes behind the id is not looked at. */
XSEG_API void xseg_torch_begin_allocate_to_pool(int device, unsigned long long first,
                                                unsigned long long second);

/** For set_end_allocate_to_pool_fn(). */
XSEG_API void xseg_torch_end_allocate_to_pool(int device, unsigned long long first,
                                              unsigned long long second);

/** For set_release_pool(). */
XSEG_API void xseg_torch_release_pool(int device, unsigned long long first,
                                      unsigned long long second);

#endif
