"""Containers: the words of `docker run`, and what `docker inspect` says of one that runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtop.profiles import cards
from kvtop.profiles.importers.draft import Draft, Refused, command_text, short_enough
from kvtop.profiles.importers.kinds import rows, table, tables
from kvtop.profiles.importers.variables import matters
from kvtop.profiles.importers.word import Word, is_hidden, part_of
from kvtop.profiles.importers.words import shell_text
from kvtop.profiles.launch import ALL, VISIBLE, Secret
from kvtop.profiles.secret import holds_secret
from kvtop.sources.processes import program_of, role

_ALONE = re.compile(
    r"-[ditPq]+|--(detach|rm|interactive|tty|init|privileged|read-only|no-healthcheck|oom-kill-disable|publish-all|quiet"
    r"|disable-content-trust|sig-proxy|use-api-socket|tls|replace)(=.*)?"
)
"""Options of `docker run` without a value behind them."""
_CLUSTER = re.compile(r"-([ditPq]+)(?=[a-zA-Z])(?![ditPq])")
"""Letters without a value in front of one that has it."""
_OURS = {"--detach", "--rm", "--interactive", "--tty", "--quiet", "--sig-proxy", "--replace"}
"""Options that kvtop sets itself, or does without."""
_PROGRAM = re.compile(r"(?:pypy|python)[\d.]*|(?:ba|da|z)?sh|uv|torchrun|.+\.(?:py|sh)")
_DEVICES = re.compile(r'"?(?:device=)([\w,/-]+)"?')


def run(draft: Draft, words: Sequence[str]) -> None:
    """`docker run …`. Raises Refused for another command of docker."""
    at = next((i for i, word in enumerate(words) if word == "run"), None)
    if at is None or at > 4:
        raise Refused(f"`{command_text(words[:3], 60)}` starts no container", "give the words of docker run")
    if not draft.keeps_own:
        draft.raw["runner"] = "docker"
        if words[0] != "docker":
            draft.put("docker", "program", str(words[0]))
        if at > 1 and words[1:at] != ["container"]:
            draft.note(f"`{command_text(words[1:at], 60)}` of docker itself: left out")
    draft.refuse_unknown(words[: at + 1])
    draft.enter_container()
    rest = _options(draft, list(words[at + 1 :]))
    if not rest:
        raise Refused("docker run names no image", "give the words of docker run, all of them")
    image, *behind = rest
    draft.refuse_unknown([image])
    draft.put("docker", "image", str(image))
    inside(draft, draft.table("docker").get("entrypoint", []), behind)
    if draft.keeps_own:
        cards_seen(draft)


def _options(draft: Draft, words: list[str]) -> list[str]:
    """Takes the options; what is left, from the image on."""
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        if found := _CLUSTER.match(word):  # -dp 8000:8000
            _alone(draft, f"-{found[1]}")
            word = part_of(word, f"-{word[found.end() :]}")
        if is_hidden([word]) and _ALONE.fullmatch(word):
            draft.note(f"{command_text([word.partition('=')[0]], 60)} holds a secret: left out")
            continue
        if _ALONE.fullmatch(word):
            _alone(draft, word)
            continue
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") and len(flag) > 2:
            flag, value, equals = word[:2], word[2:].removeprefix("="), "="
        if not equals:
            if not words:
                raise Refused(
                    f"nothing stands behind {command_text([word], 40)}", "give the words of docker run, all of them"
                )
            value = words.pop(0)
        else:
            value = part_of(word, value)
        _option(draft, flag, value, [word] if equals else [word, value])
    return words


def _alone(draft: Draft, word: str) -> None:
    if not word.startswith("--"):
        for letter in word[1:]:
            if letter == "P":
                draft.add("docker", "options", ["-P"])
        return
    if word.partition("=")[0] not in _OURS:
        draft.add("docker", "options", [word])
    elif word == "--rm" and not draft.keeps_own:
        draft.note("--rm: left out; kvtop reads the log of a start that failed, and removes the container itself")


def _option(draft: Draft, flag: str, value: str, words: Sequence[str]) -> None:
    if flag == "--entrypoint":
        draft.refuse_unknown([value])
    elif is_hidden([value]) and flag not in ("-e", "--env"):
        draft.note(f"{command_text([flag], 60)} holds a secret: left out")
        return
    if flag == "--name":
        draft.put("docker", "name", str(value))
    elif flag in ("-e", "--env"):
        name, equals, text = value.partition("=")
        if equals:
            named = Word(name, hidden=True) if is_hidden(draft.parts(value, [name])) else name
            draft.variable(named, part_of(value, text))
        else:
            given = draft.outer.get(name, "")
            draft.variable(name, given or Word("", Secret("env", name)))
    elif flag == "--env-file":
        draft.add("docker", "env_files", [value])
    elif flag == "--entrypoint":
        draft.put("docker", "entrypoint", [str(value)])
    elif flag == "--gpus":
        gpus(draft, value)
    elif holds_secret([str(word) for word in words]) or is_hidden(words):
        draft.note(f"{command_text([flag], 60)} holds a secret: left out")
    else:
        draft.refuse_unknown(words)
        draft.add("docker", "options", words)
        if flag == "--restart" and value not in ("no", "") and not draft.keeps_own:
            draft.note(
                f"--restart {command_text([value], 40)}: docker starts it again after a crash or a boot without kvtop"
            )


def gpus(draft: Draft, value: str) -> None:
    """The value of --gpus."""
    found = _DEVICES.fullmatch(value.strip("'"))
    if value == "all":
        draft.raw["gpus"] = list(ALL)
    elif found:
        draft.raw["gpus"] = found[1].split(",")
    else:
        draft.add("docker", "options", ["--gpus", value])


def cards_seen(draft: Draft) -> None:
    """Of a container that is started from a file of its own: what the profile says of cards is told, and not done."""
    env = draft.raw.get("env", {}).get("set", {})
    given = draft.raw.get("gpus") or cards.named(env.get("NVIDIA_VISIBLE_DEVICES", ""))
    if found := cards.seen(given, env.get(VISIBLE, "")) or given:
        draft.raw["gpus"] = found


def inside(draft: Draft, entrypoint: Sequence[str], behind: Sequence[str]) -> None:
    """What runs in the container: its entrypoint, and the words behind the image."""
    words = [*entrypoint, *behind]
    short_enough(words)
    text = shell_text(words)
    if text is not None:
        _shell(draft, words, text, bool(entrypoint))
        return
    at = next((i for i in range(len(words)) if role(words[i:]) == "api"), None)
    if at is None and (_is_program(entrypoint[:1]) or _is_program(behind[:1])):
        draft.note(f"it runs no vLLM that kvtop knows: `{command_text(words, 100)}`")
        draft.refuse_unknown(words)
        draft.put("docker", "entrypoint", [str(word) for word in entrypoint])
        draft.put("docker", "command", [str(word) for word in behind])
        return
    if at is None:
        draft.put("docker", "entrypoint", [str(word) for word in entrypoint])
        draft.serve(behind)
        return
    program, rest = program_of(words[at:])
    rest = rest[1:] if program == "vllm" else rest
    start = words[: len(words) - len(rest)]
    draft.refuse_unknown(start)
    draft.put("docker", "entrypoint" if entrypoint else "command", [str(word) for word in start])
    draft.serve(rest)


def _is_program(first: Sequence[str]) -> bool:
    """Whether that word is a program, and not a model or a flag for the vLLM of the image."""
    return any(bool(_PROGRAM.fullmatch(Path(word).name)) for word in first)


def _shell(draft: Draft, words: Sequence[str], text: str, has_entrypoint: bool) -> None:
    """A shell is given one text. What of it is known is told; it is run as it stands."""
    from kvtop.profiles.importers import script

    inner = draft.inside()
    try:
        script.read(inner, text)
    except Refused as error:
        draft.note(f"what its shell runs is not known to kvtop: {error.what}")
        inner = draft.inside()
    told_whole = inner.served and not inner.notes and not inner.holds_secret()
    simple = told_whole and not set(inner.raw) - {"serve", "env", "venv"} and "cwd" not in inner.raw.get("venv", {})
    if draft.keeps_own or simple:
        start = inner.raw.get("venv", {}).get("command", ["vllm", "serve"])
        if draft.keeps_own:
            draft.notes += [note for note in inner.notes if note not in draft.notes]
        else:
            wrap = inner.raw.get("venv", {}).get("wrap", [])
            draft.put("docker", "entrypoint" if has_entrypoint else "command", [*wrap, *start])
        draft.adopt(inner)
        return
    if holds_secret([text]) or is_hidden([text]):
        raise Refused("its shell text holds a secret", "put it into a variable, and import that")
    draft.put("docker", "entrypoint" if has_entrypoint else "command", [str(word) for word in words])
    draft.note("a shell starts vLLM with a text of its own: that text is kept whole, its flags are not in [serve]")


def inspect(draft: Draft, text: str) -> None:
    """What `docker inspect NAME` printed."""
    draft.raw["runner"] = "docker"
    draft.enter_container()
    box = _container(text)
    draft.hide_all(box)
    config, host = table(box.get("Config")), table(box.get("HostConfig"))
    draft.put("docker", "name", str(box.get("Name") or "").lstrip("/"))
    draft.put("docker", "image", str(config.get("Image") or ""))
    draft.add("docker", "options", host_options(host, config))
    for request in tables(host.get("DeviceRequests")):
        if ids := rows(request.get("DeviceIDs")):
            draft.raw["gpus"] = [str(one) for one in ids]
        elif request.get("Count") == -1:
            draft.raw["gpus"] = list(ALL)
        elif request.get("Count"):
            draft.add("docker", "options", ["--gpus", str(request["Count"])])
    for row in rows(config.get("Env")):
        name, _, value = str(row).partition("=")
        if matters(name, image=True):
            draft.variable(name, value)
    if project := table(config.get("Labels")).get("com.docker.compose.project"):
        draft.note(
            f"docker compose made this container (project {command_text(str(project), 60)}): import its file instead"
        )
    entrypoint = [str(word) for word in rows(config.get("Entrypoint"))]
    draft.note("the entrypoint is written out: docker inspect does not tell the image's own from one that was given")
    inside(draft, entrypoint, [str(word) for word in rows(config.get("Cmd"))])


def _container(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("not JSON", "save what `docker inspect NAME` prints") from None
    boxes = [box for box in tables(found if isinstance(found, list) else [found]) if table(box.get("Config"))]
    if len(boxes) != 1:
        what = "no container is in it" if not boxes else f"{len(boxes)} containers are in it"
        raise Refused(what, "save what `docker inspect NAME` prints of one container")
    return boxes[0]


def host_options(host: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Options of `docker run` that make what `docker inspect` tells."""
    out: list[str] = []

    def say(flag: str, values: Iterable[object]) -> None:
        out.extend(word for value in values for word in (flag, str(value)))

    say("--ipc", [mode for mode in [host.get("IpcMode")] if mode not in (None, "", "private", "shareable")])
    say("--shm-size", [size for size in [host.get("ShmSize")] if size not in (None, 0, 64 << 20)])
    say("--memory", [size for size in [host.get("Memory")] if size])
    # docker's own, where none is given: twice the memory
    memory, swap = host.get("Memory"), host.get("MemorySwap")
    say("--memory-swap", [swap] if swap and not (isinstance(memory, int) and swap == 2 * memory) else [])
    say("--cpuset-cpus", [cpus for cpus in [host.get("CpusetCpus")] if cpus])
    say("--runtime", [name for name in [host.get("Runtime")] if name not in (None, "", "runc")])
    say("--network", [name for name in [host.get("NetworkMode")] if name not in (None, "", "default", "bridge")])
    policy = table(host.get("RestartPolicy"))
    say("--restart", [policy["Name"]] if policy.get("Name") not in (None, "", "no") else [])
    say("-v", rows(host.get("Binds")))
    say("--mount", map(_mount, tables(host.get("Mounts"))))
    for inner, bindings in table(host.get("PortBindings")).items():
        for row in tables(bindings):
            address = f"{row['HostIp']}:" if row.get("HostIp") else ""
            say("-p", [f"{address}{row.get('HostPort', '')}:{str(inner).removesuffix('/tcp')}"])
    for limit in tables(host.get("Ulimits")):
        say("--ulimit", [f"{limit.get('Name')}={limit.get('Soft')}:{limit.get('Hard')}"])
    say("--cap-add", rows(host.get("CapAdd")))
    say("--security-opt", rows(host.get("SecurityOpt")))
    say("--workdir", [folder for folder in [config.get("WorkingDir")] if folder])
    say("--user", [user for user in [config.get("User")] if user])
    if host.get("Privileged"):
        out.append("--privileged")
    return out


def _mount(one: Mapping[str, Any]) -> str:
    parts = [f"type={one.get('Type', 'bind')}", f"source={one.get('Source', '')}", f"target={one.get('Target', '')}"]
    return ",".join([*parts, *(["readonly"] if one.get("ReadOnly") else [])])
