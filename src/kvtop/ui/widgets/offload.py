"""The KV offload tier: what went out to host memory and what came back, and the memory that it stands in."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.model.box import Offload
from kvtop.readings import HostReading, OffloadFile
from kvtop.ui.draw import Line, area, columns, fit, lj, meter, nice, peak, pick, pick_line, rj, safe, width
from kvtop.ui.numbers import DASH, exact, flow, gib, lasted, of_gib, pct, per_hour, per_second, tok, traffic
from kvtop.ui.scene import second_row
from kvtop.ui.widgets.box import BoxPanel


@dataclass(frozen=True, slots=True)
class Way:
    """One direction, in words."""

    now: str
    hour: str
    total: str
    copies: str
    speed: str


def ways(now: Offload, hour: Offload, life: Offload, window_key: str) -> tuple[Way, Way]:
    """(store, load). In blocks, where the connector counts blocks and no bytes."""

    def speed(moved: int | None, seconds: float | None) -> str:
        return per_second(moved / seconds) if moved and seconds else DASH

    def blocks(n: int | None) -> str:
        return DASH if n is None else f"{tok(n)} blk"

    if now.unit == "blocks" or life.unit == "blocks":
        return (
            Way(blocks(now.stores), blocks(hour.stores), blocks(life.stores_total), DASH, DASH),
            Way(blocks(now.loads), blocks(hour.loads), blocks(life.loads_total), DASH, DASH),
        )
    return (
        Way(
            flow(now.store_bytes_per_s, window_key),
            per_hour(hour.store_bytes_per_s),
            traffic(life.store_bytes_total),
            _copies(life.stores_total),
            speed(life.store_bytes, life.store_time_s),
        ),
        Way(
            flow(now.load_bytes_per_s, window_key),
            per_hour(hour.load_bytes_per_s),
            traffic(life.load_bytes_total),
            _copies(life.loads_total),
            speed(life.load_bytes, life.load_time_s),
        ),
    )


def _copies(n: int | None) -> str:
    """In nine cells."""
    return exact(n) if n is None or n < 10_000_000 else tok(n)


def how_old(host: HostReading | None, at: float) -> str:
    """'12 s old' where this machine has told nothing since, else nothing."""
    return f"{lasted(at - host.at)} old" if host is not None and host.error and host.at is not None else ""


def never_read(life: Offload) -> bool:
    """The tier was written since the server's start, and nothing ever came back from it."""
    if life.unit == "blocks":
        return bool(life.stores_total) and life.loads_total == 0
    return bool(life.store_bytes_total) and life.load_bytes_total == 0


def tier_words(
    host: HostReading | None, tier_bytes: int | None, here: bool, by: str = "as the server says"
) -> tuple[list[str], str]:
    """What is known of the tier's memory, longest first, and its tone. `by`: where its size is from."""
    files = host.offload_files if host and here else ()
    left = [f for f in files if f.stale]
    if left:
        size = gib(sum(f.bytes for f in left))
        names = _name(left[0]) if len(left) == 1 else f"{len(left)} files"
        return [f"left over: {names} {size}, no process holds it", f"left over: {size}, held by nobody"], "warn"
    used = [f for f in files if f.mapped_by]
    if used:
        size = gib(sum(f.bytes for f in used))
        pids = sorted({pid for f in used for pid in f.mapped_by})
        holders = f"{len(pids)} process{'es' if len(pids) != 1 else ''}"
        name = "" if all(f.unlinked for f in used) else f"{_name(used[0])} "
        return [
            f"{name}{size}, mapped by {holders}: pid {pids[0]}" + (f" and {len(pids) - 1} more" if pids[1:] else ""),
            f"{name}{size}, mapped by {holders}",
            f"{size}, mapped by {holders}",
            f"{size}, {holders}",
        ], "t"
    if tier_bytes is not None:
        return [f"{gib(tier_bytes)}, {by}", gib(tier_bytes)], "t"
    return [DASH], "t"


def _name(file: OffloadFile) -> str:
    return safe(file.path.rsplit("/", 1)[-1])


