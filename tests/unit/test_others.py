"""The window of a server without what kvtop's own replays asked of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvtop.model import sentence
from kvtop.model.box import BySource, Cached, EngineWindow, Latencies, Latency, Window
from kvtop.model.downs import Around
from kvtop.model.others import of_others
from kvtop.model.own import OwnRequest
from kvtop.model.own_part import OwnPart
from kvtop.model.view import Savings, ServerView
from kvtop.readings import State

NOW = 1_000.0
URL = "http://127.0.0.1:8000"
LOW = (OwnRequest("a-cold", URL, 800.0, 810.0, 6_000, 0), OwnRequest("a-warm", URL, 810.1, 810.4, 6_000, 5_984))


def view(prompt: int = 131_021, cached: int = 66_944, n: int = 17, **more: object) -> ServerView:
    tokens = Cached(prompt, cached, cached / prompt, None, BySource(cached, 0, None, None, None, prompt - cached))
    latency = Latencies(ttft=Latency(n, 5.0), prefill=Latency(n, 5.0))
    window = Window(State.UP, at=NOW, window_s=300.0, all=EngineWindow(cached=tokens, latency=latency))
    return ServerView(
        URL, "here", State.UP, last_good_at=NOW, window=window, hour=window, turns=(), watched_since=0.0,
        last_busy_at=NOW, savings=Savings(cached, cached / 1_000, 1_000.0), **more,
    )  # type: ignore[arg-type]  # fmt: skip


def said(one: ServerView) -> str:
    return sentence.make([one], 0, Around(NOW)).text.replace("\u00a0", " ")


def test_what_lies_in_the_window_is_taken_out_of_tokens_and_of_n() -> None:
    made = of_others(view(), LOW)
    cached = made.window.all.cached
    assert (cached.prompt_tokens, cached.cached_tokens) == (119_021, 60_960)
    assert cached.share == 60_960 / 119_021
    assert (cached.by_source.device, cached.by_source.computed) == (60_960, 58_061)
    assert (made.own.taken, made.own.left, made.asked_n) == (2, 0, 15)
    assert made.window.all.latency.ttft.n == 17, "a histogram cannot be taken apart"
    assert (made.savings.tokens, made.savings.prefill_s) == (60_960, 60.96)
    # 17 x 5 s of prefill, of which the replay had 10.3 s at most
    assert said(made) == "51 % cached (n=15 in 5 min): 58,061 of 119,021 prompt tokens read anew"


def test_the_share_since_start_is_that_of_others_too() -> None:
    whole = view().window.all.cached
    lifetime = replace(whole, lifetime_share=whole.share)
    life = Window(State.UP, at=NOW, all=EngineWindow(cached=lifetime))
    made = of_others(view(life=life, started_at=NOW - 900), LOW)
    assert made.life.all.cached.lifetime_share == made.life.all.cached.share == 60_960 / 119_021
    before = of_others(view(life=life, started_at=NOW - 100), LOW)
    assert before.life == life, "the server that they asked was another process"


def test_what_lies_at_an_edge_is_told_and_not_taken_out() -> None:
    for began, ended in ((699.0, 702.0), (995.0, 999.5), (699.5, 699.8)):
        made = of_others(view(), [OwnRequest("a", URL, began, ended, 6_000, 0)])
        assert (made.own.taken, made.own.left) == (0, 1)
        assert made.window == view().window
        assert said(made) == (
            "51 % cached (n=17 in 5 min, with 1 request of kvtop's own replay): "
            "64,077 of 131,021 prompt tokens read anew, 85 s of prefill"
        )


def test_one_that_was_broken_off_or_whose_cached_tokens_are_not_known_is_told() -> None:
    asked = [OwnRequest("a", URL, 800.0, 810.0), OwnRequest("b", URL, 820.0, 830.0, 500, None)]
    assert of_others(view(), asked).own == OwnPart(left=2)


def test_what_is_in_flight_or_of_another_time_is_no_part_of_it() -> None:
    flying, before, after = (
        OwnRequest("a", URL, 900.0),
        OwnRequest("b", URL, 600.0, 690.0, 5_000, 0),
        OwnRequest("c", URL, 1_001.0, 1_002.0, 5_000, 0),
    )
    assert of_others(view(), [flying, before, after]) == view()


def test_more_than_the_window_has_is_not_taken_out_of_it() -> None:
    assert of_others(view(5_000, 0, 1), LOW).own == OwnPart(left=2)
    tiered = view()
    by = replace(tiered.window.all.cached.by_source, device=4_000, host=62_944)
    everything = replace(tiered.window.all, cached=replace(tiered.window.all.cached, by_source=by))
    tiered = replace(tiered, window=replace(tiered.window, all=everything))
    assert of_others(tiered, LOW).own == OwnPart(left=2), "which source it had from is not known"


def test_a_window_of_a_replay_alone_has_no_share() -> None:
    made = of_others(view(12_000, 5_984, 2), LOW)
    assert made.window.all.cached.share is None and made.asked_n == 0
    assert said(made).startswith("no turn in 5 min")


def test_the_last_traffic_is_without_them_too() -> None:
    idle = replace(view(), last_traffic=view().window)
    made = of_others(idle, LOW)
    assert made.last_traffic is not None and made.last_traffic.all.cached.prompt_tokens == 119_021
    assert made.own_of_last.taken == 2


@given(
    st.lists(st.tuples(st.integers(1, 9_000), st.integers(0, 9_000)), max_size=5),
    st.integers(0, 50_000),
    st.integers(0, 50_000),
)
def test_what_is_left_is_what_others_asked(own: list[tuple[int, int]], prompt: int, cached: int) -> None:
    own, cached = [(p, min(p, c)) for p, c in own], min(prompt, cached)
    asked = [OwnRequest(f"a-{n}", URL, 800.0 + n, 800.5 + n, p, c) for n, (p, c) in enumerate(own)]
    whole = prompt + sum(p for p, _ in own)
    if not whole:
        return
    made = of_others(view(whole, cached + sum(c for _, c in own), 5 + len(own)), asked)
    assert (made.window.all.cached.prompt_tokens, made.window.all.cached.cached_tokens) == (prompt, cached)
    assert made.asked_n == 5
