"""The line reader against prometheus_client's parser, and against what servers and strangers send."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_texts import raw, texts_of
from prometheus_client.parser import text_string_to_metric_families

from kvtop.model import metrics
from kvtop.model.window import between
from kvtop.readings import CLEARING, HTTP_REQUESTS, SeriesKey
from kvtop.sources import exposition
from kvtop.sources.exposition import Reader

FOLDERS = ("vllm-0.32.0", "vllm-0.28.0", "odd", "old", "dp2", "pd", "spec-ngram", "vllm-0.32.0-tier")


def official(text: str) -> dict[SeriesKey, float]:
    """What the official parser reads of a text, as the reader keeps it: vllm: without creation times, the start, and
    the requests that clear the cache."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == exposition.START_TIME
        or (sample.name.startswith("vllm:") and not sample.name.endswith("_created"))
        or (sample.name == HTTP_REQUESTS and sample.labels.get("handler") in CLEARING)
    }


def same(a: dict[SeriesKey, float], b: dict[SeriesKey, float]) -> bool:
    return a.keys() == b.keys() and all(a[k] == b[k] or (math.isnan(a[k]) and math.isnan(b[k])) for k in a)


def metric_lines(text: str) -> str:
    """The logger-only texts begin with log lines, which the official parser refuses."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("INFO", "WARNING")))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_capture_reads_as_the_official_parser_reads_it(folder: str, captures: Callable[[str], Path]) -> None:
    reader = Reader()
    for path in texts_of(captures(folder))[::3]:
        text = metric_lines(raw(path))
        expected = official(text)
        for _ in range(2):  # the second time from memory
            scrape = reader.read(text, 5.0)
            assert same(dict(scrape.values), expected)
            assert reader.dropped == 0
            assert (scrape.at, scrape.truncated) == (5.0, False)
        assert all(name.startswith("vllm:") for name in scrape.types)


label_values = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
names = st.sampled_from(["vllm:a_total", "vllm:b", "vllm:c_bucket", "process_start_time_seconds", "http_x", "python_y"])
numbers = st.one_of(
    st.floats(width=64),
    st.integers(-(10**20), 10**20),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e3", "1.5E-7", "0", "-0.0"]),
)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@st.composite
def lines(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(st.sampled_from(["engine", "le", "model_name", "x9_"]), label_values, max_size=3))
    inner = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    if inner and draw(st.booleans()):
        inner += ","
    head = draw(names) + (f"{{{inner}}}" if labels or draw(st.booleans()) else "")
    gap = draw(st.sampled_from([" ", "  "]))
    stamp = draw(st.sampled_from(["", "", " 1795956102593"]))
    return f"{head}{gap}{draw(numbers)}{stamp}"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.one_of(lines(), st.just(""), st.just("# HELP vllm:b some words"), st.just("# EOF")), max_size=8))
def test_any_text_reads_as_the_official_parser_reads_it(parts: list[str]) -> None:
    # line breaks other than \n are whitespace to the official parser's file, so they are left out of this comparison
    text = "".join(part + "\n" for part in parts if len(part.splitlines()) <= 1 and "\r" not in part)
    try:
        expected = official(text)
    except ValueError:
        return  # one bad line and the official parser refuses the whole text; the reader drops that line
    reader = Reader()
    assert same(dict(reader.read(text).values), expected)
    assert same(dict(reader.read(text).values), expected)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.text(max_size=300) | st.lists(st.sampled_from(list('vllm:a{}="\\, \n#TYPE19.e+NaInf')), max_size=80).map("".join)
)
def test_garbage_is_never_an_error(text: str) -> None:
    reader = Reader()
    for part in (text, "vllm:" + text, 'vllm:a{b="' + text, text * 3 + "\n"):
        scrape = reader.read(part)
        between(scrape, scrape, 1.0)


def test_a_cut_text_loses_its_last_line() -> None:
    scrape = Reader().read("# TYPE vllm:a_total counter\nvllm:a_total 5\n# TYPE vllm:b_total counter\nvllm:b_total 1")
    assert scrape.truncated
    assert dict(scrape.values) == {("vllm:a_total", ()): 5.0}
    assert list(scrape.types) == ["vllm:a_total", "vllm:b_total"]
    assert scrape.ends == "vllm:b_total"
    whole = Reader().read("# TYPE vllm:a_total counter\nvllm:a_total 5\n# TYPE vllm:b_total counter\n")
    assert list(whole.types) == ["vllm:a_total"], "that b has no sample yet would be a guess"


def test_carriage_returns_blank_lines_tabs_and_padding() -> None:
    text = '# TYPE vllm:a counter\r\n\r\nvllm:a{x="1"} 2\r\n  vllm:b 3  \r\nvllm:c\t4\r\nvllm:d{x="1",} 5\r\n'
    scrape = Reader().read(text)
    assert {name: value for (name, _), value in scrape.values.items()} == {
        "vllm:a": 2.0,
        "vllm:b": 3.0,
        "vllm:c": 4.0,
        "vllm:d": 5.0,
    }
    assert scrape.types == {"vllm:a": "counter"}


def test_escapes_exemplars_timestamps_and_quoted_names() -> None:
    reader = Reader()
    text = (
        'vllm:a{m="a\\"b\\\\c\\nd\\q"} 1\n'
        'vllm:b_bucket{le="+Inf"} 7 # {trace_id="x y"} 0.5 1.7e9\n'
        "vllm:c 3 1795956102593\n"
        '{"vllm:d", engine="0"} 4\n'
        "# EOF\n"
    )
    for _ in range(2):
        assert dict(reader.read(text).values) == {
            ("vllm:a", (("m", 'a"b\\c\nd\\q'),)): 1.0,
            ("vllm:b_bucket", (("le", "+Inf"),)): 7.0,
            ("vllm:c", ()): 3.0,
            ("vllm:d", (("engine", "0"),)): 4.0,
        }
        assert reader.dropped == 0


def test_a_timestamp_does_not_poison_the_memory() -> None:
    reader = Reader()
    reader.read("vllm:a 1 2\n")
    assert dict(reader.read("vllm:a 1\n").values) == {("vllm:a", ()): 1.0}
    assert dict(reader.read("vllm:a 1 9\n").values) == {("vllm:a", ()): 1.0}


def test_a_line_nobody_can_read_is_dropped_and_counted_and_the_rest_stands() -> None:
    reader = Reader()
    bad = 'vllm:a{x="1} 5\nvllm:b twelve\nvllm:c{x="1",x="2"} 1\nvllm:\n'
    scrape = reader.read(bad + "vllm:ok 1\n")
    assert dict(scrape.values) == {("vllm:ok", ()): 1.0}
    assert reader.dropped == 4
    reader.read("vllm:ok 1\n")
    assert reader.dropped == 0


def test_a_value_that_breaks_later_is_dropped_then() -> None:
    reader = Reader()
    reader.read("vllm:a 1\nvllm:b 1\n")
    assert dict(reader.read("vllm:a oops\nvllm:b 2\n").values) == {("vllm:b", ()): 2.0}
    assert reader.dropped == 1


def test_of_a_series_that_stands_twice_the_last_counts() -> None:
    assert dict(Reader().read('vllm:a{x="1"} 1\nvllm:a{x="1"} 2\n').values) == {("vllm:a", (("x", "1"),)): 2.0}


def test_what_a_text_is() -> None:
    read = Reader().read
    assert not read("<!DOCTYPE html>\n<html></html>\n").has_vllm
    http = read("# TYPE http_requests_total counter\nhttp_requests_total 1\n")
    assert http.has_http and not http.has_vllm
    assert read("vllm:unheard_of_created 1\n").has_vllm, "although it is not kept"
    assert not read("process_start_time_seconds 1\n").has_vllm
    assert read("").values == {} and not read("").truncated


def test_requests_that_clear_the_cache_are_kept_and_no_others() -> None:
    lines = [
        f'{HTTP_REQUESTS}{{handler="{path}",method="POST",status="2xx"}} {n}.0'
        for n, path in enumerate(["/v1/chat/completions", "/sleepy", *CLEARING, "/sleep/2"])
    ]
    reader, text = Reader(metrics.wanted), "\n".join([f"# TYPE {HTTP_REQUESTS} counter", *lines]) + "\n"
    for more, found in ((text, 2.0), (text.replace("} 2.0", "} 7.0"), 7.0), (text, 2.0)):
        scrape = reader.read(more)
        assert dict(scrape.values) == official(more)
        assert scrape.values[HTTP_REQUESTS, (("handler", CLEARING[0]), ("method", "POST"), ("status", "2xx"))] == found
        assert scrape.has_http and not scrape.has_vllm
    assert len(scrape.values) == len(CLEARING)
    for odd in (lines[2].replace(" 2.0", " two"), lines[2].replace(",", ";")):
        scrape = reader.read(f"{odd}\n")
        assert (scrape.values, scrape.has_http, scrape.has_vllm) == ({}, True, False)


def test_only_what_is_wanted_is_kept(captures: Callable[[str], Path]) -> None:
    text = raw(captures("vllm-0.32.0") / "05-append4.txt")
    everything, wanted = Reader().read(text), Reader(metrics.wanted).read(text)
    assert len(wanted.values) < 0.6 * len(everything.values)
    assert set(wanted.values.items()) <= set(everything.values.items())
    assert wanted.types == everything.types


def test_ever_new_labels_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_HEADS", 50)
    monkeypatch.setattr(exposition, "MAX_HEAD_CHARS", 5_000)
    reader = Reader()
    for i in range(200):
        filler = "x" * (i % 7) * 100
        text = f'vllm:a{{id="{i}{filler}"}} {i}\npython_{i} 1\n# HELP vllm:h{i} words\nvllm:fixed 7\n'
        scrape = reader.read(text)
        assert scrape.values["vllm:fixed", ()] == 7.0
        assert len(scrape.values) == 2
        assert len(reader._heads) <= 50
        assert reader._chars <= 5_000 + len(text)


def test_one_text_cannot_hold_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_SERIES", 20)
    monkeypatch.setattr(exposition, "MAX_ODD", 5)
    reader = Reader()
    scrape = reader.read("".join(f'vllm:a{{id="{i}"}} 1\n' for i in range(30)) + "vllm:bad{ 1\n" * 9)
    assert len(scrape.values) == 20
    assert reader.dropped == 10 + 9


def test_lines_without_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_LINES", 3)
    scrape = Reader().read("vllm:a 1\nvllm:b 2\nvllm:c 3\nvllm:d 4\n")
    assert scrape.truncated and len(scrape.values) == 3
    assert not Reader().read("vllm:a 1\nvllm:b 2\nvllm:c 3\n").truncated


def test_a_long_hostile_label_is_read_in_linear_time() -> None:
    begin = time.perf_counter()
    reader = Reader()
    for hostile in (
        'vllm:a{b="' + '\\"' * 200_000,
        'vllm:a{b="' + "\\" * 200_001 + '"} 1',
        "vllm:a{" + 'a="",' * 50_000,
    ):
        reader.read(hostile + "\n")
    assert time.perf_counter() - begin < 2, "the official parser is quadratic here and must not be asked"


def test_the_official_parser_is_imported_only_for_odd_lines() -> None:
    code = (
        "import sys; from kvtop.sources.exposition import Reader; r = Reader()\n"
        "r.read('# TYPE vllm:a counter\\nvllm:a{b=\"c\"} 1\\n')\n"
        "print('prometheus_client' in sys.modules)\n"
        "r.read('{\"vllm:d\"} 4\\n'); print('prometheus_client' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True"]


def test_the_steady_state_costs_at_most_a_quarter_of_the_official_parse(captures: Callable[[str], Path]) -> None:
    folder = captures("vllm-0.32.0")
    texts = [raw(folder / f"{step}.txt") for step in ("05-append4", "06-append5-stream")]
    assert all(text.count("\n") > 700 for text in texts)
    reader = Reader(metrics.wanted)
    last = reader.read(texts[0])

    def ours() -> None:
        nonlocal last
        for text in texts:
            scrape = reader.read(text)
            between(last, scrape, 1.0)
            last = scrape

    def theirs() -> None:
        for text in texts:
            list(text_string_to_metric_families(text))

    ours()
    assert fastest(ours, 20) < 0.25 * fastest(theirs, 3)


def fastest(work: Callable[[], None], times: int) -> float:
    spans = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        spans.append(time.perf_counter() - begin)
    return min(spans)


PIECES = (
    'vllm:a_total{engine="0"} 1',
    'vllm:a_total{engine="0"} 2.5',
    'vllm:a_total{engine="1"} NaN',
    "vllm:b 3",
    "vllm:b 4",
    "vllm:b four",
    "vllm:b 4 1700000000",
    "# TYPE vllm:b gauge",
    "# TYPE vllm:b counter",
    "# HELP vllm:b words",
    "python_info 1",
    "python_info 2",
    "http_requests_total 3",
    'http_requests_total{handler="/sleep",method="POST"} 3',
    "process_start_time_seconds 17",
    "process_start_time_seconds now",
    "",
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.lists(st.sampled_from(PIECES), max_size=6), st.booleans()), max_size=6))
def test_a_reader_that_remembers_the_last_text_reads_the_next_as_a_fresh_one(
    rows: list[tuple[list[str], bool]],
) -> None:
    remembering = Reader()
    for parts, whole in rows:
        text = "\n".join(parts) + ("\n" if whole and parts else "")
        got, wanted = remembering.read(text, 1.0), Reader().read(text, 1.0)
        assert same(dict(got.values), dict(wanted.values))
        assert (got.types, got.truncated, got.has_vllm, got.has_http) == (
            wanted.types, wanted.truncated, wanted.has_vllm, wanted.has_http,
        )  # fmt: skip


def test_a_series_of_texts_reads_as_fresh_ones_do_and_shares_what_did_not_move(
    captures: Callable[[str], Path],
) -> None:
    remembering = Reader(metrics.wanted)
    for text in [raw(path) for path in texts_of(captures("series-0.32.0")) for _ in range(2)]:
        scrape = remembering.read(text)
        assert scrape.values == Reader(metrics.wanted).read(text).values
    again = remembering.read(text)
    assert again.values is scrape.values