class OffloadPanel(BoxPanel):
    NUMBER, NAME, FED_BY_METRICS = 2, "Offload", True

    def depends(self) -> object:
        server, view = self.server, self.scene.view if self.scene else None
        charts = (server.store_chart, server.load_chart) if server else ()
        machine = (view.host, self._here(), how_old(view.host, self.at), self._pcie(), self._tier_by()) if view else ()
        return *self.state(), self._ways(), self._share(), self.life.offload, charts, machine

    def note(self, w: int) -> Line:
        if self.empty and (size := self._tier_bytes()) is not None:
            return [(f"CPU tier {gib(size, 0)}", "d")]
        return super().note(w)

    def context(self, w: int) -> Line:
        if self.life.offload.supported is False or self.now.offload.supported is False:
            return [(pick(["no KV offload on this server", "no KV offload", "none"], w), "d")]
        size = self._tier_bytes()
        tier = [f"CPU tier {gib(size, 0)}", gib(size, 0)] if size is not None else []
        if never_read(self.life.offload):
            say = [
                *(f"{t}, written, never read since start" for t in tier[:1]),
                *(f"{t}, written, never read" for t in tier),
            ]
            return [(pick([*say, "written, never read", "never read"], w), "d")]
        return [(pick([*tier, ""], w), "d")]

    def _tier_by(self) -> str:
        """Where the size of `_tier_bytes` is from."""
        config = self.server.config if self.server else self.now.config
        if config.cpu_tier_bytes is None:
            return "as its command line says"
        return "as the server said" if self.server and not self.server.state.good else "as the server says"

    def _tier_bytes(self) -> int | None:
        config = self.server.config if self.server else self.now.config
        if config.cpu_tier_bytes is not None:
            return config.cpu_tier_bytes
        process = self.scene.process if self.scene else None
        if process is not None and process.tier_bytes is not None:
            return process.tier_bytes
        host = self.scene.view.host if self.scene else None
        files = [f for f in host.offload_files if f.mapped_by] if host and self._here() else []
        return sum(f.bytes for f in files) if files else None

    def _here(self) -> bool:
        return self.scene is not None and self.scene.here

    def body(self, w: int, h: int) -> list[Line]:
        return (self._small if h <= 5 or w < 46 else self._large)(w, h)[:h]

    def _ways(self) -> tuple[Way, Way]:
        key = self.server.window_key if self.server else "5m"
        return ways(self.now.offload, second_row(self.server)[1].offload, self.life.offload, key)

    def _small(self, w: int, h: int) -> list[Line]:
        store, load = self._ways()
        out: list[Line] = [
            [("store ", "store"), *lj(store.now, 11), (" ", "t"), ("load ", "load"), *lj(load.now, 11)],
            *self._chart(w, max(2, h - 3)),
        ]
        if self.empty or store.total == load.total == DASH:
            out.append([("total ", "d"), (DASH, "t")])
        elif self.life.offload.unit == "blocks":
            out.append([("since start ", "d"), (store.total, "t"), (" out, ", "d"), (load.total, "t"), (" back", "d")])
        else:
            out.append(pick_line(_totals(store, load), w))
        host = self.scene.view.host if self.scene else None
        if old := how_old(host, self.at):
            return [*out, [("shm, RAM: ", "d"), (old, "warn")]]
        shm, ram = _shares(host)
        gap = "   " if w >= 37 else " "
        bar = max(3, min(12, (w - 23) // 2))
        out.append(
            [
                ("shm ", "d"), *meter([(shm, "gauge")], bar), *rj(pct(shm), 6),
                (f"{gap}RAM ", "d"), *meter([(ram, "gauge")], bar), *rj(pct(ram), 6),
            ]
        )  # fmt: skip
        return out

    def _large(self, w: int, h: int) -> list[Line]:
        name_w, load_w = (9, 11) if w < 80 else (11, 11)
        left_w = name_w + 10 + load_w + 3
        store, load = self._ways()
        life = self.life.offload
        span = self.server.window_words if self.server else "5 min"

        def row(name: str, a: str, b: str, a_style: str = "t", b_style: str = "t") -> Line:
            return [*lj(name, name_w, "d"), *rj(a, 10, a_style), *rj(b, load_w, b_style)]

        left = [row("", "store", "load", "store", "load")]
        from_start = self.server is not None and self.server.window_key == "start"
        left.append([] if from_start else row(span, store.now, load.now))  # it would be the row below
        left.append(row(second_row(self.server)[0], store.hour, load.hour))
        left.append(row("total", store.total, load.total))
        if life.unit != "blocks":
            left += [row("copies", store.copies, load.copies), row("speed", store.speed, load.speed)]
        left.append(row("failed", "", exact(life.failed)))
        if h >= 12:
            left += [
                row("PCIe now", *self._pcie()),
                row("of prompt", "", self._share()),
            ]
            left += [
                row(f"tier {safe(tier.tier)}", traffic(tier.write_bytes), traffic(tier.read_bytes))
                for tier in life.tiers
            ]
        foot = self._memory(w)
        chart_h = h - len(foot)
        chart = self._chart(w - left_w, chart_h - (1 if h >= 12 else 0))
        out: list[Line] = []
        for i in range(chart_h):
            beside = chart[i] if i < len(chart) else []
            out.append([*fit(left[i] if i < len(left) else [], left_w), *beside])
        return [*out, *foot]

    def _share(self) -> str:
        """Of the prompt tokens of the window, those that came back from the tier."""
        cached = self.now.cached
        source = cached.by_source
        known = [n for n in (source.host, source.disk, source.external) if n is not None]
        return pct(sum(known) / cached.prompt_tokens, 1) if known and cached.prompt_tokens else DASH

    def _pcie(self) -> tuple[str, str]:
        """(GPU to host, host to GPU) of all cards, of now: not where the last reading is old."""
        gpu = self.scene.view.gpu if self.scene else None
        gpu = None if gpu is not None and gpu.error else gpu
        out = [g.pcie_tx_bytes_per_s for g in gpu.gpus if g.pcie_tx_bytes_per_s is not None] if gpu else []
        back = [g.pcie_rx_bytes_per_s for g in gpu.gpus if g.pcie_rx_bytes_per_s is not None] if gpu else []
        return (per_second(sum(out)) if out else DASH, per_second(sum(back)) if back else DASH)

    def _chart(self, w: int, h: int) -> list[Line]:
        """Store up, load down, both on one scale."""
        server = self.server
        up = server.store_chart.values if server else ()
        down = server.load_chart.values if server else ()
        gutter = 9
        cols = max(1, w - gutter)
        top = max(1e6, nice(peak(up, down) or 0.0))
        up_h = (h + 1) // 2 if h > 2 else 1
        down_h = max(1, h - up_h)
        scale = per_second(top).replace(".0 ", " ")
        out: list[Line] = []
        for i, row in enumerate(area(up, cols, up_h, top)):
            out.append([*rj(scale if i == 0 else "", gutter - 1, "d"), (" ", "t"), (row, "store")])
        for i, row in enumerate(area(down, cols, down_h, top, down=True)):
            out.append(
                [*rj(scale if i == down_h - 1 and down_h > 1 else "", gutter - 1, "d"), (" ", "t"), (row, "load")]
            )
        if h >= 6:
            out[up_h - 1][0] = ("store".rjust(gutter - 1), "store")
            out[up_h][0] = ("load".rjust(gutter - 1), "load")
        return out

    def _memory(self, w: int) -> list[Line]:
        """Two rows: shared memory and RAM, and the tier in them. They come from this machine, not from /metrics."""
        host = self.scene.view.host if self.scene else None
        half = (w - 2) // 2
        shm, ram = _shares(host)
        ram_used = None
        if host and host.memory_total_bytes is not None and host.memory_available_bytes is not None:
            ram_used = host.memory_total_bytes - host.memory_available_bytes

        def capacity(name: str, share: float | None, used: float | None, total: float | None) -> Line:
            text = of_gib(used, total)
            bar = max(3, min(18, half - len(name) - 2 - len(text)))
            return [(name + " ", "d"), *meter([(share, "gauge")], bar), (" " + text, "t")]

        names = ("/dev/shm", "host RAM")
        row = columns(
            [
                capacity(names[0], shm, host.shm_used_bytes if host else None, host.shm_total_bytes if host else None),
                capacity(names[1], ram, ram_used, host.memory_total_bytes if host else None),
            ],
            [half, half],
        )
        if host is not None and (old := how_old(host, self.at)):
            said = pick([f"{old}: {safe(host.error or '')}", old], w)
            return [[(text, "d") for text, _ in row], [(said, "warn")]]
        words, tone = tier_words(host, self._tier_bytes(), self._here(), self._tier_by())
        line: Line = [("tier ", "d"), (pick(words, w - 5), tone)]
        extra: list[str] = []
        if host and host.swap_used_bytes:
            extra.append(f"swap {gib(host.swap_used_bytes)}")
        if host and host.pressure is not None and host.pressure >= 0.005:
            extra.append(f"memory pressure {pct(host.pressure)}")
        if extra and width(line) + 2 + len("; ".join(extra)) <= w:
            line.append(("; " + "; ".join(extra), "d"))
        return [row, line]


def _totals(store: Way, load: Way) -> list[Line]:
    """What was moved since the start, longest first."""

    def way(way: Way, copies: str) -> Line:
        return [(way.total, "t"), (" in ", "d"), (way.copies, "t"), (copies, "d")]

    return [
        [*way(store, " stores, "), *way(load, " loads")],
        [*way(store, " out, "), *way(load, " back")],
        [(store.total, "t"), (" out, ", "d"), (load.total, "t"), (" back since start", "d")],
        [(store.total, "t"), (" out, ", "d"), (load.total, "t"), (" back", "d")],
    ]


def _shares(host: HostReading | None) -> tuple[float | None, float | None]:
    """Used shares of /dev/shm and of RAM."""
    if host is None:
        return None, None
    shm = (
        host.shm_used_bytes / host.shm_total_bytes if host.shm_total_bytes and host.shm_used_bytes is not None else None
    )
    ram = None
    if host.memory_total_bytes and host.memory_available_bytes is not None:
        ram = 1 - host.memory_available_bytes / host.memory_total_bytes
    return shm, ram
