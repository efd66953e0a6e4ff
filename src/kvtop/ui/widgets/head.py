"""The sentence: state chip, what is wrong and why, and what is being watched. Always two rows (three narrow)."""

from __future__ import annotations

from kvtop.ui import headline
from kvtop.ui.draw import Line, clip, safe
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import hms, secs
from kvtop.ui.scene import Scene
from kvtop.ui.widgets.box import BoxPanel

ALONE_FROM = 100
"""From so many cells on, what is watched begins under the sentence where it has a row to itself."""

SHORTEST, LONGEST = 12, 160
"""Cells of a name that is cut."""


class Head(BoxPanel):
    """The first rows of the screen."""

    def __init__(self, keymap: Keymap, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.keymap = keymap

    def depends(self) -> object:
        s = self.scene
        return (s.view.sentence, contexts(s, self.keymap), s.view.demo, s.frozen_at) if s else None

    def all_lines(self, w: int, h: int) -> list[Line]:
        if self.scene is None:
            return []
        sentence = self.scene.view.sentence
        start = headline.indent(sentence, w)
        wordings = ((sentence.first, sentence.rest), *sentence.shorter)
        made = [headline.written(sentence, first, rest, w) for first, rest in wordings]
        holding = [rows for rows in made if len(rows) <= h]
        rows = next((rows for rows in holding if not _orphan(rows)), holding[0] if holding else made[-1])
        if h >= 2 and w >= headline.HANGING:
            rows += [[]] * (2 - len(rows))
            style = "warn" if self.scene.frozen_at is not None or self.scene.notice else "d"
            said = contexts(self.scene, self.keymap)
            rows[1] = headline.beside(rows[1], said, w, start, style=style, alone_from=ALONE_FROM)
        return rows[:h]


def _orphan(rows: list[Line]) -> bool:
    """A single word stands on the last of several rows."""
    return len(rows) > 1 and " " not in "".join(text for text, _ in rows[-1]).strip()


def contexts(scene: Scene, keymap: Keymap) -> list[str]:
    """What is being watched, longest first."""
    if scene.frozen_at is not None:
        since = hms(scene.frozen_at)
        shows = f"reading goes on, {keymap.shown('freeze')} shows it"
        return [f"frozen since {since}: {shows}", f"frozen since {since}", "frozen"]
    if scene.notice:
        return [safe(scene.notice)]
    server = scene.server
    if server is None:
        return ["DEMO"] if scene.view.demo else []
    demo = ["DEMO"] if scene.view.demo else []
    model = [safe(server.models[0].id)] if server.models else []
    model = [f"API key {server.api_key}"] if server.api_key else model
    short_model = [name.rsplit("/", 1)[-1] for name in model]
    more = [f"and {len(server.models) - 1} more"] if len(server.models) > 1 and not server.api_key else []
    version = [f"vLLM {safe(server.version)}"] if server.version else []
    label = safe(server.label)
    port = [":" + label.rsplit(":", 1)[-1]] if ":" in label and label.rsplit(":", 1)[-1].isdigit() else [label]
    age = scene.view.at - server.started_at if server.started_at else None
    known_age = age if age is None or age >= 0 else None  # a clock was set back: nobody knows
    up = [f"up {secs(known_age)}"] if age is not None and server.state.good else []
    engine = [f"engine {safe(server.engine)}"] if server.engine is not None else []
    listens = server.tap.listens if server.tap is not None else ()
    more_taps = f" and {len(listens) - 1} more" if len(listens) > 1 else ""
    tap = [f"tap {safe(listens[0])}{more_taps}"] if listens else []
    tap_port = [f"tap :{safe(listens[0]).rpartition(':')[2]}"] if listens else []
    profile = [f"profile {safe(server.profile)}"] if server.profile else []
    if server.start is not None:
        pid = [f"pid {server.start.pid}"] if server.start.pid is not None else []
        loads = [[*profile, *pid, label], [*profile, *pid], profile, [*port]]
        return [" · ".join(parts) for parts in loads]
    wordings = [
        [*demo, *model, *more, *version, label, *engine, *up, *profile, *tap],
        [*demo, *short_model, *version, label, *engine, *up, *profile, *tap],
        [*demo, *short_model, *version, label, *engine, *up, *tap],
        [*demo, *short_model, *version, label, *engine, *tap_port],
        [*demo, *short_model, *version, *port, *engine, *tap_port],
        [*demo, *short_model, *port, *engine, *tap_port],
        *_clipped(demo, short_model, label, engine),
        [*demo, *version, *port, *engine, *tap_port],
        [*demo, *port, *engine, *tap_port],
        [*demo, *port, *engine],
        demo or port,
        [clip(label, SHORTEST)],
    ]
    return [" · ".join(parts) for parts in wordings if parts]


def _clipped(demo: list[str], model: list[str], label: str, engine: list[str]) -> list[list[str]]:
    """Where a name is longer than any row: as much of it as leaves the server's room."""
    said = [(clip(name, w), clip(label, max(w, SHORTEST))) for name in model for w in range(LONGEST, SHORTEST - 1, -4)]
    return [[*demo, name, place, *engine] for name, place in said if (name, place) != (*model, label)]
