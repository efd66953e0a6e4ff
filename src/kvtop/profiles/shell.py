"""A launch as one line for a shell, secrets by reference."""

from __future__ import annotations

import shlex

from kvtop.profiles.launch import Launch, Secret
from kvtop.profiles.secret import masked_value, masked_words

_FIRST = r"grep -om1 '\S.*\S'"
"""As `config.read_key_file` reads a key: the first line that is not blank, without what is blank around it."""


def line(launch: Launch) -> str:
    """What could be typed to do the same; empty for attach. Secrets that someone typed are masked."""
    if not launch.argv:
        return ""
    # assigned in front, and not by env: its command line can be seen by every user
    words = [f"{name}={_read(secret)}" for name, secret in launch.secrets.items()]
    env = [part for name in launch.unset for part in ("-u", name)]
    env += [f"{name}={quoted(masked_value(name, value))}" for name, value in launch.set.items()]
    words += ["env", *env] if env else []
    words += [quoted(word) for word in masked_words(launch.argv)]
    return " ".join([*(["cd", quoted(launch.cwd), "&&"] if launch.cwd else []), *words])


def quoted(word: str) -> str:
    """A word for a shell. What cannot be printed stands in $'…', as bash, zsh and ksh read it."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escaped(char) for char in word) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    return char if char.isprintable() else "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _read(secret: Secret) -> str:
    if secret.kind == "env":
        return f'"${{{secret.where}}}"'
    return f'"$({_FIRST} {quoted(secret.where)})"'
