/* SPDX-License-Identifier: MIT */
/* The words of snapshots: keys, and texts that come again and again. */
#ifndef XSEG_CORE_SNAPSHOT_WORDS_H
#define XSEG_CORE_SNAPSHOT_WORDS_H

/* Name in the code, text in the file. */
#define XSEG_SNAPSHOT_WORDS(each)                                                                  \
    /* PyTorch's keys. */                                                                          \
    each(SEGMENTS, "segments") each(DEVICE_TRACES, "device_traces") each(                          \
        ALLOCATOR_SETTINGS,                                                                        \
        "allocator_settings") each(EXTERNAL_ANNOTATIONS,                                           \
                                   "external_annotations") each(HOST_SEGMENTS,                     \
                                                                "host_segments") each(HOST_TRACES, \
                                                                                      "host_"      \
                                                                                      "traces")    \
        each(DEVICE, "device") each(ADDRESS, "address") each(TOTAL_SIZE, "total_size") each(       \
            ALLOCATED_SIZE,                                                                        \
            "allocated_size") each(ACTIVE_SIZE,                                                    \
                                   "active_size") each(REQUESTED_SIZE,                             \
                                                       "requested_size") each(STREAM, "stream")    \
            each(SEGMENT_TYPE, "segment_type") each(SEGMENT_POOL_ID, "segment_pool_id") each(      \
                IS_EXPANDABLE,                                                                     \
                "is_expandable") each(FRAMES, "frames") each(BLOCKS,                               \
                                                             "blocks") each(SIZE,                  \
                                                                            "size") each(STATE,    \
                                                                                         "state")  \
                each(NAME, "name") each(FILENAME, "filename") each(LINE, "line") each(             \
                    ACTION,                                                                        \
                    "action") each(ADDR,                                                           \
                                   "addr") each(TIME_US,                                           \
                                                "time_us") each(POOL_ID,                           \
                                                                "pool_id") each(USER_METADATA,     \
                                                                                "user_metadata")   \
                    each(COMPILE_CONTEXT, "compile_context") each(                                 \
                        DEVICE_FREE, "device_free") each(STAGE,                                    \
                                                         "stage") each(PYTORCH_CUDA_ALLOC_CONF,    \
                                                                       "PYTORCH_CUDA_ALLOC_CONF")  \
                        each(MAX_SPLIT_SIZE, "max_split_size") each(                               \
                            GARBAGE_COLLECTION,                                                    \
                            "garbage_"                                                             \
                            "collecti"                                                             \
                            "on_"                                                                  \
                            "threshol"                                                             \
                            "d") each(EXPANDABLE_SEGMENTS,                                         \
                                      "expandable_segments") each(RELEASE_LOCK,                    \
                                                                  "release_lock_on_cudamalloc")    \
                            each(CAPTURE_REUSE, "graph_capture_record_stream_reuse") each(         \
                                ROUNDUP_DIVISIONS,                                                 \
                                "roundup_power2_divisions") /* Sizes in MiB, in their order. */    \
        each(MIB_1, "1") each(MIB_2, "2") each(MIB_4, "4") each(MIB_8, "8") each(MIB_16, "16")     \
            each(MIB_32, "32") each(MIB_64, "64") each(MIB_128, "128") each(MIB_256, "256")        \
                each(MIB_512, "512") each(MIB_1024, "1024") each(MIB_2048, "2048")                 \
                    each(MIB_4096, "4096") each(MIB_8192, "8192") each(MIB_16384, "16384")         \
                        each(MIB_32768, "32768") /* PyTorch's values. */                           \
        each(EMPTY, "") each(NOT_COMPILED, "N/A") each(UNKNOWN, "??") each(SMALL, "small")         \
            each(LARGE, "large") each(ACTIVE_ALLOCATED, "active_allocated")                        \
                each(ACTIVE_PENDING_FREE, "active_pending_free") each(INACTIVE, "inactive")        \
                    each(START, "START") each(END, "END") each(ALLOC, "alloc") each(               \
                        FREE_REQUESTED, "free_requested") each(FREE_COMPLETED, "free_completed")   \
                        each(SEGMENT_ALLOC, "segment_alloc") each(SEGMENT_FREE, "segment_free")    \
                            each(SEGMENT_MAP, "segment_map") each(SEGMENT_UNMAP, "segment_unmap")  \
                                each(OOM, "oom") /* Ours. */                                       \
        each(XSEG, "xseg") each(FORMAT, "format") each(MAX_ROUND_THRESHOLD, "max_round_threshold") \
            each(MAX_CACHED_SIZE, "max_cached_size") each(PINNED_HOST_REGISTER,                    \
                                                          "pinned_use_cuda_host_register")         \
                each(PINNED_REGISTER_THREADS, "pinned_num_register_threads")                       \
                    each(VERSION, "version") each(CONFIGURATION, "configuration") each(            \
                        CONFIGURATION_SOURCE, "configuration_source") each(DEVICES, "devices")     \
                        each(RESERVED, "reserved") each(PAGE_CACHE, "page_cache")                  \
                            each(UNRELEASED, "unreleased") each(LOST, "lost") each(                \
                                LEFT_OUT, "left_out") each(CAUSES, "causes") each(PAGES, "pages")  \
                                each(PAUSED, "paused") each(ALLOCATED, "allocated")                \
                                    each(CACHED, "cached") each(BUILD_ID, "build_id") each(        \
                                        REMAP, "remap") each(DECAY, "decay") each(TRIM, "trim")    \
                                        each(PAUSE, "pause") each(RESUME, "resume")                \
                                            each(PENDING, "pending") each(CLAIMED, "claimed")      \
                                                each(POOL, "pool") each(PINNED, "pinned")          \
                                                    each(CAPTURE, "capture") each(KEEP, "keep")    \
                                                        each(POLICY, "policy")                     \
                                                            each(EXPORTED, "exported")             \
                                                                each(REGISTERED, "registered")     \
                                                                    each(SINGLE_PAGE_PADDING,      \
                                                                         "single_page_padding")    \
                                                                        each(ABOVE_SHARE,          \
                                                                             "above_share")        \
                                                                            each(BUDGET_RELEASE,   \
                                                                                 "budget_release")

#define XSEG_SNAPSHOT_WORD(name, text) XSEG_SNAPSHOT_##name,
enum xseg_snapshot_word { XSEG_SNAPSHOT_WORDS(XSEG_SNAPSHOT_WORD) XSEG_SNAPSHOT_WORD_COUNT };
#undef XSEG_SNAPSHOT_WORD

/* The texts by number. */
extern const char *const xseg_snapshot_words[XSEG_SNAPSHOT_WORD_COUNT];

#endif
