"""The table of actions: what can be done, by which key, on which screen. One table for all that speaks of keys."""

from __future__ import annotations

from dataclasses import dataclass

DASHBOARD, TURN, DIFF, REPLAY, RAW, TAP, HISTORY, PROFILES, CHECK, COMMAND, LOG, HELP, NO_SERVER = (
    "dashboard", "turn", "diff", "replay", "raw", "tap", "history", "profiles", "check", "command", "log", "help",
    "no-server",
)  # fmt: skip
SCREENS: dict[str, str] = {
    DASHBOARD: "Dashboard",
    TURN: "Turn",
    DIFF: "Diff",
    REPLAY: "Replay",
    RAW: "Raw bodies",
    TAP: "Tap",
    HISTORY: "History",
    PROFILES: "Profiles",
    CHECK: "Check",
    COMMAND: "Command",
    LOG: "Log",
    HELP: "Help",
    NO_SERVER: "No server",
}
"""Every screen that has keys of its own, and its name in help."""

_EVERY = frozenset(SCREENS)
_DASHBOARD = frozenset({DASHBOARD})
_TURN = frozenset({TURN})
_DIFF = frozenset({DIFF})
_HISTORY = frozenset({HISTORY})
_REPLAY = frozenset({REPLAY})
_PROFILES = frozenset({PROFILES})
_LOG = frozenset({LOG})
_LONG = frozenset({DASHBOARD, TURN, DIFF, REPLAY, RAW, TAP, PROFILES, CHECK, COMMAND, LOG, HELP})


@dataclass(frozen=True)
class Action:
    """Something a user can do."""

    id: str
    """Its name in config.toml, and the id of its bindings."""
    keys: tuple[str, ...]
    """Textual's names, the one shown first."""
    label: str
    """One or two words for the footer."""
    help: str
    """What it does, for help, palette and docs. Neighbours of one text are one line of help."""
    screens: frozenset[str] = _EVERY
    do: str = ""
    """Textual's action string; empty: the id with underscores, on the screen itself."""
    group: str = ""
    """Heading in help."""
    footer: int = 0
    """Place in the queue for footer room: the higher stays longer; 0 is never in the footer."""
    ranks: tuple[tuple[str, int], ...] = ()
    """Another place on some screens."""

    @property
    def action(self) -> str:
        return self.do or self.id.replace("-", "_")


def _panel(number: int, name: str, title: str) -> Action:
    return Action(
        f"panel-{name}",
        (str(number),),
        title,
        f"show or hide {title}",
        frozenset({DASHBOARD}),
        f"panel('{name}')",
        "Panels",
    )


def _cause(n: int) -> Action:
    return Action(f"cause-{n}", (str(n),), f"cause {n}", "to where a cause stands", _DIFF, f"cause({n})", "Diff")


