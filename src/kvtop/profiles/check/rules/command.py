"""Rules of the command line itself: does vLLM read it, and read it as it was meant."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass

from kvtop.errors import keyless
from kvtop.profiles.check.edits import json_flag
from kvtop.profiles.check.seen import NO_HELP, Facts, Installed, Lacks, Saying, Says
from kvtop.profiles.flags import Given
from kvtop.profiles.vocabulary import Vocabulary, vllm_0_32


@dataclass(frozen=True, slots=True)
class Gone:
    """A flag, or a value of one, that newer versions refuse."""

    since: tuple[int, int]
    """The first version without it."""
    instead: str
    value: str = ""
    """Only with this value; empty: whatever stands behind it."""


REMOVED: dict[str, tuple[Gone, ...]] = {
    "max-num-partial-prefills": (Gone((0, 27), "leave it out: vLLM never used it"),),
    "max-long-partial-prefills": (Gone((0, 27), "--long-prefill-token-threshold N limits the chunk of one request"),),
    "mamba-cache-mode": (Gone((0, 32), "leave it out: align is the default", "all"),),
}
"""By the releases of vLLM up to 0.33."""
REMOVED_CONNECTORS = {"P2pNcclConnector": ((0, 24), "NixlConnector")}
"""By the releases of vLLM up to 0.33."""

_MOST_NAMES = 8
"""Of those that a cut flag may mean, or that drop nothing."""
_GLUED = re.compile(r"--[A-Za-z][\w.-]*\s+\S")
_STRAY = "take it out, or quote what it is part of"
_VARIABLE = re.compile(r"\$(\{\w+[^}]*\}|[A-Za-z_]\w*)")


def unknown_flag(facts: Facts) -> Saying:
    """The installed vLLM's argparse would refuse the line and end with exit code 2: held against its own
    `vllm serve --help=all` (vLLM 0.32)."""
    glued = [word for word in facts.flags.words if _GLUED.match(word)]
    for word in glued:
        flag = keyless(word.split(maxsplit=1)[0], 60)
        yield Says("error", flag, f"{flag} and its value are one word: vLLM refuses it", f'"{flag}", "VALUE"')
    stray = next((word for word in facts.flags.stray if word not in glued), None)
    if facts.installed is None or facts.installed.known is None:
        yield Lacks(NO_HELP)
        if stray is not None and not any(one.problem for one in facts.flags.given):
            yield Says("warning", "", f"'{keyless(stray, 40)}' belongs to no flag", _STRAY)
        return
    for one in facts.flags.given:
        if one.problem and not (one.problem == "unknown" and one.name in REMOVED):
            yield _refused(one, which(facts.installed), facts.installed.known)
    if stray is not None:
        yield Says("error", "", f"'{keyless(stray, 40)}' belongs to no flag: vLLM refuses it", _STRAY)


def which(installed: Installed) -> str:
    """vLLM 0.32.0, the installed vLLM."""
    return f"vLLM {installed.version}" if installed.version else "the installed vLLM"


def _refused(one: Given, vllm: str, known: Vocabulary) -> Says:
    flag = keyless(one.typed, 60)
    if one.problem == "ambiguous":
        names = ", ".join(one.may_mean[:_MOST_NAMES]) + (", …" if len(one.may_mean) > _MOST_NAMES else "")
        fix = f"write out the one that is meant, such as {min(one.may_mean, key=len)}"
        return Says("error", flag, f"{flag} may mean {names}: vLLM refuses it", fix)
    if one.problem == "no_value":
        return Says("error", flag, f"nothing stands behind {flag}", f"{flag} VALUE")
    if one.problem == "extra_value":
        return Says("error", flag, f"{flag} is a switch and takes no value", f"{flag} alone, or --no-{one.name}")
    return Says("error", flag, f"{vllm} has no flag {flag}", _instead(one.name.partition(".")[0], known))


def _instead(name: str, known: Vocabulary) -> str:
    """What may be meant by a flag that there is not, without dashes: never one that does the opposite."""
    if (short := known.spec(f"-{name}")) is not None:
        return f"-{name}, or --{short.name}"
    thing, off = _parted(name)
    flags = {_parted(one[2:]): one for one in reversed(known.long_names())}
    if (thing, off) in flags or (thing, not off) in flags:
        return flags.get((thing, off), "take it out")
    near = difflib.get_close_matches(thing, [other for other, turned in flags if turned == off], n=1, cutoff=0.6)
    return flags[near[0], off] if near else "take it out"


def _parted(name: str) -> tuple[str, bool]:
    """disable-log-stats: (log-stats, True); enable-log-requests: (log-requests, False)."""
    bare = name.removeprefix("no-")
    thing = bare.removeprefix("disable-")
    return thing.removeprefix("enable-"), (bare != name) != (thing != bare)


def removed_flag(facts: Facts) -> Saying:
    """A flag, value or connector that newer versions of vLLM have no more."""
    known = facts.installed.known if facts.installed is not None else None
    for one in facts.flags.all():
        for gone in REMOVED.get(one.name, ()):
            if gone.value and gone.value not in one.values:
                continue
            if not gone.value and known is not None and f"--{one.name}" in known:
                continue
            what = f"{one.typed} {gone.value}".strip()
            yield from _gone(facts, one.typed, what, gone.since, gone.instead)
    connector = (facts.flags.json("kv-transfer-config") or {}).get("kv_connector")
    if isinstance(connector, str) and connector in REMOVED_CONNECTORS:
        since, instead = REMOVED_CONNECTORS[connector]
        yield from _gone(facts, "--kv-transfer-config", connector, since, instead)


def _gone(facts: Facts, flag: str, what: str, since: tuple[int, int], instead: str) -> Saying:
    last = f"vLLM {since[0]}.{since[1]}"
    if facts.version is None:
        yield Says("warning", flag, f"{what} is gone since {last}; the version here is not known", instead)
    elif facts.version >= since:
        yield Says("error", flag, f"{what} is gone since {last}, and {_v(facts.version)} is to run", instead)


def _v(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def json_flag_invalid(facts: Facts) -> Saying:
    """A value that must be JSON and is not, by the mistakes seen; or a `$` in it that
    nobody replaces, since no shell reads a profile's words."""
    for one in facts.flags.all():
        if not one.values or not _is_json(one):
            continue
        text = one.values[0]
        flag = keyless(one.typed, 60)
        problem = _json_problem(text, facts)
        if problem is not None:
            why, fix = problem
            yield Says("error", flag, f"{flag}: {why}", fix)
        elif found := _VARIABLE.search(text):
            name = keyless(found[0], 40)
            if facts.profile.runner == "compose":
                yield Says(
                    "warning", flag, f"compose replaces {name} in {flag}", f"${name} where it is meant as it stands"
                )
            elif facts.profile.runner != "systemd":
                says = f"{name} in {flag} stays as it stands: no shell reads it"
                yield Says("warning", flag, says, "write its value, or set it in [env]")


