# SPDX-License-Identifier: MIT
"""Numbers and structures of libxseg.so.

Printed from include/xseg by tests/lint/declarations.py --write: do not edit it here.
"""
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_bool, c_char_p, c_double, c_int, c_size_t, c_uint, c_uint32, c_uint64,
    c_uint8, c_void_p,
)

VERSION = "0.9.0"

XSEG_OK = 0
XSEG_ERR_ARGUMENT = -1
XSEG_ERR_CONFIG = -2
XSEG_ERR_NO_MEMORY = -3
XSEG_ERR_NO_ADDRESSES = -4
XSEG_ERR_LIMIT = -5
XSEG_ERR_HOST_MEMORY = -6
XSEG_ERR_NO_DRIVER = -7
XSEG_ERR_DRIVER = -8
XSEG_ERR_NOT_ALLOCATED = -9
XSEG_ERR_BUSY = -10
XSEG_ERR_UNSUPPORTED = -11
XSEG_ERR_FORKED = -12
XSEG_ERR_DEVICE_LOST = -13
XSEG_ERR_PAUSED = -14
XSEG_ERR_FILE = -15
XSEG_LOG_ERROR = 0
XSEG_LOG_WARNING = 1
XSEG_LOG_INFO = 2
XSEG_BLOCK_ALLOCATED = 0
XSEG_BLOCK_PENDING_FREE = 1
XSEG_BLOCK_CACHED = 2
XSEG_BLOCK_UNMAPPED = 3
XSEG_BLOCK_CLAIMED = 4
XSEG_STAT_ALL = 0
XSEG_STAT_SMALL = 1
XSEG_STAT_LARGE = 2
XSEG_STAT_GROUPS = 3
XSEG_RESET_PEAK = 1
XSEG_RESET_ACCUMULATED = 2
XSEG_REASON_ALLOCATED = 0
XSEG_REASON_PENDING = 1
XSEG_REASON_CLAIMED = 2
XSEG_REASON_PINNED = 3
XSEG_REASON_POOL = 4
XSEG_REASON_CAPTURE = 5
XSEG_REASON_STREAM = 6
XSEG_REASON_KEEP = 7
XSEG_REASON_DECAY = 8
XSEG_REASON_POLICY = 9
XSEG_REASON_EXPORTED = 10
XSEG_REASON_REGISTERED = 11
XSEG_REASON_ABOVE_SHARE = 12
XSEG_POOL_NAME_MAX = 63
XSEG_POOL_NO_SPLIT = 0
XSEG_POOL_USE_ON_OOM = 1
XSEG_POOL_SINGLE_PAGE = 2
XSEG_KEEP_NOTHING = 0
XSEG_KEEP_HOST = 1
XSEG_KEEP_FILE = 2
XSEG_LOW_MEMORY_CALLS_MAX = 8
XSEG_TRACE_ALLOC = 0
XSEG_TRACE_FREE_REQUESTED = 1
XSEG_TRACE_FREE_COMPLETED = 2
XSEG_TRACE_SEGMENT_ALLOC = 3
XSEG_TRACE_SEGMENT_FREE = 4
XSEG_TRACE_SEGMENT_MAP = 5
XSEG_TRACE_SEGMENT_UNMAP = 6
XSEG_TRACE_OOM = 7
XSEG_DMABUF_PIN = 1
XSEG_DMABUF_PCIE = 2
XSEG_EXPORT_TOKEN_SIZE = 64
XSEG_EXPORT_TOKEN_VERSION = 1
XSEG_FABRIC_HANDLE_SIZE = 64
XSEG_HANDLE_FD = 1
XSEG_HANDLE_FABRIC = 2
XSEG_HISTORY_ALLOC = 0
XSEG_HISTORY_FREE_REQUESTED = 1
XSEG_HISTORY_FREE_COMPLETED = 2
XSEG_HISTORY_SEGMENT_ALLOC = 3
XSEG_HISTORY_SEGMENT_FREE = 4
XSEG_HISTORY_SEGMENT_MAP = 5
XSEG_HISTORY_SEGMENT_UNMAP = 6
XSEG_HISTORY_OOM = 7
XSEG_HISTORY_REMAP = 8
XSEG_HISTORY_DECAY = 9
XSEG_HISTORY_TRIM = 10
XSEG_HISTORY_PAUSE = 11
XSEG_HISTORY_RESUME = 12
XSEG_HISTORY_ANNOTATION = 13
XSEG_HISTORY_BUDGET_REQUEST = 14
XSEG_HISTORY_BUDGET_RELEASE = 15
XSEG_HISTORY_ACTIONS = 16


