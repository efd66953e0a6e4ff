"""The names of causes and verdicts, as `kvtop diff --json` and `kvtop why --json` print them."""

from __future__ import annotations

from enum import StrEnum


class Who(StrEnum):
    """Who can mend a cause."""

    CLIENT = "client"
    GATEWAY = "gateway"
    SERVER = "server"
    TEMPLATE = "template"
    PROFILE = "profile"
    NOBODY = "nobody"
    """It is so by design."""


class Kind(StrEnum):
    """What made two prompts differ."""

    # the whole request
    MODEL_CHANGED = "model_changed"
    TEMPLATE_INPUTS_CHANGED = "template_inputs_changed"
    RESPONSE_FORMAT_CHANGED = "response_format_changed"
    CACHE_SALT_CHANGED = "cache_salt_changed"
    PROMPT_LOGPROBS_SET = "prompt_logprobs_set"
    # tools
    TOOL_KEY_ORDER = "tool_key_order"
    TOOL_ARRAY_ORDER = "tool_array_order"
    TOOLS_REORDERED = "tools_reordered"
    TOOL_ADDED = "tool_added"
    TOOL_REMOVED = "tool_removed"
    TOOLS_CHANGED = "tools_changed"
    TOOL_RANDOM_NAME = "tool_random_name"
    TOOL_TEXT_CHANGED = "tool_text_changed"
    TOOL_SCHEMA_CHANGED = "tool_schema_changed"
    TOOLS_NOT_RENDERED = "tools_not_rendered"
    RENDER_NONDETERMINISTIC = "render_nondeterministic"
    # text anywhere
    CLIENT_HEADER = "client_header"
    VOLATILE_TEXT = "volatile_text"
    LIVE_STATUS = "live_status"
    MEMORY_TEXT = "memory_text"
    SYSTEM_FLAPS = "system_flaps"
    WHITESPACE = "whitespace"
    UNICODE_FORM = "unicode_form"
    PATH_CHANGED = "path_changed"
    TEXT_EDITED = "text_edited"
    # messages
    REMINDER_MOVED = "reminder_moved"
    MESSAGE_INSERTED = "message_inserted"
    MESSAGE_REMOVED = "message_removed"
    TOOL_OUTPUT_CLEARED = "tool_output_cleared"
    COMPACTION = "compaction"
    WINDOW_TRUNCATED = "window_truncated"
    ROLLED_BACK = "rolled_back"
    LAST_MESSAGE_REPLACED = "last_message_replaced"
    IMAGE_REMOVED = "image_removed"
    IMAGE_REENCODED = "image_reencoded"
    IMAGE_ADDED = "image_added"
    REASONING_DROPPED_BY_CLIENT = "reasoning_dropped_by_client"
    REASONING_DROPPED_BY_PROXY = "reasoning_dropped_by_proxy"
    REASONING_DROPPED_BY_TEMPLATE = "reasoning_dropped_by_template"
    REASONING_FIELD_IGNORED = "reasoning_field_ignored"
    EMPTY_THINK = "empty_think"
    TOOL_CALL_IDS_CHANGED = "tool_call_ids_changed"
    ARGUMENTS_RESERIALISED = "arguments_reserialised"
    RESULT_RESERIALISED = "result_reserialised"
    CALLS_REORDERED = "calls_reordered"
    TOOL_CALL_EDITED = "tool_call_edited"
    ROLE_CHANGED = "role_changed"
    CONTENT_FORM_CHANGED = "content_form_changed"
    RESUME_REASSEMBLY = "resume_reassembly"
    SYSTEM_TURN_HOISTED = "system_turn_hoisted"
    SERVER_DATE = "server_date"
    OTHER_CONVERSATION = "other_conversation"
    PER_AGENT_TEXT_FIRST = "per_agent_text_first"


class Varies(StrEnum):
    """What varies in a text."""

    DATE_TIME = "date_time"
    UUID = "uuid"
    RANDOM_ID = "random_id"
    TEMP_PATH = "temp_path"
    COUNTER = "counter"


class Verdict(StrEnum):
    """Why one turn took its time."""

    NO_FAULT = "no_fault"
    NEW_TOKENS = "new_tokens"
    PROMPT_DIVERGED = "prompt_diverged"
    ENGINE_LOST_CACHE = "engine_lost_cache"
    QUEUED = "queued"
    SLOW_DECODE = "slow_decode"
    FAILED = "failed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """How an engine lost what it should have had. Each needs positive evidence."""

    RESTART = "restart"
    CACHE_RESET = "cache_reset"
    EVICTED = "evicted"
    STILL_RUNNING = "still_running"
    PREVIOUS_ABORTED = "previous_aborted"
    REPLICA = "replica"
    OFFLOAD_NOT_LOADED = "offload_not_loaded"
    HASH_SEED = "hash_seed"
    STUCK_CACHE = "stuck_cache"
    METRIC_WRONG = "metric_wrong"


class Because(StrEnum):
    """What makes an expected reuse small although nothing is wrong."""

    BELOW_MATCH_UNIT = "below_match_unit"
    HYBRID_BOUNDARY = "hybrid_boundary"
    SPECULATION = "speculation"
    RETOKENISED_REPLY = "retokenised_reply"
    PREFIX_CACHING_OFF = "prefix_caching_off"
    REPLY_NOT_SAVED = "reply_not_saved"


KEYS = (Kind.MODEL_CHANGED, Kind.CACHE_SALT_CHANGED, Kind.PROMPT_LOGPROBS_SET)
"""Causes that are no tokens: nothing of the same tokens can be reused."""
NOT_SENT_AGAIN = (Kind.ROLLED_BACK, Kind.OTHER_CONVERSATION)
"""What stands behind these in the old prompt is no part of the new one, which loses nothing by it."""
SAYS_ANEW = (Kind.COMPACTION,)
"""What these put in the place of the old text was never read before, and was to be read anyway."""
