/* SPDX-License-Identifier: MIT */
/*
 * Ranges: stretches of time of a thread that NVIDIA's tools show, by NVTX 3.
 *
 * A tool that wants them loads itself by the variable NVTX_INJECTION64_PATH.  Without a tool, and in a build without NVTX,
 * a range costs a look at one variable.  In a set-user-ID process there are none, since NVTX would load whatever library
 * the variable names.
 *
 * Locking: none; ranges of a thread lie within each other.  A tool hears of them under the locks that the thread holds, and
 * must not call the library.
 */
#ifndef XSEG_BASE_SPAN_H
#define XSEG_BASE_SPAN_H

#include <stdint.h>

/* Let a tool be loaded, if one is named; to be called before any range.  No lock is held. */
void xseg_nvtx_start(void);

/* Begin a range with a name and a number of bytes, which the tool shows; and end the one that began last. */
void xseg_nvtx_push(const char *name, uint64_t bytes);
void xseg_nvtx_pop(void);

/*
 * Spans: work off the hit path that tracers see: a probe at its begin, a probe at its end, and a range (range.h) around it.
 *
 * A probe (USDT, sys/sdt.h) is an instruction that does nothing.  A note in the library says where it is, and where its
 * arguments are: bpftrace, perf and SystemTap put a breakpoint there.  A library that was built without sys/sdt.h has none.
 *
 *     xseg:NAME_begin  device (int), bytes (uint64_t): what it is about, as far as that is known
 *     xseg:NAME_end    device (int), status (int): XSEG_OK or the error
 *
 * docs/metrics.md lists the spans; tests/tool/usdt.py holds that it does.
 */

#if XSEG_HAVE_SDT
#include <sys/sdt.h>
/* The macros of sys/sdt.h call one another with fewer arguments than ISO C wants. */
#ifdef __clang__
#define XSEG_SPAN_PROBE(name, device, number)                                       \
    _Pragma("clang diagnostic push")                                                \
        _Pragma("clang diagnostic ignored \"-Wgnu-zero-variadic-macro-arguments\"") \
            DTRACE_PROBE2(xseg, name, device, number);                              \
    _Pragma("clang diagnostic pop")
#else
#define XSEG_SPAN_PROBE(name, device, number) DTRACE_PROBE2(xseg, name, device, number)
#endif
#else
#define XSEG_SPAN_PROBE(name, device, number) ((void)(device), (void)(number))
#endif

/* Begin a span, and end the one that the thread began last, which has this name. */
#define XSEG_SPAN_BEGIN(name, device, bytes)                      \
    do {                                                          \
        const int span_device_ = (device);                        \
        const uint64_t span_bytes_ = (bytes);                     \
        XSEG_SPAN_PROBE(name##_begin, span_device_, span_bytes_); \
        xseg_nvtx_push(#name, span_bytes_);                       \
    } while (0)
#define XSEG_SPAN_END(name, device, status)                      \
    do {                                                         \
        const int span_device_ = (device);                       \
        const int span_status_ = (int)(status);                  \
        xseg_nvtx_pop();                                         \
        XSEG_SPAN_PROBE(name##_end, span_device_, span_status_); \
    } while (0)

#endif
