/* SPDX-License-Identifier: MIT */
/*
 * Spans: operations outside the hit path that tracing tools see as a pair of USDT probes and an NVTX range.
 *
 * A USDT probe (sys/sdt.h) is a no-op instruction with an ELF note that describes its address and arguments; bpftrace, perf
 * and SystemTap place a breakpoint there.  A library that is built without sys/sdt.h has no probes.
 *
 *     xseg:NAME_begin  device (int), bytes (uint64_t): the subject of the operation, as far as it is known.
 *     xseg:NAME_end    device (int), status (int): XSEG_OK or the error.
 *
 * An NVTX range is shown by NVIDIA's tools.  A tool is loaded by NVTX if NVTX_INJECTION64_PATH names it.  In a set-user-ID
 * process there are no ranges, because NVTX would load the named library.  Without a tool, and in a build without NVTX, a
 * range costs one load.
 *
 * docs/metrics.md lists all spans, and tests/tool/usdt.py verifies the list.
 *
 * Locking: none; the spans of a thread nest.  A tool is called while the thread may hold locks, so it must not call the
 * library.
 */
#ifndef XSEG_BASE_SPAN_H
#define XSEG_BASE_SPAN_H

#include <stdint.h>

/* Load the tool, if one is named.  Must precede all ranges; no lock is held. */
void xseg_nvtx_start(void);

/* Begin a range with a name and a size, and end the innermost range. */
void xseg_nvtx_push(const char *name, uint64_t bytes);
void xseg_nvtx_pop(void);

#if XSEG_HAVE_SDT
#include <sys/sdt.h>
/* The macros of sys/sdt.h call each other with fewer arguments than ISO C requires. */
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

/* Begin a span, and end the innermost span of the thread, which has this name. */
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
