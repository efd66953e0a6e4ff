"""How numbers are written: the table of the screens, and its edges."""

import math
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.model.words import ago, flow, held_by, hms, lasted, pct, per_hour, per_second, secs, tok, traffic
from kvtop.readings import OffloadFile
from kvtop.ui.numbers import bound, bucket, short, when, whole_shares


@pytest.mark.parametrize(
    ("seconds", "text", "in_a_table"),
    [
        (None, "–", "–"),
        (math.nan, "–", "–"),
        (-1.0, "0 ms", "0 ms"),
        (0.0, "0 ms", "0 ms"),
        (0.0004, "0 ms", "0 ms"),
        (0.0421, "42 ms", "42 ms"),
        (0.0994, "99 ms", "99 ms"),
        (0.0995, "100 ms", "100 ms"),
        (0.15, "150 ms", "150 ms"),
        (0.1524, "152 ms", "152 ms"),
        (0.9994, "999 ms", "999 ms"),
        (0.9995, "1.0 s", "1.0 s"),
        (2.84, "2.8 s", "2.8 s"),
        (92.1, "92 s", "92 s"),
        (387.0, "6 m 27 s", "387 s"),
        (38_220.0, "10 h 37 m", "10.6 h"),
    ],
)
def test_seconds(seconds: float | None, text: str, in_a_table: str) -> None:
    assert (secs(seconds), short(seconds)) == (text, in_a_table)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (12.4e6, "12.4 MB"), (32.9e9, "32.9 GB"), (99.96e9, "100 GB"), (162.8e9, "163 GB")],
)
def test_traffic_has_three_digits(count: float, text: str) -> None:
    assert traffic(count) == text
    assert per_hour(count / 3600) == f"{text}/h"


def test_a_flow_of_now_fits_its_column() -> None:
    flows = (0.0, 40_000.0, 12.4e6, 104.8e6, 1.84e9)
    assert [per_second(v) for v in flows] == ["0 B/s", "40 kB/s", "12.4 MB/s", "105 MB/s", "1.8 GB/s"]


@pytest.mark.parametrize(
    ("key", "text"), [("10s", "0.9 MB/s"), ("1m", "3.1 GB/h"), ("5m", "3.1 GB/h"), ("start", "3.1 GB/h")]
)
def test_the_unit_of_a_windows_flow_is_one_rule(key: str, text: str) -> None:
    assert flow(861_111.0, key) == text


def test_what_counts_up_has_no_decimals() -> None:
    assert [lasted(s) for s in (0.0, 2.04, 92.4, 161.0)] == ["0 s", "2 s", "92 s", "2 m 41 s"]
    assert [ago(s) for s in (61.0, 119.0, 250.0, 7_500.0)] == ["1 min ago", "1 min ago", "4 min ago", "2 h 05 m ago"]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.integers(0, 100))
def test_whole_percents_add_up(parts: list[int], of: int) -> None:
    shares = whole_shares(parts, of)
    assert sum(shares) == (of if sum(parts) else 0)
    assert all(abs(share - part / max(1, sum(parts)) * of) < 1 for share, part in zip(shares, parts, strict=True))


def test_a_bucket_is_written_in_the_unit_of_its_value() -> None:
    assert bucket(2.5, 5.0, 4.3) == "2.5–5"
    assert bucket(0.02, 0.04, 0.031) == "20–40"
    assert bucket(0.1, 0.25, 0.2) == "100–250"
    assert bucket(0.0, 0.3, 0.00007) == "0–300"
    assert bucket(0.5, 2.5, 1.2) == "0.5–2.5"
    assert bucket(1920.0, None) == "> 1920"
    assert (bound(0.25), bound(0.08), bound(7.5)) == ("250 ms", "80 ms", "7.5 s")


LADDERS = (
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
    (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
"""Of vLLM's histograms: first tokens, requests, gaps."""


@given(st.sampled_from(LADDERS), st.floats(0, 80))
def test_a_value_is_written_inside_its_bucket(ladder: tuple[float, ...], value: float) -> None:
    above = max((bound for bound in ladder if bound < value), default=0.0)
    up_to = min(bound for bound in ladder if bound >= value)
    low, high = (float(part) for part in bucket(above, up_to, value).split("–"))
    assert low <= float(short(value).split()[0]) <= high


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_number_is_ever_negative_or_too_wide(value: float) -> None:
    for text in (secs(value), short(value), tok(value), traffic(value), per_second(value), pct(value)):
        assert not text.startswith("-")
    assert len(short(min(value, 8.6e7))) <= 6


def at(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").timestamp()


@pytest.mark.parametrize(
    ("then", "now", "long", "eight", "five"),
    [
        ("2026-11-30 09:04:21", "2026-11-30 23:00:00", "09:04:21", "09:04:21", "09:04"),
        ("2026-11-29 23:58:00", "2026-11-30 00:05:00", "23:58:00", "23:58:00", "23:58"),
        ("2026-11-29 12:00:00", "2026-11-29 10:14:00", "12:00:00", "12:00:00", "12:00"),
        ("2026-11-29 23:30:00", "2026-11-30 10:14:00", "29 Nov 23:30", "29 Nov", "29Nov"),
        ("2026-11-29 13:04:21", "2026-11-30 13:04:21", "29 Nov 13:04", "29 Nov", "29Nov"),
        ("2026-11-25 23:58:00", "2026-11-30 23:59:00", "25 Nov 23:58", "25 Nov", "25Nov"),
    ],
)
def test_a_moment_of_another_day_has_its_date(then: str, now: str, long: str, eight: str, five: str) -> None:
    assert hms(at(then), at(now)) == long
    assert (when(at(then), at(now), 8), when(at(then), at(now), 5)) == (eight, five)
    assert hms(at(then)) == then[11:]
    assert hms(None, at(now)) == when(None, at(now), 8) == "–"


def test_a_file_whose_users_may_not_be_told_is_not_said_to_have_none() -> None:
    assert held_by(OffloadFile("f", 1)) == "nobody is seen to map it"
    assert held_by(OffloadFile("f", 1, mapped_by=(7,))) == "mapped by 1 process"
    assert held_by(OffloadFile("f", 1, stale=True)) == "left over: nobody maps it"