ACTIONS: tuple[Action, ...] = (
    Action("turn", ("enter",), "turn", "open the chosen turn", _DASHBOARD, group="Turns", footer=100),
    Action("diff", ("d",), "diff", "its prompt against the one before it: what differs, why, what it cost",
           _DASHBOARD | _TURN, group="Turns", footer=96),
    Action("replay", ("r",), "replay", "both turns once more, to an idle server: says what it costs, and asks",
           _DASHBOARD | _TURN | _DIFF, group="Turns", footer=59, ranks=((TURN, 78), (DIFF, 63))),
    Action("up", ("up", "k"), "up", "choose a turn or an agent; scrolls text; in history the quantity", group="Turns"),
    Action("down", ("down", "j"), "down", "choose a turn or an agent; scrolls text; in history the quantity",
           group="Turns"),
    Action("page-up", ("pageup",), "page up", "a screenful up or down", _LONG, group="Turns"),
    Action("page-down", ("pagedown",), "page down", "a screenful up or down", _LONG, group="Turns"),
    Action("first", ("home",), "first", "to the top, to the end", _LONG, group="Turns"),
    Action("last", ("end",), "last", "to the top, to the end", _LONG, group="Turns"),
    Action("next-turn", ("n",), "older", "the next older turn, the next newer one", _TURN, group="Turn",
           footer=80),
    Action("previous-turn", ("N",), "newer", "the next older turn, the next newer one", _TURN, group="Turn",
           footer=70),
    Action("copy-fix", ("c",), "copy fix", "what to do about it, to the clipboard", _TURN, group="Turn", footer=72),
    Action("raw", ("v",), "bodies", "request and answer, JSON indented", _TURN, group="Turn", footer=75),
    Action("other-body", ("v", "tab"), "other", "from the request to the answer, and back", frozenset({RAW}),
           group="Turn", footer=80),
    Action("next-change", ("n",), "next change", "the next difference", _DIFF, group="Diff", footer=90),
    Action("side", ("s",), "side or unified", "both prompts beside each other, or in one text", _DIFF, group="Diff",
           footer=85),
    Action("tokens", ("x",), "text or tokens", "text, or each token told apart", _DIFF, group="Diff", footer=80),
    Action("previous-change", ("N",), "previous", "the difference before", _DIFF, group="Diff",
           footer=70),
    *(_cause(n) for n in range(1, 10)),
    Action("fold", ("enter",), "unfold", "open the folds in view; where there is none, fold all again", _DIFF,
           group="Diff", footer=62),
    Action("send", ("y",), "send", "send what is told; where the server was busy look again", _REPLAY, group="Replay",
           footer=98),
    Action("with-fix", ("f",), "fix", "also as it would be without a cause: the next of those that can be repaired",
           _REPLAY, group="Replay", footer=90),
    Action("start-tap", ("s", "enter"), "start", "start a tap to the chosen server", frozenset({TAP}), group="Tap",
           footer=90),
    Action("stop-tap", ("x",), "stop", "end the tap; asks once", frozenset({TAP}), group="Tap", footer=80),
    Action("profiles", ("p",), "profiles", "the servers that kvtop can start, switch and stop",
           frozenset({DASHBOARD, NO_SERVER}), group="Profiles", footer=62, ranks=((NO_SERVER, 92),)),
    Action("start-profile", ("enter",), "start", "start the profile, if check lets it", _PROFILES,
           group="Profiles", footer=98),
    Action("switch-profile", ("s",), "switch", "stop what runs or is in its way, start it; asks", _PROFILES,
           group="Profiles", footer=98),
    Action("stop-profile", ("x",), "stop", "end its server; asks", _PROFILES, group="Profiles", footer=98),
    Action("check-profile", ("c",), "check", "check it again, and show all of it",
           _PROFILES, group="Profiles", footer=97),
    Action("log", ("l",), "log", "the whole log of its server", _PROFILES, group="Profiles", footer=97),
    Action("edit-profile", ("o",), "edit file", "its file in $VISUAL or $EDITOR", _PROFILES, group="Profiles",
           footer=96),
    Action("show-command", ("v",), "command", "what it runs, to the letter", _PROFILES,
           group="Profiles", footer=75),
    Action("import-profile", ("i",), "import", "make one of what starts a server", _PROFILES,
           group="Profiles", footer=70),
    Action("restart-profile", ("R",), "restart", "stop it, start it afresh; asks", _PROFILES,
           group="Profiles", footer=65),
    Action("search-log", ("slash",), "search", "find text, whatever its case", _LOG, group="Log", footer=90),
    Action("next-match", ("n",), "next", "the next line with it, the one before", _LOG, group="Log", footer=85),
    Action("previous-match", ("N",), "previous", "the next line with it, the one before", _LOG, group="Log",
           footer=80),
    Action("all-lines", ("a",), "polls", "with the polls of kvtop and others, or without", _LOG, group="Log",
           footer=5),
    Action("follow-log", ("f",), "follow", "stay at the end as it grows, or stop that", _LOG, group="Log", footer=88),
    Action("left", ("left",), "left", "the beginning of long lines, their end", _LOG, group="Log"),
    Action("right", ("right",), "right", "the beginning of long lines, their end", _LOG, group="Log"),
    Action("shorter", ("left",), "shorter", "a shorter, a longer span of time", _HISTORY, group="History"),
    Action("longer", ("right",), "longer", "a shorter, a longer span of time", _HISTORY, group="History"),
    Action("give-url", ("u",), "give a URL", "watch the server at a URL", frozenset({NO_SERVER}), group="No server",
           footer=90),
    Action("other-url", ("u",), "other URL", "another URL for one that you gave and that never answered", _DASHBOARD,
           group="Everywhere", footer=98),
    Action("demo", ("D",), "demo", "look at a simulated box", frozenset({NO_SERVER}), group="No server", footer=80),
    Action("tap", ("t",), "tap", "the capture tap: what goes through it, start, stop, how to point an agent at it",
           _DASHBOARD, group="Turns", footer=57),
    Action("window", ("w",), "window", "the next window: 10 s, 1 min, 5 min, 1 hour, since start", _DASHBOARD,
           group="Panels", footer=90),
    Action("history", ("h",), "history", "what was: up to 24 hours, full screen", _DASHBOARD, group="Panels",
           footer=50),
    Action("filter", ("slash",), "filter", "show only some turns: slow new>10k cached<50", _DASHBOARD, group="Turns",
           footer=40),
    Action("freeze", ("space",), "freeze",
           "hold the numbers still; reading goes on; another window, server or engine ends it", _DASHBOARD,
           group="Panels", footer=30),
    Action("export", ("e",), "export", "write the screen as SVG and its numbers as JSON", do="app.export",
           group="Everywhere", footer=20),
    _panel(1, "cache", "Cache"),
    _panel(2, "offload", "Offload"),
    _panel(3, "queue", "Queue"),
    _panel(4, "ttft", "TTFT"),
    _panel(5, "gpu", "GPU"),
    _panel(6, "turns", "Turns"),
    Action("next-server", ("tab",), "server", "the next server or engine", _DASHBOARD, group="Panels", footer=55),
    Action("theme", ("T",), "theme", "the next theme", do="app.next_theme", group="Everywhere"),
    Action("palette", ("ctrl+p",), "palette", "everything by name", do="app.command_palette", group="Everywhere"),
    Action("back", ("escape", "backspace"), "back", "go back, close", do="app.back", group="Everywhere"),
    Action("help", ("question_mark",), "help", "keys, signs and what the figures mean", do="app.help",
           group="Everywhere", footer=95),
    Action("quit", ("q", "ctrl+c"), "quit", "leave; vLLM goes on", do="app.quit", group="Everywhere", footer=60),
)  # fmt: skip
"""In the order of footer and help."""

PANELS = tuple(a.id for a in ACTIONS if a.id.startswith("panel-"))
CAUSES = tuple(a.id for a in ACTIONS if a.id.startswith("cause-"))
OF_THE_DIFF = frozenset(a.id for a in ACTIONS if a.group == "Diff")

ALWAYS: dict[str, tuple[str, ...]] = {"back": ("escape",), "quit": ("ctrl+c",)}
"""Keys that stay with their action whatever config.toml says: there is always a way back and a way out."""
