"""What triage says, in the words of the screens: short, present, no adjectives."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.errors import printable
from kvtop.model.waits import SMALL
from kvtop.model.words import exact, listed, secs
from kvtop.triage.kinds import NOT_SENT_AGAIN, Because, Kind, Reason, Varies
from kvtop.triage.result import Cause
from kvtop.triage.seen import Seen

LIMIT = 200
"""Characters of a text from outside."""
NOTHING_TO_MEND = "nothing to mend"
UNTRUE = "the number of cached tokens that the server tells cannot be true"

_REASONS = {
    Reason.RESTART: "restarted",
    Reason.CACHE_RESET: "cleared",
    Reason.EVICTED: "evicted",
    Reason.STILL_RUNNING: "still running",
    Reason.PREVIOUS_ABORTED: "aborted before it was read",
    Reason.REPLICA: "another replica",
    Reason.OFFLOAD_NOT_LOADED: "its tier not read",
    Reason.HASH_SEED: "another hash seed",
    Reason.STUCK_CACHE: "stuck",
    Reason.METRIC_WRONG: "a wrong number",
}
_BECAUSE = {
    Because.BELOW_MATCH_UNIT: "what is the same is less than one match unit",
    Because.HYBRID_BOUNDARY: "no state was saved where the two prompts part; this one saves it, and the next one hits",
    Because.SPECULATION: "the speculator costs the last block",
    Because.RETOKENISED_REPLY: "the reply came back in other tokens than it was written in",
    Because.PREFIX_CACHING_OFF: "prefix caching is off",
    Because.REPLY_NOT_SAVED: "a reply's states are not saved until it has come back in a prompt once",
}
FIXES = {
    Reason.RESTART: "nothing in the prompt: find out why the server was restarted",
    Reason.CACHE_RESET: "find out who resets the cache, or puts the server to sleep",
    Reason.EVICTED: "more room for KV, fewer conversations at once, or an offload tier",
    Reason.STILL_RUNNING: "send the next turn when the one before it has ended",
    Reason.PREVIOUS_ABORTED: "give the prompt time to be read before giving up on it",
    Reason.REPLICA: "route a conversation to the replica that served it before",
    Reason.OFFLOAD_NOT_LOADED: "look into the log for failed KV loads, and check the connector's configuration",
    Reason.HASH_SEED: "set PYTHONHASHSEED to a fixed number and prefix_caching_hash_algo to sha256",
    Reason.STUCK_CACHE: "restart the server, and report it with its version",
    Reason.METRIC_WRONG: "nothing was lost; report the number with the server's version",
}
_CAUSES = {
    Kind.MODEL_CHANGED: "another model",
    Kind.TEMPLATE_INPUTS_CHANGED: "other inputs of the template",
    Kind.RESPONSE_FORMAT_CHANGED: "another response format",
    Kind.CACHE_SALT_CHANGED: "another cache salt",
    Kind.PROMPT_LOGPROBS_SET: "logprobs of the prompt",
    Kind.TOOL_KEY_ORDER: "key order",
    Kind.TOOL_ARRAY_ORDER: "array order",
    Kind.TOOLS_REORDERED: "tools in another order",
    Kind.TOOL_ADDED: "tool added",
    Kind.TOOL_REMOVED: "tool removed",
    Kind.TOOLS_CHANGED: "another set of tools",
    Kind.TOOL_RANDOM_NAME: "a tool under a random name",
    Kind.TOOL_TEXT_CHANGED: "another text of a tool",
    Kind.TOOL_SCHEMA_CHANGED: "another schema of a tool",
    Kind.TOOLS_NOT_RENDERED: "tools left out by the template",
    Kind.RENDER_NONDETERMINISTIC: "rendered otherwise each time",
    Kind.CLIENT_HEADER: "a header of the client",
    Kind.VOLATILE_TEXT: "text that changes each time",
    Kind.LIVE_STATUS: "a state that is rewritten",
    Kind.MEMORY_TEXT: "recalled text",
    Kind.SYSTEM_FLAPS: "two forms in turn",
    Kind.WHITESPACE: "other white space",
    Kind.UNICODE_FORM: "another Unicode form",
    Kind.PATH_CHANGED: "another path",
    Kind.TEXT_EDITED: "edited text",
    Kind.REMINDER_MOVED: "a reminder that moved",
    Kind.MESSAGE_INSERTED: "a message put in",
    Kind.MESSAGE_REMOVED: "a message taken out",
    Kind.TOOL_OUTPUT_CLEARED: "a tool output cleared",
    Kind.COMPACTION: "its history was compacted",
    Kind.WINDOW_TRUNCATED: "its oldest messages were dropped",
    Kind.ROLLED_BACK: "it was rolled back to an earlier message",
    Kind.LAST_MESSAGE_REPLACED: "its last message was replaced",
    Kind.IMAGE_REMOVED: "a picture taken out",
    Kind.IMAGE_REENCODED: "a picture with other bytes",
    Kind.IMAGE_ADDED: "a picture put in",
    Kind.REASONING_DROPPED_BY_CLIENT: "reasoning not sent back",
    Kind.REASONING_DROPPED_BY_PROXY: "reasoning lost on the way",
    Kind.REASONING_FIELD_IGNORED: "reasoning in a field that is not read",
    Kind.REASONING_DROPPED_BY_TEMPLATE: "reasoning dropped by the template",
    Kind.EMPTY_THINK: "an empty think block",
    Kind.TOOL_CALL_IDS_CHANGED: "other ids of tool calls",
    Kind.ARGUMENTS_RESERIALISED: "arguments written anew",
    Kind.RESULT_RESERIALISED: "a tool's result written anew",
    Kind.CALLS_REORDERED: "calls in another order",
    Kind.TOOL_CALL_EDITED: "an edited tool call",
    Kind.ROLE_CHANGED: "another role",
    Kind.CONTENT_FORM_CHANGED: "another form of content",
    Kind.RESUME_REASSEMBLY: "messages put together anew",
    Kind.SYSTEM_TURN_HOISTED: "a later system message printed first",
    Kind.SERVER_DATE: "the date that the template prints",
    Kind.OTHER_CONVERSATION: "another conversation",
    Kind.PER_AGENT_TEXT_FIRST: "each agent's own text stands first",
}
_VARIES = {
    Varies.DATE_TIME: "a clock",
    Varies.UUID: "a UUID",
    Varies.RANDOM_ID: "a random id",
    Varies.TEMP_PATH: "a path of this run",
    Varies.COUNTER: "a counter",
}
_SYSTEM = ("system", "instructions")
"""Names of the system prompt in requests that have it beside their messages."""


def named(seen: Seen) -> str:
    return f"Turn {seen.turn.id}"


def waited(seen: Seen) -> str:
    """`waited 92 s`."""
    return f"waited {secs(seen.ttft)}" if seen.ttft is not None else "came"


def rest(seen: Seen, tokens: int, besides: int = 0) -> str:
    """What the wait went into, where most of it did not go into the `tokens` that a sentence tells; else nothing.
    `besides`: tokens that were read again for another reason."""
    ttft, cost = seen.ttft, seen.cost_s(tokens)
    if ttft is None or cost is None or cost * 2 >= ttft:
        return ""
    left, queue = ttft - cost, seen.turn.queue_s or 0.0
    new = max(0, (seen.turn.new_tokens or 0) - tokens - besides)
    parts = [f"{secs(queue)} in the queue"] if queue >= SMALL * left else []
    parts += [f"{exact(besides)} more tokens read again"] if besides else []
    parts += [f"{exact(new)} new tokens"] if new else []
    if (queue + (seen.cost_s(new + besides) or 0.0)) * 2 < left:
        parts.append("other requests ran" if seen.turn.alone is False else "what else is not known")
    return f"; the rest, {secs(left)}: {listed(parts)}"


def because(all_: Iterable[Because | Reason]) -> str:
    """The names of several, joined by 'or' where they are reasons, by 'and' where all of them hold."""
    known = list(all_)
    words = [_REASONS[one] if isinstance(one, Reason) else _BECAUSE[one] for one in known]
    return listed(words, "or" if known and isinstance(known[0], Reason) else "and")


def cause(one: Cause) -> str:
    """`key order`, `a clock`."""
    if one.called:
        return one.called
    if one.kind is Kind.LIVE_STATUS and len(one.values) == 1:
        return f"a state with {_VARIES[one.values[0]]}"
    if one.kind is Kind.VOLATILE_TEXT and len(one.values) == 1:
        return _VARIES[one.values[0]]
    return _CAUSES[one.kind]


def place(one: Cause) -> str:
    """Where it stands: `the system prompt`, `tools[4]`."""
    return "the system prompt" if one.of_system else section(one.section)


def section(text: str) -> str:
    """`tools[4]` of `tools[4].function.parameters`, fit for a terminal."""
    first = printable(text.partition(".")[0])[:LIMIT]
    return "the system prompt" if first.partition("[")[0] in _SYSTEM else first


def nothing_lost(one: Cause) -> str:
    """What is said in the place of a price; empty: it has one, or that is not known."""
    return "nothing of this prompt is lost by that" if one.kind in NOT_SENT_AGAIN else ""


def were_preempted(requests: float) -> str:
    """`1 request was preempted`."""
    return "1 request was preempted" if requests == 1 else f"{exact(requests)} requests were preempted"
