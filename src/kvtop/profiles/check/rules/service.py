"""Rules of what the server offers: to whom, what it tells kvtop, and whether the model is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from kvtop.errors import keyless
from kvtop.profiles.check import containers
from kvtop.profiles.check.edits import file_of, lost, mentions, there
from kvtop.profiles.check.seen import NO_ENV, NO_HELP, NO_LINE, Facts, Lacks, Saying, Says

_LOOPBACK = ("localhost", "::1")
_EVERYWHERE = ("0.0.0.0", "::")

_KEY = "VLLM_API_KEY"
MODELS = {"--model": "the model", "--tokenizer": "the tokenizer", "--speculative-config": "the draft model"}
"""Flags that name what a folder holds, and what that is."""
_FILES = ("chat-template", "tool-parser-plugin", "reasoning-parser-plugin", "ssl-certfile", "ssl-keyfile")
"""Flags that name a file, beside those of models."""
_QUIET = "disable-access-log-for-endpoints"


def exposed_without_key(facts: Facts) -> Saying:
    """Without --host vLLM listens on every interface; an API key guards /v1 alone (vLLM 0.32)."""
    if not facts.line_known:
        yield Lacks(NO_LINE)
        return
    open_by = _opened(facts)
    if open_by is None or facts.flags.values("api-key") or facts.env.get(_KEY):
        return
    if "$" in open_by.where:
        yield Lacks(f"where it is published: {open_by.flag} holds a variable")
    elif _KEY in facts.secrets_missing and _KEY not in lost(facts):  # secret_missing tells that
        return
    elif not facts.env_known:
        yield Lacks(NO_ENV)
    else:
        says = f"it is reached {open_by.where}, without a key"
        yield Says("warning", open_by.flag, says, _closed(facts, open_by.fix))


def _closed(facts: Facts, fix: str) -> str:
    taken = facts.own is not None and facts.own.text is not None and mentions(facts.own.text, _KEY)
    if facts.profile.runner in ("venv", "docker"):
        return f"{fix}, or {_KEY} from a file"
    if facts.profile.runner == "compose" and taken:
        return f"{there(facts, fix)}; or {_KEY} from a file"
    return there(facts, f"{fix}, or {_KEY}")


@dataclass(frozen=True, slots=True)
class _Open:
    """What others reach it by."""

    flag: str
    where: str
    """From where: in words."""
    fix: str
    """What closes it."""


def _opened(facts: Facts) -> _Open | None:
    """None: this machine alone reaches it."""
    if facts.flags.value("uds") is not None or facts.flags.on("headless"):
        return None
    if facts.networked:
        published = containers.published(facts.options)
        if published is None:
            return None
        fix = f"-p {keyless(containers.on_loopback(published), 60)}"
        if facts.profile.runner == "compose":
            fix = f"{fix.removeprefix('-p ')} under ports"
        return _Open("-p", f"from the network (-p {keyless(published, 40)})", fix)
    host = facts.flags.value("host") or ""
    if host == "None":  # vLLM's word for nothing
        host = ""
    if host in _LOOPBACK or host.startswith("127."):
        return None
    where = f"at {keyless(host, 40)}" if host and host not in _EVERYWHERE else "on every interface"
    return _Open("--host", where, "--host 127.0.0.1")


def dev_mode_on(facts: Facts) -> Saying:
    """VLLM_SERVER_DEV_MODE opens control routes that no API key guards (vLLM 0.32)."""
    if facts.env.get("VLLM_SERVER_DEV_MODE", "0") not in ("", "0"):
        open_by = _opened(facts)
        says = "whoever reaches the port may reset the cache, or put the server to sleep"
        fix = "take it out" if open_by is None else f"take it out, or {open_by.fix}"
        yield Says("warning" if open_by else "note", "VLLM_SERVER_DEV_MODE", says, fix)


def no_prompt_tokens_details(facts: Facts) -> Saying:
    """Without it vLLM tells of no turn how much was cached (vLLM 0.32)."""
    says = "without it no answer tells how many tokens were cached"
    yield from _switch(facts, "enable-prompt-tokens-details", says)


def no_include_usage(facts: Facts) -> Saying:
    """A stream carries usage only where its client asks for it (vLLM 0.32)."""
    says = "without it a stream tells its tokens only where the client asks"
    yield from _switch(facts, "enable-force-include-usage", says)


def no_kv_cache_metrics(facts: Facts) -> Saying:
    """The lifetime of KV blocks, which shows eviction, needs a flag (since 0.12)."""
    if facts.version is None or facts.version >= (0, 12):
        yield from _switch(facts, "kv-cache-metrics", "without it nothing shows that blocks were evicted")


def polls_fill_log(facts: Facts) -> Saying:
    """uvicorn logs each GET /metrics and /health that kvtop and other watchers ask, and what matters is rotated away:
    this vLLM has a flag that leaves them out."""
    known = facts.installed.known if facts.installed is not None else None
    flags = facts.flags
    if not facts.line_known:
        yield Lacks(NO_LINE)
    elif known is None:
        yield Lacks(NO_HELP)
    elif (
        f"--{_QUIET}" in known
        and flags.value(_QUIET) is None
        and not flags.on("disable-uvicorn-access-log")
        and flags.value("uvicorn-log-level") not in ("critical", "error", "warning")
    ):
        says = "each poll of kvtop and other watchers is a line of its log"
        yield Says("note", f"--{_QUIET}", says, f"add --{_QUIET} /metrics,/health,/v1/models")


def _switch(facts: Facts, name: str, says: str) -> Saying:
    """A note where a switch that kvtop profits from is not given, and this vLLM has it."""
    known = facts.installed.known if facts.installed is not None else None
    if not facts.line_known:
        yield Lacks(NO_LINE)
    elif not facts.flags.on(name) and (known is None or f"--{name}" in known):
        yield Says("note", f"--{name}", says, f"add --{name}")


def model_path_missing(facts: Facts) -> Saying:
    """The model, tokenizer, draft model or another file that a flag names is a path, and nothing is there. vLLM reads
    the chat template only when the weights are loaded (0.32)."""
    for flag, path in local_paths(facts):
        shown = keyless(path, 120)
        if path.startswith("~"):
            yield Says("error", flag, f"no shell reads {shown}: ~ stays as it stands", "write the whole path")
        elif path.startswith(".") and facts.profile.runner == "venv" and not facts.profile.venv.cwd:
            continue  # relative_path tells that
        elif path not in facts.paths:
            yield Lacks(f"the file system on which {shown} is")
        elif not facts.paths[path]:
            place = containers.outside(facts.options, path) if facts.contained else None
            where = (
                f"{keyless(place, 120)} is not there ({shown} in the container)" if place else f"{shown} is not there"
            )
            yield Says("error", flag, where, _another(facts, flag, path, place or path))


def _another(facts: Facts, flag: str, path: str, place: str) -> str:
    fix = f"name a folder that has {MODELS[flag]}" if flag in MODELS else "name a file that is there"
    above = facts.above.get(path)
    if path in facts.near:
        fix += f": {keyless(facts.near[path], 120)} is there"
    elif above is not None and above != str(PurePosixPath(place).parent):
        fix += f"; of this path {keyless(above, 120)} is there"
    if not facts.contained:
        return fix
    where = there(facts, "another mount") if file_of(facts) else "another mount: -v in [docker] options"
    return f"{fix}; or {where}"


def local_paths(facts: Facts) -> list[tuple[str, str]]:
    """(flag, path) of what the command line takes from the disk, as it is typed."""
    draft = (facts.flags.json("speculative-config") or {}).get("model")
    named = [
        ("--model", facts.flags.model),
        ("--tokenizer", facts.flags.value("tokenizer")),
        ("--speculative-config", draft if isinstance(draft, str) else None),
        *((f"--{name}", facts.flags.value(name)) for name in _FILES),
    ]
    return [(flag, path) for flag, path in named if path and path.startswith(("/", "./", "../", "~"))]
