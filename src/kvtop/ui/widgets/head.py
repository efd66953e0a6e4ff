"""The sentence: state chip, what is wrong and why, and what is being watched. Always two rows (three narrow)."""

from __future__ import annotations

from kvtop.model.words import NBSP, nb
from kvtop.ui.draw import Line, cells, pick, safe, spread, width, wrap
from kvtop.ui.numbers import hms, secs
from kvtop.ui.scene import Scene
from kvtop.ui.widgets.box import BoxPanel


class Head(BoxPanel):
    """The first rows of the screen."""

    def depends(self) -> object:
        s = self.scene
        return (s.view.sentence, contexts(s), s.view.demo, s.frozen_at) if s else None

    def all_lines(self, w: int, h: int) -> list[Line]:
        if self.scene is None:
            return []
        sentence = self.scene.view.sentence
        chip: Line = [
            (f"{NBSP}{nb(safe(sentence.chip))}{NBSP}", f"{sentence.tone} rev bold"),
            (" ", "t"),
        ]
        indent = width(chip) if w >= 60 else 0
        wordings = ((sentence.first, sentence.rest), *sentence.shorter)
        made = [self._wrapped(chip, first, rest, w, indent) for first, rest in wordings]
        holding = [rows for rows in made if len(rows) <= h]
        rows = next((rows for rows in holding if not _orphan(rows)), holding[0] if holding else made[-1])
        if h >= 2 and w >= 60:
            rows += [[]] * (2 - len(rows))
            rows[1] = self._with_context(rows[1], w, indent)
        return rows[:h]

    @staticmethod
    def _wrapped(chip: Line, first: str, rest: str, w: int, indent: int) -> list[Line]:
        text: Line = [(safe(first), "bright bold")]
        if rest:
            text += [(" ", "t"), (safe(rest), "t")]
        return wrap(chip + text, w, indent)

    def _with_context(self, row: Line, w: int, indent: int) -> Line:
        assert self.scene is not None
        style = "warn" if self.scene.frozen_at is not None or self.scene.notice else "d"
        words = pick([*contexts(self.scene), ""], w - max(width(row) + 3, indent))
        if not words:
            return row
        if width(row) <= indent and cells(words) + indent <= w and w >= 100:
            return [(" " * indent, "t"), (words, style)]
        return spread(row, [(words, style)], w)


def _orphan(rows: list[Line]) -> bool:
    """A single word stands on the last of several rows."""
    return len(rows) > 1 and " " not in "".join(text for text, _ in rows[-1]).strip()


def contexts(scene: Scene) -> list[str]:
    """What is being watched, longest first."""
    if scene.frozen_at is not None:
        since = hms(scene.frozen_at)
        return [f"frozen since {since}: reading goes on, space shows it", f"frozen since {since}", "frozen"]
    if scene.notice:
        return [safe(scene.notice)]
    server = scene.server
    if server is None:
        return ["DEMO"] if scene.view.demo else []
    demo = ["DEMO"] if scene.view.demo else []
    model = [safe(server.models[0].id)] if server.models else []
    short_model = [name.rsplit("/", 1)[-1] for name in model]
    more = [f"and {len(server.models) - 1} more"] if len(server.models) > 1 else []
    version = [f"vLLM {safe(server.version)}"] if server.version else []
    label = safe(server.label)
    port = [":" + label.rsplit(":", 1)[-1]] if ":" in label and label.rsplit(":", 1)[-1].isdigit() else [label]
    up = [f"up {secs(scene.view.at - server.started_at)}"] if server.started_at and server.state.good else []
    engine = [f"engine {safe(server.engine)}"] if server.engine is not None else []
    wordings = [
        [*demo, *model, *more, *version, label, *engine, *up],
        [*demo, *short_model, *version, label, *engine, *up],
        [*demo, *short_model, *version, label, *engine],
        [*demo, *short_model, *version, *port, *engine],
        [*demo, *short_model, *port, *engine],
        [*demo, *version, *port, *engine],
        [*demo, *port, *engine],
        demo or port,
    ]
    return [" · ".join(parts) for parts in wordings if parts]
