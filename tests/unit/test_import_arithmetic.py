"""$((…)) in what is imported: bash itself is the oracle. What cannot be known there is refused with its line."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.profiles.importers import script
from kvtop.profiles.importers.arithmetic import NoArithmetic, evaluate
from kvtop.profiles.importers.draft import Draft, Imported, Refused

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash to compare with")
VALUES = {"A": "7", "B": "-3", "C": "0x1f", "D": " 010 ", "ZERO": "0", "MOST": str(2**63 - 1), "LEAST": str(-(2**63))}


def read(text: str) -> Imported:
    draft = Draft()
    script.read(draft, text)
    return draft.made()


def by_bash(text: str) -> int | None:
    assert BASH
    said = subprocess.run(
        [BASH, "-c", f"echo $(({text}))"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], **VALUES},
    ).stdout
    return int(said) if said else None


def computed(text: str) -> int | None:
    try:
        return evaluate(text, lambda name: VALUES.get(name, "0"))
    except NoArithmetic:
        return None


NUMBERS = st.one_of(
    st.integers(0, 2**63 - 1).map(str),
    st.integers(0, 9).map(str),
    st.integers(0, 2**40).map(hex),
    st.integers(0, 512).map("0{:o}".format),
    st.sampled_from(list(VALUES)),
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["||", "&&", "|", "^", "&", "==", "!=", "<", "<=", ">", ">=", *"+-*/%"])
    return st.one_of(
        st.tuples(inner, binary, inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["<<", ">>"]), st.integers(0, 63).map(str)).map("".join),
        st.tuples(inner, st.just("**"), st.integers(0, 70).map(str)).map(" ".join),
        st.tuples(st.sampled_from("+-!~"), inner).map(" ".join),
        inner.map("({})".format),
        st.tuples(inner, inner, inner).map(lambda three: "{} ? {} : {}".format(*three)),
    )


@needs_bash
@settings(max_examples=150, deadline=None)
@given(st.recursive(NUMBERS, larger, max_leaves=12))
def test_what_it_comes_to_is_what_bash_says(text: str) -> None:
    found = computed(text)
    # what a shift by more than 63 bits comes to is the processor's choice
    assert found == by_bash(text) or (found is None and ("<<" in text or ">>" in text))


@needs_bash
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*"12()+-*/%<>=!&|^~?: \n,", "**", "08", "0x", "A", "B", "ZERO"]), max_size=9))
def test_whatever_stands_there_is_computed_as_bash_does_or_refused(tokens: list[str]) -> None:
    text = "".join(tokens)
    mine = computed(text)
    assert mine is None or mine == by_bash(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("64*1024", 65536),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("-2 ** 2", 4),
        ("2 ** 3 ** 2", 512),
        ("1 << 63", -(2**63)),
        ("MOST + 1", -(2**63)),
        ("LEAST / -1", -(2**63)),
        ("2 ** 10 ** 9", 0),
        ("3 ** MOST", 12297829382473034411 - 2**64),
        ("0 && 1 / ZERO || 1 ? 2 : 1 / ZERO", 2),
        ("2--3", 5),
        ("!!!5", 0),
    ],
)
def test_what_it_comes_to(text: str, number: int) -> None:
    assert computed(text) == number


def test_where_it_may_stand() -> None:
    made = read(
        "TIER_GB=64\nN=-3\nLIST=(5 6)\n"
        "export A=$((TIER_GB * 1073741824)) B=\"x$(( ${TIER_GB} << 30 ))y\" C='$((1))' D=2$((2))\n"
        "export E=$((2-$N)) F=$(( $(( LIST + 1 )) * ${NONE:-$((2 + 2))} )) G=${NONE:-$((1+1))} H=$((0 && NONE))\n"
        'vllm serve m --seed $((N < 0\n ? 7 \\\n : 1/0)) --x="$((N))"\n'
    )
    assert made.profile.env.set == {
        "A": "68719476736",
        "B": "x68719476736y",
        "C": "$((1))",
        "D": "22",
        "E": "5",
        "F": "24",
        "G": "2",
        "H": "0",
    }
    assert made.profile.serve.args == ["--seed", "7", "--x=-3"]


UNREAD = "line 2: $((…)): only whole numbers, variables and their operators are read"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("A=$((N + 1))", "line 2: $((…)): $N is not set there"),
        ("A=$(($N + 1))", "line 2: $((…)): $N is not set there"),
        ("A=$((${1} + 1))", "line 2: $1 is known only when it runs"),
        ("A=$(($(nproc) / 2))", "line 2: what $(nproc) prints is known only when it runs"),
        ("A=$(($(cat /run/n) / 2))", "line 2: $((…)): what is in /run/n is known only when it runs"),
        ("A=$((I++))", "line 2: $((…)): it sets a variable"),
        ("A=$((-- I))", "line 2: $((…)): it sets a variable"),
        ("A=$((I = 1))", "line 2: $((…)): it sets a variable"),
        ("A=$((I <<= 1))", "line 2: $((…)): it sets a variable"),
        ("A=$((1 / 0))", "line 2: $((…)): it divides by zero"),
        ("A=$((1 % 0))", "line 2: $((…)): it divides by zero"),
        ("A=$((2 ** -1))", "line 2: $((…)): an exponent below zero"),
        ("A=$((1 << 64))", "line 2: $((…)): a shift by less than 0 or more than 63 bits"),
        ("A=$((9223372036854775808))", "line 2: $((…)): a number that 64 bits do not hold"),
        ("B=1.5; A=$((B * 2))", "line 2: $((…)): what is in $B is no whole number"),
        ("B=; A=$((B * 2))", "line 2: $((…)): what is in $B is no whole number"),
        ("B=08; A=$((B * 2))", "line 2: $((…)): what is in $B is no whole number"),
        ('A=$(("1" + 2))', "line 2: $((…)): quotes in it are not read"),
        ("A=$((1.5 * 2))", UNREAD),
        ("LIST=(1 2); A=$((LIST[1]))", UNREAD),
        ("A=$((16#ff))", UNREAD),
        ("A=$((08))", UNREAD),
        ("A=$((1, 2))", UNREAD),
        ("A=$((1 ? 2))", UNREAD),
        ("A=$((1 2))", UNREAD),
        ("A=$((é + ²))", UNREAD),
        ("A=$(( ))", UNREAD),
        ("A=$((1 + ${B))", "line 2: a ${ has no end"),
        ("A=$((1 + 2)", "line 2: a $( has no end"),
        ("A=$((a) | (b))", "line 2: what $(…) prints is known only when it runs"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_its_line(line: str, what: str) -> None:
    with pytest.raises(Refused) as refused:
        read(f"\n{line}\nvllm serve m --seed $A")
    assert refused.value.what == what and refused.value.fix


@pytest.mark.parametrize(
    "text",
    [
        "VLLM_API_KEY=12345678\nA=$((VLLM_API_KEY + 1))",
        "VLLM_API_KEY=1\nA=$(($VLLM_API_KEY + 1))",
        "VLLM_API_KEY=1\nA=$((${B:-$VLLM_API_KEY} + 1))",
        "VLLM_API_KEY=12345678\nB=$VLLM_API_KEY\nA=$((B + 1))",
        "VLLM_API_KEY=12345678\nB=1$VLLM_API_KEY\nA=$((${B} + 1))",
        "VLLM_API_KEY=1234567\nB=$VLLM_API_KEY\nA=$((B + 1))",
        "VLLM_API_KEY=0x1234567890\nA=$((0x1234567890 + 1))",
        "VLLM_API_KEY=12345678\nB=1234 C=5678\nA=$(($B$C + 1))",
        "VLLM_API_KEY=(12345678 23456789)\nB=$VLLM_API_KEY\nA=$((B + 1))",
    ],
)
def test_nothing_is_computed_from_a_secret(text: str) -> None:
    with pytest.raises(Refused, match=r"\$\(\(…\)\): it is computed from a secret"):
        read(f"{text}\nvllm serve m --seed $A")


@pytest.mark.parametrize(
    "text", ["API_KEY=abc123 X=$API_KEY", "HF_TOKEN=12345678 X=1$HF_TOKEN", "API_KEY=123 X=$API_KEY"]
)
def test_a_secret_in_front_of_the_command_is_one_for_what_stands_behind_it(text: str) -> None:
    secret = text.partition("=")[2].split()[0]
    try:
        made = read(f"{text} vllm serve m").profile
    except Refused:
        return
    assert made.env.set == {} and secret not in str(made)


def test_nothing_is_computed_from_a_secret_in_front_of_the_command() -> None:
    with pytest.raises(Refused, match=r"\$\(\(…\)\): "):
        read("API_KEY=12345 X=$API_KEY Y=$((X+1)) vllm serve m")


def test_what_is_no_secret_though_one_has_the_same_value_is_computed_with() -> None:
    made = read("AUTH=1\nvllm serve m --seed $((1 + 1))")
    assert "2" in made.profile.serve.args


def test_what_is_computed_for_a_secret_is_one() -> None:
    made = read("export VLLM_API_KEY=$((12345677 + 1))\nvllm serve m --seed 12345678")
    assert made.profile.env.from_env == {"VLLM_API_KEY": "VLLM_API_KEY"}
    assert "12345678" not in str(made)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(" * 60_000 + "1" + ")" * 60_000, "too long"),
        ("(" * 300 + "1" + ")" * 300, "nested too deeply"),
        ("1?" * 300 + "1" + ":1" * 300, "too long"),
        ("1?" * 200 + "1" + ":1" * 200, "nested too deeply"),
        ("1 || 2**-1", "an exponent below zero"),
        ("2**" * 300 + "2", "nested too deeply"),
        ("1||1&&1|1^1&1==1<1<<1+1*1**(" * 30 + "1" + ")" * 30, "nested too deeply"),
        ("$((" * 30_000 + "1" + "))" * 30_000, "too long"),
        ("$((" * 100 + "1" + "))" * 100, "too many others stand in it"),
        ("+$LONG" * 160, "too long"),
    ],
)
def test_a_hostile_one_is_refused_at_once(text: str, why: str) -> None:
    began = time.process_time()
    with pytest.raises(Refused, match=why):
        read(f"LONG={'1+' * 49_000}1\nvllm serve $(({text}))")
    assert time.process_time() - began < 5


def test_many_signs_and_sums_are_no_depth() -> None:
    assert computed("-" * 998 + "1") == 1
    assert computed("1+" * 499 + "1") == 500
