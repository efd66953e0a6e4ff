"""A server's window as others used it: what kvtop's own replays asked is taken out where that can be done exactly.

Prompt tokens and cached tokens add up, so a request that surely lies in the window is taken out of them and of how many
they are. A histogram cannot be taken apart: how many of its observations are kvtop's own is told beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvtop.model.box import BySource, Cached, Window
from kvtop.model.merged import EDGE_S
from kvtop.model.own import OwnRequest
from kvtop.model.own_part import OwnPart
from kvtop.model.view import ServerView


def of_others(view: ServerView, asked: Iterable[OwnRequest]) -> ServerView:
    """The same server; `asked`: what kvtop's replays asked of it. Its charts and its histograms stay."""
    asked = tuple(asked)
    window, part = _without(view.window, view.last_good_at, asked)
    last, part_of_last = view.last_traffic, OwnPart()
    if last is not None:
        last, part_of_last = _without(last, last.at, asked)
    _, of_hour = _without(view.hour, view.last_good_at, asked)
    life = _since_start(view, asked)
    if part == part_of_last == of_hour == OwnPart() and life is view.life:
        return view
    tokens, rate = window.all.cached.cached_tokens, view.savings.prefill_tokens_per_s
    spared = replace(view.savings, tokens=tokens, prefill_s=tokens / rate if tokens is not None and rate else None)
    return replace(
        view, window=window, last_traffic=last, life=life, own=part, own_of_last=part_of_last, own_of_hour=of_hour,
        savings=spared,
    )  # fmt: skip


def _since_start(view: ServerView, asked: tuple[OwnRequest, ...]) -> Window:
    """The lifetime values without those, where the share is one of tokens."""
    life, end, start = view.life, view.last_good_at, view.started_at
    if end is None or start is None or life.all.cached.share != life.all.cached.lifetime_share:
        return life
    found, part = _without(replace(life, window_s=end - start), end, asked)
    if not part.taken:
        return life
    cached = found.all.cached
    return replace(life, all=replace(life.all, cached=replace(cached, lifetime_share=cached.share)))


def _without(window: Window, end: float | None, asked: tuple[OwnRequest, ...]) -> tuple[Window, OwnPart]:
    """The window without those that surely lie in it, and what was taken out of it and what was not."""
    seconds, cached = window.window_s, window.all.cached
    if end is None or seconds is None or cached.prompt_tokens is None:
        return window, OwnPart()
    start = end - seconds
    known = [one for one in asked if one.ended_at is not None]  # one in flight has no first token, and was not counted
    near = [one for one in known if (one.ended_at or 0.0) > start - EDGE_S and one.began_at < end]
    sure = [one for one in near if one.began_at >= start and (one.ended_at or 0.0) <= end - EDGE_S]
    sure = [one for one in sure if one.prompt_tokens is not None and one.cached_tokens is not None]
    rest = _rest(cached, sure)
    if not sure or rest is None:
        return window, OwnPart(left=len(near))
    took = sum((one.ended_at or 0.0) - one.began_at for one in sure)
    part = OwnPart(len(sure), len(near) - len(sure), took)
    return replace(window, all=replace(window.all, cached=rest)), part


def _rest(cached: Cached, asked: list[OwnRequest]) -> Cached | None:
    """What is left of the tokens; None where these cannot all be among them."""
    prompt, hit = (sum(getattr(one, name) or 0 for one in asked) for name in ("prompt_tokens", "cached_tokens"))
    if cached.prompt_tokens is None or cached.cached_tokens is None:
        return None
    prompts, hits = cached.prompt_tokens - prompt, cached.cached_tokens - hit
    sources = _sources(cached.by_source, hit, prompt - hit)
    if prompts < 0 or not 0 <= hits <= prompts or sources is None:
        return None
    share = hits / prompts if prompts else None
    return replace(cached, prompt_tokens=prompts, cached_tokens=hits, share=share, by_source=sources)


def _sources(by: BySource, hit: int, new: int) -> BySource | None:
    """A replay reads again what it has just written: from the device, which is asked first."""
    device = by.device - hit if by.device is not None else None
    computed = by.computed - new if by.computed is not None else None
    if (device or 0) < 0 or (computed or 0) < 0:
        return None
    return replace(by, device=device, computed=computed)