def _is_json(one: Given) -> bool:
    spec = vllm_0_32().spec(f"--{one.name}")
    return one.kind == "json" or (spec is not None and spec.kind == "json")


def _json_problem(text: str, facts: Facts) -> tuple[str, str] | None:
    """(why it is no JSON object, what to do); None for one."""
    try:
        found = json.loads(text)
    except RecursionError:
        return "JSON nested too deeply", "make it shallower"
    except ValueError as error:
        return _why_not(text.strip(), error, facts)
    if isinstance(found, str) and found.strip().startswith("{"):
        return "a JSON object inside a JSON text", "take the outer quotes and the backslashes away"
    # vLLM takes None for nothing.
    return None if isinstance(found, dict) or found is None else ("JSON, but no object {…}", 'write {"key": value}')


def _why_not(text: str, error: ValueError, facts: Facts) -> tuple[str, str] | None:
    if not text or text == "None":
        return None if text == "None" else ("an empty value where JSON is wanted", "take the flag out")
    if text[0] in "'\"" and text[1:2] == "{":
        return "the quotes around the JSON became part of it", json_flag(facts, "take the outer quotes away")
    if text.startswith("{{") or text.endswith("}}}}"):
        return "doubled braces, left over from a template", "write { and } once"
    if '\\"' in text:
        return "backslashes before the quotes", json_flag(facts, "take the backslashes away")
    if _VARIABLE.search(text):
        return "a $ that nothing replaced", json_flag(facts, "write the value")
    if text.startswith("{") and "'" in text and '"' not in text:
        return "single quotes inside", json_flag(facts, "JSON wants double quotes")
    if text.startswith("{") and '"' not in text and len(text) > 2:
        return "its quotes are gone, a shell took them", json_flag(facts)
    if not text.startswith("{"):
        return "no JSON object {…}", json_flag(facts)
    place = getattr(error, "colno", None)
    return f"not JSON, at character {place}" if place else "not JSON", json_flag(facts)


def config_equals_form(facts: Facts) -> Saying:
    """`--config=file.yaml` is not read, and the server starts Qwen/Qwen3-0.6B on port 8000 (vLLM 0.32)."""
    if facts.flags.config_ignored is not None:
        file = keyless(facts.flags.config_ignored, 80)
        says = "vLLM does not read the file behind --config=: it would start with its defaults"
        yield Says("error", "--config", says, f"--config {file}, as two words")


def yaml_false_dropped(facts: Facts) -> Saying:
    """`flag: false` in the file of --config is left out under `vllm serve`, in every version of vLLM (0.9 to
    0.33). Only the module `api_server`, since 0.28, writes `--no-flag` of it."""
    if facts.flags.config is not None and facts.flags.file_problem is not None:
        says = f"the file of --config cannot be read: {facts.flags.file_problem}"
        yield Says("error", "--config", says, "mend the file")
    command = " ".join([*facts.profile.venv.command, *facts.profile.docker.entrypoint])
    if "api_server" in command and facts.version is not None and facts.version >= (0, 28):
        return
    for key in facts.flags.dropped:
        name = keyless(key, 60)
        yield Says("warning", f"--{name}", f"'{name}: false' in the file is left out", f"no-{name}: true")


def drop_without_effect(facts: Facts) -> Saying:
    """A name in serve.drop that the profile that is extended does not have: what was meant to go is still there."""
    there = sorted({one.name if one.on else f"no-{one.name}" for one in facts.flags.given})
    for dropped in facts.idle[:_MOST_NAMES]:
        name = keyless(dropped, 60)
        near = difflib.get_close_matches(dropped, there, n=1, cutoff=0.6)
        says = f"drop '{name}' takes nothing away: what is extended has no such flag"
        yield Says("warning", "serve.drop", says, f'"{near[0]}"' if near else f"take '{name}' out of it")
