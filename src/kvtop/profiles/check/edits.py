"""Where what a fix asks for is to be written: a compose file or a unit decides what runs, and the profile only says
what is expected of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvtop.errors import keyless
from kvtop.profiles.check.seen import Facts, OwnFile
from kvtop.profiles.profile import Profile
from kvtop.profiles.spelling import plain
from kvtop.sources.masking import MASK

_EDITS = (
    "unknown_flag", "removed_flag", "json_flag_invalid", "config_equals_form", "two_offload_interfaces",
    "units_suspicious", "memory_too_small", "container_memory_limit", "tier_smaller_than_gpu_cache",
    "block_size_not_multiple", "both_block_size_and_chunks", "connector_unknown",
    "kv_role_missing", "expandable_segments",
    "prefix_caching_off", "hash_seed_unset", "hybrid_batch_budget", "long_prefill_threshold_misaligned",
    "no_prompt_tokens_details", "no_include_usage", "no_kv_cache_metrics", "polls_fill_log", "dev_mode_on",
    "speculator_costs_one_unit",
)  # fmt: skip
"""Rules whose fix is another command line or environment."""
_FLAG = re.compile(r"(?<![\w.-])--?[A-Za-z][\w.-]*")


def file_of(facts: Facts) -> str:
    """The file that decides what runs, as a message names it; empty where that is the profile itself."""
    if facts.profile.runner == "systemd":
        return keyless(facts.profile.systemd.unit, 80) or "the unit"
    if facts.profile.runner != "compose":
        return ""
    files = facts.profile.compose.files
    return keyless(files[-1], 120) if files else "the compose file"


def there(facts: Facts, fix: str) -> str:
    """The fix, with the file that is to be edited where that is not the profile."""
    file = file_of(facts)
    return f"{fix} (in {file}, then import it again)" if file and fix else fix


def told(facts: Facts, rule: str, fix: str) -> str:
    """The fix of a rule as it is told for the runner of this profile."""
    return there(facts, fix) if rule in _EDITS else fix


def variable(facts: Facts, name: str, value: str) -> str:
    """How a variable is set where the command line stands."""
    return f"{name}={value}" if file_of(facts) else f'set = {{ {name} = "{value}" }} in [env]'


def no_variable(facts: Facts, name: str) -> str:
    """How one is taken away there."""
    if file_of(facts):
        return f"take {name} out"
    env = facts.profile.env
    tables = {"env.set": env.set, "env.from_file": env.from_file, "env.from_env": env.from_env}
    table = next((table for table, names in tables.items() if name in names), None)
    return f"take {name} out of [{table}]" if table else f'unset = ["{name}"] in [env]'


def json_flag(facts: Facts, first: str = "") -> str:
    """How JSON is written there. `first`: what is to be done before that."""
    if file_of(facts):
        return first or "quotes that the shell leaves"
    return "; ".join(filter(None, (first, "as a table [serve.json.…] nothing needs quotes")))


def mentions(text: str, name: str) -> bool:
    """Whether a variable is named anywhere in it."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def flags_in(text: str) -> set[str]:
    """The plain names of all flags that are written anywhere in it."""
    found = (plain(word).partition(".")[0] for word in _FLAG.findall(text))
    return {name.removeprefix("no-") for name in found}


def lost_variables(profile: Profile, own: OwnFile) -> Iterator[str]:
    """Variables that the profile sets, and that never reach the server: its own file does not name them. Not what was
    imported as ***: that stands in the file in another form."""
    env = profile.env
    if profile.runner == "systemd":  # which hands nothing of systemctl's environment on
        yield from (*env.from_file, *env.from_env)
    elif own.text is not None:
        yield from (name for name in (*env.from_file, *env.from_env) if not mentions(own.text, name))
    if own.text is not None:
        yield from (name for name, value in env.set.items() if value != MASK and not mentions(own.text, name))


def lost(facts: Facts) -> set[str]:
    """`lost_variables` of this profile."""
    return set() if facts.own is None else {*lost_variables(facts.profile, facts.own)}