class xseg_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("driver", c_char_p),
        ("log", CFUNCTYPE(None, c_void_p, c_int, c_char_p)),
        ("log_context", c_void_p),
        ("clock", CFUNCTYPE(c_uint64, c_void_p)),
        ("clock_context", c_void_p),
    ]


class xseg_config_key(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("values", c_char_p),
        ("description", c_char_p),
        ("value", c_char_p),
        ("default_value", c_char_p),
        ("is_set", c_bool),
        ("is_default", c_bool),
        ("has_effect", c_bool),
    ]


class xseg_request(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("bytes", c_size_t),
        ("stream", c_void_p),
        ("pool", c_void_p),
        ("alignment", c_size_t),
        ("zeroed", c_bool),
        ("user", c_void_p),
    ]


class xseg_block_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("base", c_void_p),
        ("bytes", c_size_t),
        ("requested", c_size_t),
        ("state", c_int),
        ("device", c_int),
        ("stream", c_void_p),
        ("pool", c_void_p),
        ("is_small", c_bool),
        ("is_expandable", c_bool),
        ("segment_base", c_void_p),
        ("segment_bytes", c_size_t),
        ("segment_mapped", c_size_t),
        ("free_before", c_size_t),
        ("free_after", c_size_t),
        ("unmapped_before", c_size_t),
        ("unmapped_after", c_size_t),
        ("generation", c_uint64),
        ("is_paused", c_bool),
        ("age_ms", c_uint64),
        ("fallback_pool", c_void_p),
        ("stack", c_uint32),
        ("frames", c_uint32),
        ("label", c_char_p),
        ("user", c_void_p),
    ]


class xseg_mapping(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("base", c_void_p),
        ("bytes", c_size_t),
        ("page_bytes", c_size_t),
        ("generation", c_uint64),
        ("stream", c_void_p),
        ("pool", c_void_p),
        ("is_expandable", c_bool),
        ("is_pinned", c_bool),
        ("is_exported", c_bool),
        ("is_single_page", c_bool),
    ]


class xseg_scope(Structure):
    START = {"device": -1}
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("one_stream", c_bool),
        ("stream", c_void_p),
        ("pool", c_void_p),
    ]


class xseg_trim_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("wait", c_bool),
        ("target_bytes", c_uint64),
        ("idle_ms", c_uint64),
        ("due_only", c_bool),
        ("max_us", c_uint64),
    ]


class xseg_trim_result(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("released", c_uint64),
        ("kept_fragmented", c_uint64),
        ("kept_busy", c_uint64),
        ("kept_pool", c_uint64),
        ("kept_pending", c_uint64),
        ("kept_failed", c_uint64),
        ("kept_capture", c_uint64),
        ("kept_by_options", c_uint64),
        ("remaining", c_uint64),
        ("kept_pinned", c_uint64),
        ("kept_exported", c_uint64),
    ]


class xseg_limits(Structure):
    START = {"hard_bytes": 2**64 - 1, "soft_bytes": 2**64 - 1, "fraction": 1, "rejection_fraction": 1}
    _fields_ = [
        ("struct_size", c_size_t),
        ("hard_bytes", c_uint64),
        ("soft_bytes", c_uint64),
        ("keep_bytes", c_uint64),
        ("fraction", c_double),
        ("has_fraction", c_bool),
        ("rejection_fraction", c_double),
        ("has_rejection_fraction", c_bool),
    ]


class xseg_stat(Structure):
    _fields_ = [
        ("current", c_uint64),
        ("peak", c_uint64),
        ("allocated", c_uint64),
        ("freed", c_uint64),
    ]


