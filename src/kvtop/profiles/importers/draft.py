"""A profile in the making, and what could not be taken over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from kvtop.errors import UsageError, keyless
from kvtop.profiles import cards
from kvtop.profiles.differences import flag_values
from kvtop.profiles.folder import MAX_VALUES, values_of
from kvtop.profiles.importers.clean import NEEDED, Secrets
from kvtop.profiles.importers.keys import by_key, keeps
from kvtop.profiles.importers.word import Word, is_hidden, line_of, part_of, secret_of
from kvtop.profiles.launch import VISIBLE, Secret, serve_words
from kvtop.profiles.profile import Profile
from kvtop.profiles.secret import holds_secret, is_secret, masked_words, shown
from kvtop.profiles.spelling import Group, groups
from kvtop.profiles.valid import VARIABLE
from kvtop.profiles.yaml_text import NoYaml, loaded
from kvtop.sources.masking import MASK
from kvtop.sources.secret_names import is_switch, names_secret

BY_HAND = "write the profile by hand: docs/profiles.md has an example"
_SECRET_FLAGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
"""Flags whose value vLLM takes from a variable too."""
_FOR_NONE = {
    "empty",
    "none",
    "null",
    "nokey",
    "no-key",
    "dummy",
    "fake",
    "test",
    "local",
    "localhost",
    "token",
    "vllm",
    "vllm-openai",
}
"""What stands where a program wants a key and nobody checks it."""
_PATH = re.compile(r"(?:~|\.{1,2})?/(?:[\w.@-]+/)*[\w.@-]+")
"""Where a secret is, and none itself."""
MOST_CHARACTERS = 100_000
MOST_WORDS = MAX_VALUES
"""Of one value. A few lines that double a variable make more than fits into memory, and no profile holds more."""
_MOST_NOTES = 300


class Refused(UsageError):
    """What is there cannot be taken over, with its line where there is one."""

    def __init__(self, what: str, fix: str = BY_HAND, line: int | None = None) -> None:
        super().__init__(f"line {line}: {what}" if line else what, fix)


def read_yaml(text: str, as_typed: bool = False) -> Any:
    """See `yaml_text.loaded`. Raises Refused."""
    try:
        return loaded(text, as_typed)
    except NoYaml as error:
        raise Refused(error.what, "mend the file", error.line) from None


def unknown(place: Secret | None, line: int | None, from_outside: bool = False) -> Refused:
    """For a value from elsewhere, where only a written one can stand. `from_outside`: see `Draft.has_outside`."""
    if place is not None and place.kind == "env" and from_outside:
        return Refused(f"what is in ${place.where} is known only when it runs", line=line)
    if place is not None and place.kind == "env":
        fix = f"set it in front, or give it a default; or {BY_HAND}"
        return Refused(f"${place.where} is not set there", fix, line)
    where = command_text(place.where, 200) if place is not None else "a file"
    return Refused(f"what is in {where} is known only when it runs", line=line)


def too_long(line: int | None = None) -> Refused:
    """For a value that grows beyond what a command line holds."""
    return Refused("a value that is too long for a command line", line=line)


def short_enough(words: Sequence[str], line: int | None = None) -> None:
    """Raises Refused for a command line of more words than a profile may have."""
    if len(words) > MOST_WORDS:
        raise Refused(f"a command line of more than {MOST_WORDS} words", line=line)


def command_text(words: Iterable[str] | str, limit: int) -> str:
    """A command of the source as a message or a comment of the profile may hold it."""
    given = [words] if isinstance(words, str) else list(words)
    told = [MASK if is_hidden([word]) else word for word in given]
    text = told[0] if isinstance(words, str) else " ".join(masked_words(told))
    return keyless(shown(text, 10_000), limit)


@dataclass(frozen=True, slots=True)
class Imported:
    """A profile, and what of its source could not be taken over, one line each."""

    profile: Profile
    notes: tuple[str, ...] = ()


def _same(one: str, other: str) -> bool:
    return secret_of(one) == secret_of(other) and (secret_of(one) is not None or str(one) == str(other))


class Draft:
    """Filled by the importers, key by key."""

    def __init__(self, runner: str = "venv") -> None:
        self.raw: dict[str, Any] = {} if runner == "venv" else {"runner": runner}
        self.notes: list[str] = []
        self._values: dict[str, str] = {}
        """Of variables, as they came; never written anywhere."""
        self._secrets = Secrets()
        self.served = False
        """vLLM's own command line was found."""
        self.outer: dict[str, str | None] = {}
        """Environment of the command line, None for a variable that is taken out: vLLM's own, but for a container."""
        self.in_container = False
        """What is read runs in a container: its home is none of this machine, its cards are counted anew."""

    @property
    def runner(self) -> str:
        return str(self.raw.get("runner", "venv"))

    @property
    def keeps_own(self) -> bool:
        """The runner's own file holds what is run: the profile only says what is expected there."""
        return self.runner in ("compose", "systemd")

    def enter_container(self) -> None:
        """What is read from here on runs in one: of the environment outside nothing comes along by itself."""
        self.in_container = True
        self._values = {}

    @property
    def has_outside(self) -> bool:
        """Variables that nobody wrote down may be set all the same: by an image, by a service manager."""
        return self.in_container or self.keeps_own

    @property
    def names_its_own(self) -> bool:
        """Variables and files that it names are of a container that kvtop starts: a profile can read neither."""
        return self.in_container and not self.keeps_own

    @property
    def has_home(self) -> bool:
        """~ is the home of whoever imports it."""
        return not self.has_outside or (not self.in_container and bool(self.raw.get("systemd", {}).get("user")))

    def inside(self) -> Draft:
        """An empty one for the text of a shell, which has the environment that is known so far."""
        inner = Draft(self.runner if self.keeps_own else "venv")
        inner._secrets = self._secrets
        inner.in_container = self.in_container
        for name, value in self._values.items():
            inner.hide(name, value)
            by_name = self.names_its_own and secret_of(value) is None and is_secret(name, value)
            inner._values[name] = Word("", Secret("env", name)) if by_name else value
        return inner

    def known(self) -> dict[str, Word]:
        """The variables that a shell finds in its environment, as far as they are told."""
        values = {**self._values, **self.outer}
        given = {name: value for name, value in values.items() if value is not None}
        return {name: value if isinstance(value, Word) else Word(value) for name, value in given.items()}

    def hide(self, name: str, value: str) -> bool:
        """A value that the source has by a name. Where that tells of a secret, it is one wherever else it stands:
        True."""
        if not value or is_switch(value) or not names_secret(name):
            return False
        if value.lower() in _FOR_NONE or _PATH.fullmatch(value):
            return False
        self._secrets.add(value)
        return True

    def hide_all(self, value: Any) -> None:
        """The same of all that has a name in a document: keys of tables, NAME=VALUE in lists."""
        if isinstance(value, dict):
            for name, one in value.items():
                if isinstance(one, str | int) and not isinstance(one, bool) and "$" not in str(one):
                    self.hide(str(name), str(one))
                else:
                    self.hide_all(one)
        elif isinstance(value, list):
            for one in value:
                name, equals, text = one.partition("=") if isinstance(one, str) else ("", "", "")
                if equals and "$" not in text:
                    self.hide(name, text)
                else:
                    self.hide_all(one)

    def _known_in(self, words: Iterable[str]) -> bool:
        return not self.keeps_own and any(map(self._secrets.in_word, words))

    def parts(self, text: str, words: Iterable[str]) -> list[str]:
        """The words that a text was cut into: where a secret stands in that, those that hold it are hidden."""
        if not is_hidden([text]):
            return list(words)
        return [Word(word, hidden=True) if self._secrets.in_part(word) else word for word in words]

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Why something was refused is said without the secrets that are known."""
        try:
            yield
        except Refused as error:
            error.what, error.fix = self._secrets.told(error.what), self._secrets.told(error.fix)
            raise

    def tells_secret(self, text: str) -> bool:
        """Whether one that has come by its name stands in a text."""
        return self._secrets.holds_one(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            if len(self.notes) >= _MOST_NOTES:
                raise Refused(f"more than {_MOST_NOTES} things in it cannot be taken over")
            self.notes.append(text)

    def table(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.raw.setdefault(name, {})
        return found

    def put(self, table: str, key: str, value: Any) -> None:
        """A value of a table; what is empty is left out."""
        if value not in ("", [], {}, None):
            self.table(table)[key] = value

    def add(self, table: str, key: str, words: Iterable[str]) -> None:
        self.table(table).setdefault(key, []).extend(str(word) for word in words)

    def unset(self, name: str) -> None:
        if is_hidden([name]):
            self.note("the name of a variable holds a secret: left out")
        elif VARIABLE.fullmatch(name):
            self._forget(name)
            self._values.pop(name, None)
            self.add("env", "unset", [name])

    def variable(self, name: str, value: str, flag: str = "") -> None:
        """A variable of vLLM's environment. One that holds a secret is named, not copied. `flag`: where it stood."""
        if not VARIABLE.fullmatch(name) or is_hidden([name]):
            self.note("what is no name of a variable was left out of its environment")
            return
        self._forget(name)
        self._values[name] = value
        place = secret_of(value)
        if place is None and name == VISIBLE and not self.in_container and (found := cards.named(value)):
            self.raw["gpus"] = found
        elif place is not None and not self.keeps_own:
            self.table("env").setdefault(f"from_{place.kind}", {})[name] = place.where
        elif place is not None or is_secret(name, value) or is_hidden([value]):
            self._secret(name, flag)
        else:
            self.table("env").setdefault("set", {})[name] = str(value)
        if place is None:
            self.hide(name, value)

    def take_outer(self) -> None:
        """vLLM gets the environment of the command line."""
        for name, value in self.outer.items():
            if value is None:
                self.unset(name)
            else:
                self.variable(name, value)

    def adopt(self, other: Draft) -> None:
        """What another one knows of vLLM: its flags, its environment, its cards."""
        self.served = self.served or other.served
        for key, value in other.table("serve").items():
            self.table("serve")[key] = value
        env = other.raw.get("env", {})
        for name in env.get("unset", ()):
            self.unset(name)
        for kind in ("set", "from_file", "from_env"):
            for name, value in env.get(kind, {}).items():
                self._forget(name)
                self.table("env").setdefault(kind, {})[name] = value
        if "gpus" in other.raw:
            self.raw["gpus"] = other.raw["gpus"]

    def _secret(self, name: str, flag: str) -> None:
        what = f"{flag}, as {name}" if flag else name
        if self.keeps_own:
            self.table("env").setdefault("set", {})[name] = MASK
            self.note(f"{what}: its value stays where it is, *** stands for it here")
            return
        self.table("env").setdefault("from_env", {})[name] = name
        self.note(
            f"{what}: its value was not copied. Set that variable before kvtop starts the profile, or name a file that "
            "holds it in [env.from_file]"
        )

    def _forget(self, name: str) -> None:
        env = self.raw.get("env", {})
        for key in ("set", "from_file", "from_env"):
            env.get(key, {}).pop(name, None)
        if name in env.get("unset", ()):
            env["unset"].remove(name)
        if name == VISIBLE and not self.in_container:
            self.raw.pop("gpus", None)

    def serve(self, words: Sequence[str]) -> None:
        """What stands behind `vllm serve`."""
        self.served = True
        short_enough(words)
        kept: list[str] = []
        for group in groups(words):
            if group.name in _SECRET_FLAGS and group.values:
                self._key(_SECRET_FLAGS[group.name], group)
            elif holds_secret(group.words) or is_hidden(group.words) or self._known_in(group.words):
                if group.name in ("", "model", "config"):
                    what = f"--{group.name}" if group.name else "the model"
                    raise Refused(f"{what} would hold a secret", BY_HAND)
                name = command_text([f"--{group.name}"], 60)
                self.note(f"{name} holds a secret: left out" if group.name else "a secret: left out")
            else:
                self.refuse_unknown(group.words)
                kept += [str(word) for word in group.words]
        serve = by_key(kept)
        again = serve_words(msgspec.convert({"serve": serve}, Profile))
        # words whose order says more than their keys would stay as they are
        self.raw["serve"] = serve if flag_values(again) == flag_values(kept) else {"args": kept}

    def _key(self, variable: str, group: Group) -> None:
        if len(group.values) > 1:
            self.note(f"--{group.name} has {len(group.values)} values: {variable} holds the first alone")
        value = group.words[1] if "=" not in group.words[0] else part_of(group.words[0], group.values[0])
        flag, other = f"--{group.name}", self._values.get(variable)
        if other is None or _same(other, value):
            self.variable(variable, value, flag)
            return
        self.note(f"{flag} and {variable} have different values: vLLM takes that of {flag}")
        place = secret_of(other)
        if place is not None and place.kind == "file" and secret_of(value) is None and not self.keeps_own:
            self.note(f"{flag}: its value was not copied; {variable} is read from {command_text(place.where, 200)}")
            return
        self.variable(variable, value, flag)

    def refuse_unknown(self, words: Sequence[str], by_shell: bool = False) -> None:
        """Raises Refused for a word whose value is not written there. `by_shell`: a shell will fill it in."""
        for word, told in zip(words, masked_words(words), strict=True):
            if is_hidden([word]) and not self.keeps_own:
                what = "a word of it would hold a secret"
                fix = f"where its variable holds none, give that another name; or {BY_HAND}"
                raise Refused(what, fix, line_of(word))
            if isinstance(word, Word) and not word.plain and not by_shell:
                what = f"`{keyless(told, 60)}` is filled in by the shell"
                raise Refused(what, "put it between quotes, or write it out", word.line)
            if (place := secret_of(word)) is not None:
                raise unknown(place, line_of(word), self.has_outside)

    def holds_secret(self) -> bool:
        """A secret stands in it by its value."""
        return bool(self._secrets.taken_out({key: _plain(value) for key, value in self.raw.items()})[1])

    def _safe(self) -> dict[str, Any]:
        """What was found less what holds a secret. Raises Refused where the server would be another one without it."""
        raw = {key: _plain(value) for key, value in self.raw.items()}
        safe, less = self._secrets.taken_out(raw)
        for where in less:
            if self.keeps_own:
                self.note(f"{command_text(where, 80)} holds a secret, *** stands for it here")
            elif where in NEEDED:
                raise Refused(f"{where} would hold a secret", "put it into a variable or a file, and import that")
            else:
                self.note(f"{command_text(where, 80)} holds a secret: left out")
        return safe if not self.keeps_own else self._secrets.shown(raw)

    def made(self) -> Imported:
        """The profile. Raises Refused where what was found makes none."""
        raw = self._safe()
        if not keeps(raw, -3):  # the table of a JSON flag is the fourth
            raise Refused("a word with a NUL, or one that is not UTF-8: no file of TOML holds it")
        if values_of(raw) > MAX_VALUES:
            raise Refused(f"more than {MAX_VALUES} keys and words: no profile holds them")
        try:
            profile = msgspec.convert(raw, Profile)
        except msgspec.ValidationError as error:
            raise Refused(f"no profile can be made of it: {command_text(str(error), 200)}") from None
        return Imported(profile, tuple(map(self._secrets.told, self.notes)))


def _plain(value: Any) -> Any:
    """The same without what is known of its words."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value
