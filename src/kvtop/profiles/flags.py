"""vLLM's command line as vLLM reads it: what stands behind `vllm serve`, with the YAML file of --config below it.

The order of its parser (0.32, `FlexibleArgumentParser`) decides who wins: --model moves to the front; the file's words
are put behind the model; underscores become dashes; dotted flags (`--kv-transfer-config.kv_role x`) are gathered into
JSON behind everything else, so that they replace a JSON value rather than add to it; then argparse, where the last of a
flag counts, and a flag may be cut short.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvtop.profiles.config_file import NOTHING, FileWords, file_words
from kvtop.profiles.vocabulary import Kind, Spec, Vocabulary, vllm_0_32

Problem = Literal["", "unknown", "ambiguous", "no_value", "extra_value"]
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_MOST_DIGITS = 100
"""No size has as many; with its suffix it is still a float."""


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as it was given once."""

    name: str
    """Its long name without dashes; of one that is not known, as it was typed, with dashes for underscores."""
    typed: str
    """The word as it was typed, or the file's key with two dashes; without its `=value`."""
    values: tuple[str, ...] = ()
    on: bool = True
    """False for `--no-…`."""
    from_file: bool = False
    """It stands in the file of --config."""
    kind: Kind | None = None
    """What may stand behind it; None: not known to this vLLM."""
    problem: Problem = ""
    """Why argparse would refuse it."""
    may_mean: tuple[str, ...] = ()
    """Of an ambiguous one."""


_MOST_ENGINES = 100_000


@dataclass(frozen=True, slots=True)
class Flags:
    """A command line, read. Names may be written with or without dashes in front, with `-` or `_`."""

    words: tuple[str, ...]
    """As they were given."""
    model: str | None = None
    """Positional, or --model, or the file's; None: vLLM takes its own default."""
    given: tuple[Given, ...] = ()
    """In the order in which argparse sees them: of two with one name the last counts."""
    stray: tuple[str, ...] = ()
    """Words that belong to no flag."""
    config: str | None = None
    """The file of `--config FILE`."""
    config_ignored: str | None = None
    """The file of another form of --config, which vLLM does not read."""
    dropped: tuple[str, ...] = ()
    """Keys of the file whose value is false: vLLM leaves them out."""
    file_problem: str | None = None
    """Why the file cannot be used, in a few words."""
    _last: dict[str, Given] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, words: Sequence[str], *, yaml: str | None = None, known: Vocabulary | None = None) -> Flags:
        """`words`: what stands behind `vllm serve`. `yaml`: text of the file that `--config FILE` names, where it was
        read. `known`: the flags of the vLLM that is to run; else those of 0.32.0. Never raises for what a user may
        have written."""
        vocabulary = known or vllm_0_32()
        front, config, rest = _parted(words)
        file = NOTHING if yaml is None or config is None else file_words(yaml)
        line = [
            *((word, False) for word in front),
            *((word, True) for word in file.words),
            *((word, False) for word in rest),
        ]
        items = _normal(line)
        with contextlib.suppress(RecursionError):  # nested as no JSON is: its dotted flags are read as they stand
            items = _dotted(items)
        reader = _Reader(items, vocabulary)
        reader.run()
        return cls._made(tuple(words), reader, config, file)

    @classmethod
    def _made(cls, words: tuple[str, ...], reader: _Reader, config: str | None, file: FileWords) -> Flags:
        last = {one.name: one for one in reader.given}
        model = reader.positional
        if model is None and "model" in last and last["model"].values:
            model = last["model"].values[0]
        named = last.get("config")
        ignored = named.values[0] if named is not None and named.values else None
        return cls(
            words=words,
            model=model,
            given=tuple(reader.given),
            stray=tuple(reader.stray),
            config=config,
            config_ignored=ignored,
            dropped=file.dropped,
            file_problem=file.problem,
            _last=last,
        )

    def all(self) -> Iterator[Given]:
        """What counts of each flag, in the order of the command line."""
        counted = {id(one) for one in self._last.values()}
        return (one for one in self.given if id(one) in counted)

    def find(self, name: str) -> Given | None:
        """What counts of a flag; None: it is not given."""
        return self._last.get(plain_name(name))

    def value(self, name: str) -> str | None:
        """The (first) word behind a flag; None: not given, or nothing stands behind it."""
        found = self.find(name)
        return found.values[0] if found is not None and found.values else None

    def values(self, name: str) -> tuple[str, ...]:
        """All words behind a flag that takes several."""
        found = self.find(name)
        return found.values if found is not None else ()

    def on(self, name: str) -> bool | None:
        """True: `--name`. False: `--no-name`. None: neither is given, and vLLM's default holds."""
        found = self.find(name)
        return None if found is None else found.on

    def engines(self) -> int:
        """Engines of this machine that the command line starts: each has a KV cache and a CPU tier of its own, of the
        whole size that is asked for (vLLM 0.32)."""
        if self.value("data-parallel-rank") is not None:
            return 1
        local = self.number("data-parallel-size-local")
        found = self.number("data-parallel-size") if local is None else local
        return int(found) if found is not None and 1 <= found < _MOST_ENGINES else 1

    def number(self, name: str) -> float | int | None:
        """The number behind a flag, with vLLM's suffixes (1k is 1000, 1K is 1024); None: none that can be read."""
        value = self.value(name)
        return None if value is None else number(value)

    def json(self, name: str) -> dict[str, Any] | None:
        """The JSON object behind a flag; None: not given, or no object."""
        value = self.value(name)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def plain_name(name: str) -> str:
    """`--max_model_len` -> `max-model-len`."""
    return name.lstrip("-").replace("_", "-")