class xseg_statistics(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocation", xseg_stat * 3),
        ("segment", xseg_stat * 3),
        ("active", xseg_stat * 3),
        ("inactive_split", xseg_stat * 3),
        ("allocated_bytes", xseg_stat * 3),
        ("reserved_bytes", xseg_stat * 3),
        ("active_bytes", xseg_stat * 3),
        ("inactive_split_bytes", xseg_stat * 3),
        ("requested_bytes", xseg_stat * 3),
        ("oversize_allocations", xseg_stat),
        ("oversize_segments", xseg_stat),
        ("num_alloc_retries", c_uint64),
        ("num_ooms", c_uint64),
        ("num_sync_all_streams", c_uint64),
        ("num_device_alloc", c_uint64),
        ("num_device_free", c_uint64),
        ("max_split_size", c_uint64),
        ("device_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("physical_bytes", c_uint64),
        ("unreleased_bytes", c_uint64),
        ("address_bytes", c_uint64),
        ("host_bytes", c_uint64),
        ("overwrites", c_uint64),
        ("num_oom_rejections", c_uint64),
        ("idle_page_bytes", c_uint64),
        ("paused_bytes", c_uint64),
        ("imported_bytes", c_uint64),
        ("registered_bytes", c_uint64),
    ]


class xseg_driver_call(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("count", c_uint64),
        ("failed", c_uint64),
    ]


class xseg_device_stats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("is_open", c_bool),
        ("is_lost", c_bool),
        ("total_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("physical_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("pending_bytes", c_uint64),
        ("idle_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("free_age_ms", c_uint64),
        ("free_min_bytes", c_uint64),
        ("is_integrated", c_bool),
    ]


class xseg_reason(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("device", c_int),
        ("stream", c_void_p),
        ("pool", c_void_p),
        ("is_small", c_bool),
        ("is_expandable", c_bool),
        ("base", c_void_p),
        ("bytes", c_size_t),
        ("allocated_bytes", c_size_t),
        ("pending_bytes", c_size_t),
        ("claimed_bytes", c_size_t),
        ("cached_bytes", c_size_t),
        ("allocated_blocks", c_size_t),
        ("block", c_void_p),
        ("block_bytes", c_size_t),
        ("block_requested", c_size_t),
        ("waits_for", c_void_p),
        ("has_waits_for", c_bool),
        ("age_ms", c_uint64),
        ("block_age_ms", c_uint64),
        ("fallback_pool", c_void_p),
        ("registered_bytes", c_uint64),
        ("is_single_page", c_bool),
    ]


class xseg_explain_result(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("reserved", c_uint64),
        ("allocated", c_uint64),
        ("pending", c_uint64),
        ("claimed", c_uint64),
        ("pool", c_uint64),
        ("pinned", c_uint64),
        ("capture", c_uint64),
        ("stream", c_uint64),
        ("keep", c_uint64),
        ("decay", c_uint64),
        ("policy", c_uint64),
        ("in_allocated_blocks", c_uint64),
        ("page_cache", c_uint64),
        ("unreleased", c_uint64),
        ("exported", c_uint64),
        ("registered", c_uint64),
        ("single_page_padding", c_uint64),
        ("above_share", c_uint64),
    ]


class xseg_pool_memory(Structure):
    _fields_ = [
        ("alloc", CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_int, c_void_p)),
        ("free", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_int, c_void_p)),
        ("context", c_void_p),
    ]


class xseg_pool_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("limit_bytes", c_uint64),
        ("no_split", c_bool),
        ("use_on_oom", c_bool),
        ("memory", xseg_pool_memory),
        ("exportable", c_bool),
        ("name", c_char_p),
        ("id", c_uint64 * 2),
        ("on_destroy", CFUNCTYPE(None, c_void_p, POINTER(xseg_statistics))),
        ("on_destroy_context", c_void_p),
        ("rdma", c_bool),
        ("single_page", c_bool),
    ]


class xseg_range_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pool", c_void_p),
        ("page_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("exportable", c_bool),
        ("rdma", c_bool),
        ("name", c_char_p),
    ]


class xseg_range_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("base", c_void_p),
        ("bytes", c_uint64),
        ("page_bytes", c_uint64),
        ("device", c_int),
        ("pool", c_void_p),
        ("limit_bytes", c_uint64),
        ("quota_bytes", c_uint64),
        ("committed_bytes", c_uint64),
        ("pending_unmap_bytes", c_uint64),
        ("mapped_bytes", c_uint64),
        ("physical_bytes", c_uint64),
        ("prepared_bytes", c_uint64),
        ("recommits", c_uint64),
    ]


