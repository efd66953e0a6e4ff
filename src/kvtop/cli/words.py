"""A look at a server in words: one line for a status bar, or a small table."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.cli.once import Look
from kvtop.model.box import Latency, Quantile, Window
from kvtop.model.words import DASH, bucket, exact, gib, held_by, pct, secs, traffic
from kvtop.readings import State

LINE_CELLS = 60

STATE_WORDS = {
    State.LOADING: "loading",
    State.SLEEPING: "sleeping",
    State.DEAD_ENGINE: "engine dead",
    State.REFUSED: "down (refused)",
    State.TIMEOUT: "no answer",
    State.HTTP_ERROR: "HTTP error",
    State.UNAUTHORIZED: "needs a key",
    State.TLS_ERROR: "TLS error",
    State.DNS_ERROR: "unknown host",
    State.TOO_LARGE: "answer too large",
    State.NOT_VLLM: "not vLLM",
    State.NO_STATS: "no stats",
    State.RESET: "restarted",
}


def line(window: Window, authority: str) -> str:
    """The server in one line of at most LINE_CELLS cells."""
    if not window.state.good:
        return _fit([authority, STATE_WORDS[window.state]])
    engine = window.all
    cached, requests, ttft = engine.cached, engine.requests, engine.latency.ttft
    state = [] if window.state is State.UP else [STATE_WORDS[window.state]]
    if cached.share is None:  # the window saw no prompt
        shares = [f"{_tight(pct(cached.lifetime_share))} since start"]
    else:
        shares = [f"{_tight(pct(cached.share))} cached"]
        shares = [f"{shares[0]} n={ttft.n}", *shares] if ttft.n is not None else shares
    rest = [
        f"{exact(requests.running)} run {exact(requests.waiting)} wait",
        f"TTFT {_middle(ttft)}",
        f"KV {_tight(pct(requests.kv_cache_usage_share))}",
    ]
    lines = [" · ".join([*state, words, *rest]) for words in shares]
    return next((line for line in lines if len(line) <= LINE_CELLS), None) or _fit([*state, shares[-1], *rest])


def _tight(text: str) -> str:
    """A status bar has no room for the space before a unit."""
    return text.replace(" ", "")


def _middle(ttft: Latency) -> str:
    """Its median; of more than one a value inside a bucket that has no room beside it."""
    p50 = ttft.p50
    if p50 is None or (p50.value_s is None and p50.up_to_s is not None):
        return DASH
    if p50.value_s is None:
        return _tight(f">{secs(p50.above_s)}")
    return _tight(secs(p50.value_s) if ttft.n == 1 else f"~{secs(p50.value_s)}")


def _fit(parts: list[str]) -> str:
    # What stands last gives way first.
    while len(parts) > 1 and len(" · ".join(parts)) > LINE_CELLS:
        parts = parts[:-1]
    return " · ".join(parts)[:LINE_CELLS]


def table(look: Look, shown: str | None) -> str:
    """The look as rows of name and value."""
    window, engine = look.window, look.window.all
    head = [shown or "saved texts", str(window.state)]
    if look.facts is not None:
        head += [f"vLLM {look.facts.version or DASH}", *(model.id for model in look.facts.models)]
    rows: list[tuple[str, str]] = [("server", "  ".join(head))]
    if window.detail:
        rows.append(("", window.detail))
    if window.state.good:
        cached, requests = engine.cached, engine.requests
        source = engine.cached.by_source
        rows.append(("window", f"{window.window_s:g} s" if window.window_s is not None else DASH))
        rows.append(
            (
                "cached",
                f"{pct(cached.share)} of {exact(cached.prompt_tokens)} prompt tokens; "
                f"since start {pct(cached.lifetime_share)}",
            )
        )
        tiers = ("device", "host", "disk", "p2p", "external", "computed")
        rows.append(("", "  ".join(f"{name} {exact(getattr(source, name))}" for name in tiers)))
        reason = requests.waiting_by_reason
        rows.append(
            (
                "requests",
                f"{exact(requests.running)} running, {exact(requests.waiting)} waiting "
                f"(capacity {exact(reason.capacity)}, deferred {exact(reason.deferred)})",
            )
        )
        rows.append(
            (
                "",
                f"KV pool {pct(requests.kv_cache_usage_share)}, {exact(requests.preempted)} preempted, "
                f"{exact(requests.finished.total)} finished",
            )
        )
        names = (("TTFT", "ttft"), ("queue",) * 2, ("prefill",) * 2, ("decode",) * 2, ("token gap", "inter_token"))
        rows += [(label, _latency(getattr(engine.latency, name))) for label, name in names]
        speed = engine.throughput
        rows.append(
            (
                "tokens/s",
                f"prompt {exact(speed.prompt_tokens_per_s)}  computed {exact(speed.computed_tokens_per_s)}  "
                f"generated {exact(speed.generation_tokens_per_s)}",
            )
        )
        offload = engine.offload
        if offload.supported:
            rows.append(("offload", f"store {_moved(offload.store_bytes, offload.store_bytes_total)}"))
            rows.append(("", f"load  {_moved(offload.load_bytes, offload.load_bytes_total)}"))
    rows += _machine(look)
    return "\n".join(f"{name:<10}{text}".rstrip() for name, text in rows)


def _moved(now: int | None, total: int | None) -> str:
    return f"{traffic(now)} in the window, {traffic(total)} since start"


def _latency(latency: Latency) -> str:
    if not latency.n:
        return f"{DASH}  n=0" if latency.n == 0 else DASH
    marks = (("p50", latency.p50), ("p95", latency.p95), ("p99", latency.p99))
    quantiles = "  ".join(_quantile(name, value) for name, value in marks if value is not None)
    return f"mean {secs(latency.mean_s)}  {quantiles}  n={latency.n}"


def _quantile(name: str, value: Quantile) -> str:
    return f"{name} {secs(value.value_s)} ({bucket(value.above_s, value.up_to_s, value.value_s)})"


def _machine(look: Look) -> Iterable[tuple[str, str]]:
    if look.gpu is not None:
        if look.gpu.error:
            yield "GPU", look.gpu.error
        for gpu in look.gpu.gpus:
            if gpu.lost:
                yield f"GPU {gpu.index}", f"{gpu.name}: {gpu.lost}"
                continue
            watts = DASH if gpu.power_w is None else f"{gpu.power_w:.0f} W"
            heat = DASH if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
            memory = f"{gib(gpu.memory_used_bytes)} of {gib(gpu.memory_total_bytes)}"
            why = f", held back by {', '.join(gpu.throttle)}" if gpu.throttle else ""
            yield f"GPU {gpu.index}", f"{gpu.name}  {pct(gpu.util_share)}  {memory}  {watts}  {heat}{why}"
    host = look.host
    if host is not None and host.error:
        yield "host", host.error
    elif host is not None:
        free = f"{gib(host.memory_available_bytes)} of {gib(host.memory_total_bytes)} available"
        yield "host", f"{free}; /dev/shm {gib(host.shm_used_bytes)} of {gib(host.shm_total_bytes)} used"
        for tier in host.offload_files:
            yield "tier file", f"{tier.path}  {gib(tier.bytes)}, {held_by(tier)}"