def number(text: str) -> float | int | None:
    """A number as vLLM reads one; None for what is none, or not finite."""
    text = text.strip()
    if len(text) > _MOST_DIGITS:
        return None
    human = _HUMAN.fullmatch(text)
    try:
        if human and human[2] in _DECIMAL:
            return int(float(human[1]) * _DECIMAL[human[2]])
        if human:
            return int(human[1]) * _BINARY[human[2]]
        return int(text)
    except (ValueError, OverflowError):
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_Word = tuple[str, bool]
"""A word, and whether it stands in the file."""


def _parted(words: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """(the model, if one stands in front or behind --model; the file of `--config FILE`; all other words)."""
    rest = list(words)
    front: list[str] = []
    at = next((i for i, word in enumerate(rest) if word == "--model" or word.startswith("--model=")), None)
    if at is not None and rest[at] != "--model":
        front, rest = [rest[at].removeprefix("--model=")], rest[:at] + rest[at + 1 :]
    elif at is not None and at + 1 < len(rest):
        front, rest = [rest[at + 1]], rest[:at] + rest[at + 2 :]
    elif rest and not rest[0].startswith("-"):
        front, rest = rest[:1], rest[1:]
    if "--config" not in rest or rest.index("--config") + 1 == len(rest):
        return front, None, rest
    at = rest.index("--config")
    return front, rest[at + 1], rest[:at] + rest[at + 2 :]


@dataclass(frozen=True, slots=True)
class _Item:
    """A word as argparse gets it."""

    text: str
    typed: str
    from_file: bool


def _normal(line: Sequence[_Word]) -> list[_Item]:
    """Underscores as dashes, up to the first dot; -O3 written out."""
    items: list[_Item] = []
    for at, (word, from_file) in enumerate(line):
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            head, dot, tail = flag.partition(".")
            items.append(_Item(head.replace("_", "-") + dot + tail + equals + value, flag, from_file))
        elif word.startswith("-O") and word != "-O":
            items.append(_Item("--optimization-level", "-O", from_file))
            items.append(_Item(word[3:] if word[2] == "=" else word[2:], word, from_file))
        elif word == "-O" and at + 1 < len(line) and line[at + 1][0] in ("0", "1", "2", "3"):
            items.append(_Item("--optimization-level", "-O", from_file))
        else:
            items.append(_Item(word, word.partition("=")[0] if word.startswith("-") else word, from_file))
    return items


def _dotted(items: Sequence[_Item]) -> list[_Item]:
    """Dotted flags gathered, one JSON value for each, behind all others."""
    plain: list[_Item] = []
    gathered: dict[str, tuple[dict[str, Any], _Item]] = {}
    at = 0
    while at < len(items):
        item = items[at]
        at += 1
        flag, equals, value = item.text.partition("=")
        if not item.text.startswith("-") or "." not in flag:
            plain.append(item)
            continue
        if not equals:
            if at == len(items):
                plain.append(item)  # vLLM falls over it
                continue
            value = items[at].text
            at += 1
        key, *path = flag.removesuffix("+").split(".")
        tree, _ = gathered.setdefault(key, ({}, item))
        _merge(tree, _nested(path, value.split(",") if flag.endswith("+") else _loose(value)))
    for key, (tree, item) in gathered.items():
        plain.append(_Item(key, item.typed, item.from_file))
        plain.append(_Item(json.dumps(tree), item.typed, item.from_file))
    return plain


def _loose(value: str) -> Any:
    """The value of a dotted flag: JSON, a number with a suffix, or a text."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    if _HUMAN.fullmatch(value.strip()):
        found = number(value)
        return value if found is None else found
    return value


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value if isinstance(value, dict) else {}


def _merge(tree: dict[str, Any], more: dict[str, Any]) -> None:
    for _ in range(len(more)):
        key, value = more.popitem()
        mine = tree.get(key)
        if isinstance(value, dict) and isinstance(mine, dict):
            _merge(mine, value)
        elif isinstance(value, list) and isinstance(mine, list):
            tree[key] = mine + value
        else:
            tree[key] = value


class _Reader:
    """argparse's way through the words."""

    def __init__(self, items: Sequence[_Item], vocabulary: Vocabulary) -> None:
        self._items = items
        self._known = vocabulary
        self._at = 0
        self.given: list[Given] = []
        self.stray: list[str] = []
        self.positional: str | None = None

    def run(self) -> None:
        only_words = False
        while self._at < len(self._items):
            item = self._items[self._at]
            self._at += 1
            if item.text == "--" and not only_words:
                only_words = True
            elif only_words or self._is_word(item.text):
                self._word(item.text)
            else:
                self._flag(item)

    def _word(self, text: str) -> None:
        if self.positional is None:
            self.positional = text
        else:
            self.stray.append(text)

    def _is_word(self, text: str) -> bool:
        """Whether argparse takes it for a value rather than for a flag."""
        if not text.startswith("-") or text in self._known or len(text) == 1:
            return text not in self._known
        flag, equals, _ = text.partition("=")
        if (equals and flag in self._known) or self._known.beginning(flag):
            return False
        return bool(_NEGATIVE.fullmatch(text)) or " " in text

    def _flag(self, item: _Item) -> None:
        flag, equals, value = item.text.partition("=")
        means = self._known.beginning(flag)
        specs = {spec for spec in map(self._known.spec, means) if spec is not None}
        inline = (value,) if equals else None
        if len(specs) == 1:
            self._known_flag(item, specs.pop(), inline)
            return
        values = inline if inline is not None else self._take(1)
        name = plain_name(flag)
        problem: Problem = "ambiguous" if means else "unknown"
        self.given.append(Given(name, item.typed, values, from_file=item.from_file, problem=problem, may_mean=means))

    def _known_flag(self, item: _Item, spec: Spec, inline: tuple[str, ...] | None) -> None:
        most = {"switch": 0, "one": 1, "json": 1, "maybe": 1}.get(spec.kind)
        values = inline if inline is not None else self._take(most)
        problem: Problem = ""
        if spec.kind == "switch" and values:
            problem = "extra_value"
        elif spec.kind in ("one", "json", "many") and not values:
            problem = "no_value"
        self.given.append(Given(spec.name, item.typed, values, spec.on, item.from_file, spec.kind, problem))

    def _take(self, most: int | None) -> tuple[str, ...]:
        """The words that follow, at most so many."""
        taken: list[str] = []
        while (
            self._at < len(self._items)
            and (most is None or len(taken) < most)
            and self._items[self._at].text != "--"
            and self._is_word(self._items[self._at].text)
        ):
            taken.append(self._items[self._at].text)
            self._at += 1
        return tuple(taken)
