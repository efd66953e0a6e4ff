"""A start, followed: one line that is drawn over itself on a terminal, else a line for each stage that is over."""

from __future__ import annotations

import sys
from typing import Any

from kvtop.cli import stdio
from kvtop.clock import iso
from kvtop.errors import printable
from kvtop.model.starting import about
from kvtop.model.words import exact, lasted, secs
from kvtop.profiles.running import beside, client
from kvtop.profiles.running.client import Step
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.stages import stage_words
from kvtop.profiles.secret import shown
from kvtop.sources.url import authority


class Line:
    """Draws steps on stderr: stdout is for what the command answers."""

    def __init__(self, name: str) -> None:
        self._name = printable(name, 60)
        self._draws = sys.stderr.isatty()
        self._told: set[str] = set()
        self._drawn = False

    def step(self, step: Step) -> None:
        state = step.seen.record
        if state is None:
            return
        for stage in state.stages:
            if stage.ended_at is not None and stage.name not in self._told:
                self._told.add(stage.name)
                self._say(f"  {stage_words(stage, state):<22} {secs(stage.took_s):>9}")
        if self._draws and step.seen.state == "starting":
            stdio.draw(sentence(self._name, step))
            self._drawn = True

    def end(self) -> None:
        """Take the line that was drawn away."""
        if self._drawn:
            stdio.draw("")
            self._drawn = False

    def _say(self, text: str) -> None:
        self.end()
        stdio.tell(text)


def left_words(step: Step) -> str:
    """`about 3 m 30 s left (n=5)`; n is the number of starts that this is read from."""
    if step.left is None:
        return "time left not known" if step.of_starts else "time left not known: no good start yet"
    if step.left.seconds < 0.5:
        return f"longer than usual (n={step.left.of_starts})"
    return f"{about(step.left.seconds)} left (n={step.left.of_starts})"


def sentence(name: str, step: Step) -> str:
    """`coder-30b starts: weights, 9 of 14 shards; 2 m 41 s so far, about 3 m 30 s left (n=5)`."""
    state = step.seen.record
    now = next((stage for stage in (state.stages if state else ()) if stage.ended_at is None), None)
    at = stage_words(now, state) if now is not None and state is not None else "begins"
    return f"{name} starts: {at}; {lasted(step.elapsed_s)} so far, {left_words(step)}"


def _over(seen: Seen) -> bool:
    """Also of one that failed, and cannot be ended."""
    goes_on = seen.record is not None and seen.record.unended is not None and bool(seen.record.why)
    return seen.state not in ("starting", "stopping") or goes_on


def follow(name: str) -> Seen:
    """Follow a start to its end, good or bad. KeyboardInterrupt leaves it running."""
    line = Line(name)
    try:
        for step in client.follow(name, _over):
            line.step(step)
        return step.seen
    finally:
        line.end()


def ready_words(seen: Seen) -> str:
    """`qwen27 is ready after 5 m 52 s: http://127.0.0.1:8000, KV cache 180,224 tokens`."""
    state = seen.record
    assert state is not None
    took = secs(state.ready_at - state.started_at) if state.ready_at is not None else "–"
    tokens = f", KV cache {exact(state.kv_cache_tokens)} tokens" if state.kv_cache_tokens is not None else ""
    lost = f"; {beside.words(gone, len(state.sidecars))}" if (gone := beside.ended(state)) else ""
    return f"{printable(seen.name, 80)} is ready after {took}: http://{authority(state.host, state.port)}{tokens}{lost}"


def document(seen: Seen) -> dict[str, Any]:
    """For --json. What is not known is None."""
    state = seen.record
    known = state if state is not None else Record(name=seen.name)
    there = state is not None
    return {
        "profile": seen.name,
        "state": seen.state,
        "pid": seen.pid,
        "port": known.port if there else None,
        "url": f"http://{authority(known.host, known.port)}" if there else None,
        "since": iso(seen.since),
        "ready_s": known.ready_at - known.started_at if known.ready_at is not None else None,
        "stages": [{"name": stage.name, "took_s": stage.took_s} for stage in known.stages],
        "kv_cache_tokens": known.kv_cache_tokens,
        "block_tokens": known.block_tokens,
        "exit_code": known.exit_code,
        "error": shown(known.why, 600) if known.why and seen.state == "failed" else None,
        "notes": [shown(note, 400) for note in known.notes],
        "log": known.log or None,
    }
