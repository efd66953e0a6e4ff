"""The cards of this box, from NVML: a source of its own, with its own age. Utilisation is never judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from kvtop.readings import Gpu, GpuReading
from kvtop.ui.draw import SUPER, Line, clip, fit, meter, pick, rj, safe, width
from kvtop.ui.numbers import DASH, gib, lasted, of_gib, pct, per_second
from kvtop.ui.scene import Scene
from kvtop.ui.widgets.box import BoxPanel

HELD_FOR_S = 10.0
"""A card near its limit is held back every other second: a reason stays so long, so that no title flips."""


def short_name(name: str) -> str:
    """'NVIDIA GeForce RTX 3090' -> 'RTX 3090'."""
    out = safe(name).strip()
    for word in ("NVIDIA ", "GeForce ", "Tesla "):
        out = out.removeprefix(word)
    return out or "GPU"


def names(reading: GpuReading) -> str:
    """'2 × RTX 3090'; different cards one after the other."""
    kinds = Counter(short_name(card.name) for card in reading.gpus)
    return ", ".join(f"{n} × {name}" if n > 1 or len(kinds) == 1 else name for name, n in kinds.items())


def in_words(reading: GpuReading | None) -> str:
    """`2 × RTX 3090, 24 GiB each, 48.0 GiB in use; driver 580.65`, or why there is nothing to say."""
    if reading is None or reading.error or not reading.gpus:
        return safe(reading.error) if reading is not None and reading.error else why_none(reading)[0]
    kinds = Counter((short_name(card.name), card.memory_total_bytes) for card in reading.gpus)
    words = []
    for (name, total), n in kinds.items():
        size = f", {gib(total, 0)}{' each' if n > 1 else ''}" if total else ""
        words.append(f"{f'{n} × ' if n > 1 else ''}{name}{size}")
    used = [card.memory_used_bytes for card in reading.gpus if card.memory_used_bytes is not None]
    state = f", {gib(sum(used))} in use" if len(used) == len(reading.gpus) else ""
    driver = f"; driver {safe(reading.driver)}" if reading.driver else ""
    return " and ".join(words) + state + driver


def memory_share(card: Gpu) -> float | None:
    if card.memory_used_bytes is None or not card.memory_total_bytes:
        return None
    return card.memory_used_bytes / card.memory_total_bytes


def watts(card: Gpu) -> str:
    return DASH if card.power_w is None else f"{card.power_w:.0f} W"


def degrees(card: Gpu) -> str:
    return DASH if card.temperature_c is None else f"{card.temperature_c} °C"


def held_back(reading: GpuReading) -> list[str]:
    """Why clocks are held back, over all cards, longest wording first; empty when nothing does."""
    reasons: dict[str, int] = {}
    for card in reading.gpus:
        for reason in card.throttle:
            reasons[safe(reason)] = reasons.get(safe(reason), 0) + 1
    if not reasons:
        return []
    everyone = len(reading.gpus)
    said = [r if n == everyone else f"{r} ({n} of {everyone})" for r, n in reasons.items()]
    return [", ".join(said), ", ".join(reasons), next(iter(reasons))]


def why_none(reading: GpuReading | None) -> list[str]:
    """Why there are no cards to show, longest first."""
    if reading is None:
        return ["not read yet"]
    if not reading.error:
        return ["no NVIDIA card on this box", "no NVIDIA card"]
    error = safe(reading.error)
    return [f"{error}. Everything else works; kvtop doctor says more", error, "no NVIDIA driver here", "none"]


def how_old(reading: GpuReading | None, at: float) -> str:
    """'12 s old' where the driver has told nothing since, else nothing."""
    if reading is None or not reading.gpus or not reading.error or reading.at is None:
        return ""
    return f"{lasted(at - reading.at)} old"


class GpuPanel(BoxPanel):
    NUMBER, NAME = 5, "GPU"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._held: dict[tuple[int, str], float] = {}
        """(Card, reason) -> when it was last seen; in the order in which they came."""

    def feed(self, scene: Scene) -> None:
        reading = scene.view.gpu
        if reading is not None:
            at = reading.at if reading.at is not None else scene.view.at
            self._held = {key: seen for key, seen in self._held.items() if 0 <= at - seen <= HELD_FOR_S}
            self._held |= {(card.index, reason): at for card in reading.gpus for reason in card.throttle}
        super().feed(scene)

    def depends(self) -> object:
        reading = self._reading()
        if reading is None:
            return None
        return reading.gpus, reading.error, how_old(reading, self.at), self._elsewhere()

    def _elsewhere(self) -> bool:
        """The chosen server does not run on these cards."""
        return self.server is not None and self.scene is not None and not self.scene.here

    def grey(self) -> bool:
        return bool(how_old(self._reading(), self.at))

    def _reading(self) -> GpuReading | None:
        """The newest one, with the reasons that a card was held back for in the last seconds."""
        reading = self.scene.view.gpu if self.scene else None
        if reading is None:
            return None
        reasons = {card.index: tuple(r for i, r in self._held if i == card.index) for card in reading.gpus}
        return replace(reading, gpus=tuple(replace(card, throttle=reasons[card.index]) for card in reading.gpus))

    def note(self, w: int) -> Line:
        reading = self._reading()
        if reading is None or not reading.gpus:
            return []
        if old := how_old(reading, self.at):
            return [(pick([f"{old}: {safe(reading.error or '')}", old], w), "warn")]
        name = names(reading)
        sizes = {g.memory_total_bytes for g in reading.gpus}
        each = f", {gib(sizes.pop(), 0)}" + (" each" if len(reading.gpus) > 1 else "") if len(sizes) == 1 else ""
        here = ", of this box, not of the server's" if self._elsewhere() else ""
        held = [f"{name}, held back: {words}" for words in held_back(reading)]
        options = [f"{name}{here}"] if here else [*held, f"{name}{each}" if not held else name]
        return [(pick([*options, name, f"{len(reading.gpus)} cards", ""], w), "d")]

    def all_lines(self, w: int, h: int) -> list[Line]:
        reading = self._reading()
        if h == 1 or reading is None or not reading.gpus:
            return [self._one_line(reading, w)]
        return super().all_lines(w, h)

    def _one_line(self, reading: GpuReading | None, w: int) -> Line:
        left: Line = [(SUPER[5], "d"), ("GPU ", "t bold")]
        if reading is None or not reading.gpus:
            return [*left, (pick(why_none(reading), w - 5), "d")]
        old = how_old(reading, self.at)
        if old:
            left.append((f"{old}  ", "warn"))
        for i, card in enumerate(reading.gpus):
            part: Line = [(f"{card.index}", "d"), *rj(pct(card.util_share), 6), (" ", "t")]
            part += [(of_gib(card.memory_used_bytes, card.memory_total_bytes), "t"), (f" {degrees(card)}   ", "t")]
            if card.lost:
                part = [(f"{card.index} lost   ", "bad")]
            if old:
                part = [(text, "d") for text, _ in part]
            rest = len(reading.gpus) - i
            if width(left) + width(part) > w and rest:
                return [*left, (pick([f"and {rest} more", f"+{rest}"], max(0, w - width(left))), "d")]
            left += part
        return left

    def body(self, w: int, h: int) -> list[Line]:
        reading = self._reading()
        assert reading is not None
        cards = reading.gpus
        if w >= 74 and h <= len(cards) + 1:
            return _rows(reading, w, h, self._full_row)
        if w >= 60 and h >= 2 * len(cards) + 3:
            return self._tables(reading, w)[:h]
        if h >= 2 * len(cards):
            return self._pairs(reading, w, h)[:h]
        return _rows(reading, w, h, self._short_row)

    def _lost(self, card: Gpu, w: int) -> Line | None:
        if not card.lost:
            return None
        return [(f"{card.index} ", "d"), ("× ", "bad"), (clip(f"lost: {safe(card.lost)}", w - 4), "bad")]

    def _full_row(self, card: Gpu, w: int) -> Line:
        """Everything of a card in one row of at least 74 cells."""
        if lost := self._lost(card, w):
            return lost
        reason = ", ".join(map(safe, card.throttle))
        bars = max(8, min(20, (w - 60) // 2)) if w >= 84 else 8
        line: Line = [
            (f"{card.index} ", "d"), *rj(pct(card.util_share), 5), (" ", "t"),
            *meter([(card.util_share, "gauge")], bars),
            *rj(of_gib(card.memory_used_bytes, card.memory_total_bytes, 1), 14), (" ", "t"),
            *meter([(memory_share(card), "gauge")], bars), *rj(watts(card), 7), *rj(degrees(card), 7), ("  PCIe ", "d"),
            *rj(per_second(_both(card)), 10),
        ]  # fmt: skip
        if reason and width(line) + 2 + len(reason) <= w:
            line.append(("  " + reason, "d"))
        return line

    def _short_row(self, card: Gpu, w: int) -> Line:
        if lost := self._lost(card, w):
            return lost
        line: Line = [(f"{card.index} ", "d"), *rj(pct(card.util_share), 5)]
        bar = w - 36
        if bar >= 3:
            line += [(" ", "t"), *meter([(card.util_share, "gauge")], bar)]
        line += rj(of_gib(card.memory_used_bytes, card.memory_total_bytes, 1), 14)
        return [*line, *rj(watts(card), 7), *rj(degrees(card), 7)] if w >= 35 else line

    def _pairs(self, reading: GpuReading, w: int, h: int) -> list[Line]:
        """Two rows a card: utilisation and memory."""
        bar = max(3, w - 27)
        out: list[Line] = []
        for card in reading.gpus:
            if lost := self._lost(card, w):
                out += [lost, []]
                continue
            share = memory_share(card)
            out.append(
                [
                    (f"{card.index} util ", "d"), *rj(pct(card.util_share), 5), (" ", "t"),
                    *meter([(card.util_share, "gauge")], bar), *rj(watts(card), 7), *rj(degrees(card), 7),
                ]
            )  # fmt: skip
            out.append(
                [
                    ("  mem  ", "d"), *rj(pct(share), 5), (" ", "t"), *meter([(share, "gauge")], bar),
                    *rj(of_gib(card.memory_used_bytes, card.memory_total_bytes, 1), 14),
                ]
            )  # fmt: skip
        if h > len(out):
            rx = [g.pcie_rx_bytes_per_s for g in reading.gpus if g.pcie_rx_bytes_per_s is not None]
            tx = [g.pcie_tx_bytes_per_s for g in reading.gpus if g.pcie_tx_bytes_per_s is not None]
            into, outof = per_second(sum(rx)) if rx else DASH, per_second(sum(tx)) if tx else DASH
            out.append([("PCIe in ", "d"), *rj(into, 10), ("  out ", "d"), *rj(outof, 10)])
        if h > len(out):
            held = held_back(reading)
            out.append([("held back by ", "d"), (pick(held, w - 13) if held else "nothing", "t" if held else "d")])
        return out

    def _tables(self, reading: GpuReading, w: int) -> list[Line]:
        """Two small tables: load and memory, then traffic and what holds the clocks back."""
        bar = max(4, (w - 48) // 2)
        out: list[Line] = [
            [
                ("  ", "d"), *rj("util", 5, "d"), (" " * (bar + 1), "d"), *rj("memory", 15, "d"),
                (" " * (bar + 1), "d"), *rj("power", 12, "d"), *rj("temp", 7, "d"),
            ]
        ]  # fmt: skip
        for card in reading.gpus:
            limit = (
                f"{card.power_w:.0f}/{card.power_limit_w:.0f} W"
                if card.power_w is not None and card.power_limit_w
                else watts(card)
            )
            out.append(
                self._lost(card, w)
                or [
                    (f"{card.index} ", "d"), *rj(pct(card.util_share), 5), (" ", "t"),
                    *meter([(card.util_share, "gauge")], bar),
                    *rj(of_gib(card.memory_used_bytes, card.memory_total_bytes, 1), 15), (" ", "t"),
                    *meter([(memory_share(card), "gauge")], bar), *rj(limit, 12), *rj(degrees(card), 7),
                ]
            )  # fmt: skip
        out += [[], [("  ", "d"), *rj("PCIe in", 11, "d"), *rj("out", 11, "d"), ("   held back by", "d")]]
        for card in reading.gpus:
            reason = ", ".join(map(safe, card.throttle)) or "nothing"
            line: Line = [(f"{card.index} ", "d"), *rj(per_second(card.pcie_rx_bytes_per_s), 11)]
            line += [*rj(per_second(card.pcie_tx_bytes_per_s), 11), ("   ", "t")]
            out.append(fit([*line, (reason, "t" if card.throttle else "d")], w))
        return out


def _rows(reading: GpuReading, w: int, h: int, row: Callable[[Gpu, int], Line]) -> list[Line]:
    """One row a card; where they do not fit, the last row counts the rest."""
    cards = reading.gpus
    if len(cards) <= h:
        return [row(card, w) for card in cards]
    rest = cards[h - 1 :]
    busy = " ".join(pct(card.util_share).removesuffix(" %") for card in rest)
    options = [f"{len(rest)} more: {busy} %", f"{len(rest)} more"]
    return [*(row(card, w) for card in cards[: h - 1]), [(pick(options, w), "d")]]


def _both(card: Gpu) -> float | None:
    """Traffic into the card and out of it together."""
    known = [v for v in (card.pcie_rx_bytes_per_s, card.pcie_tx_bytes_per_s) if v is not None]
    return sum(known) if known else None