class xseg_oom_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("stream", c_void_p),
        ("pool", c_void_p),
        ("bytes", c_uint64),
        ("status", c_int),
        ("attempt", c_uint),
        ("is_capturing", c_bool),
        ("allowed_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("message", c_char_p),
        ("block_bytes", c_uint64),
        ("segment_bytes", c_uint64),
    ]


class xseg_trace_entry(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("action", c_int),
        ("device", c_int),
        ("stream", c_void_p),
        ("pool", c_void_p),
        ("base", c_void_p),
        ("bytes", c_uint64),
    ]


class xseg_observer(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("on_low_memory", CFUNCTYPE(c_bool, c_void_p, POINTER(xseg_oom_info))),
        ("on_out_of_memory", CFUNCTYPE(None, c_void_p, POINTER(xseg_oom_info))),
        ("on_rejected", CFUNCTYPE(None, c_void_p, POINTER(xseg_oom_info))),
        ("on_trace", CFUNCTYPE(None, c_void_p, POINTER(xseg_trace_entry))),
        ("on_unmap", CFUNCTYPE(None, c_void_p, POINTER(xseg_mapping))),
        ("on_map", CFUNCTYPE(None, c_void_p, POINTER(xseg_mapping))),
    ]


class xseg_registered(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("base", c_void_p),
        ("bytes", c_size_t),
        ("handle", c_void_p),
    ]


class xseg_registrar(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("enter", CFUNCTYPE(c_bool, c_void_p, POINTER(xseg_registered))),
        ("leave", CFUNCTYPE(None, c_void_p, POINTER(xseg_registered))),
        ("pin", c_bool),
    ]


class xseg_export_token(Structure):
    _fields_ = [
        ("byte", c_uint8 * 64),
    ]


class xseg_page_handle(Structure):
    _fields_ = [
        ("offset", c_uint64),
        ("size", c_uint64),
        ("fd", c_int),
        ("fabric", c_uint8 * 64),
    ]


class xseg_history_entry(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("action", c_int),
        ("device", c_int),
        ("stream", c_void_p),
        ("pool", c_uint32),
        ("is_fallback", c_bool),
        ("base", c_void_p),
        ("bytes", c_uint64),
        ("requested", c_uint64),
        ("time_ns", c_uint64),
        ("order", c_uint32),
        ("stack", c_uint32),
        ("frames", c_uint32),
        ("thread", c_int),
        ("label", c_char_p),
        ("pool_id", c_uint64 * 2),
        ("user", c_void_p),
    ]


class xseg_history_summary(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("events", c_uint64),
        ("lost", c_uint64),
        ("stacks", c_uint64),
        ("stacks_lost", c_uint64),
        ("stack_bytes", c_uint64),
    ]


class xseg_history_frame(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pc", c_void_p),
        ("module", c_char_p),
        ("build_id", c_char_p),
        ("offset", c_uint64),
        ("function", c_char_p),
        ("function_offset", c_uint64),
        ("source", c_char_p),
        ("line", c_uint32),
    ]


class xseg_history_hook(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("gather", CFUNCTYPE(c_uint32, c_void_p)),
        ("name", CFUNCTYPE(c_bool, c_void_p, c_uint32, c_void_p, c_size_t)),
        ("discard", CFUNCTYPE(None, c_void_p, POINTER(c_uint32), c_size_t)),
    ]


class xseg_snapshot_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("without_events", c_bool),
        ("host_bytes", c_uint64),
        ("max_ms", c_uint32),
    ]


class xseg_budget_entry(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("slot", c_uint),
        ("pid", c_int),
        ("program", c_char_p),
        ("is_readable", c_bool),
        ("uuid", c_char_p),
        ("physical_bytes", c_uint64),
        ("idle_bytes", c_uint64),
        ("demand_bytes", c_uint64),
        ("share_millionths", c_uint64),
        ("min_bytes", c_uint64),
        ("released_bytes", c_uint64),
    ]
