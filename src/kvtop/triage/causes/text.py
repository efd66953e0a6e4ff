"""Causes in any text: headers of a client, times and ids, live status, white space. Run on the differing region."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import partial

from kvtop.capture.api.tags import around
from kvtop.triage.causes.board import Board
from kvtop.triage.changes import Change, What
from kvtop.triage.kinds import Kind, Varies
from kvtop.triage.spans import spans, varying
from kvtop.triage.values import SYSTEM, role

_HEADER = re.compile(r"x-anthropic-billing-header:[^\n]*", re.IGNORECASE)
_STATUS = re.compile(
    r"status|git\b|branch|todo|open[ _]files|open[ _]tabs|diagnostics|environment[_ ]details|workspace[_ ]state|agenda"
    r"|working[ _]tree|running[ _](?:jobs|processes|terminals)|progress|cursor[ _]position"
    r"|recent[ _](?:commits|changes)|current[ _]state"
    r"|zustand|aufgabenliste|fortschritt|(?<![^\W\d_])(?:état|estado|stato|statut|stan)(?![^\W\d_])|tareas|tarefas|tâches"
    r"|состояни|статус|стан\b|задачи|状态|狀態|状況|待办|進捗|상태|할 일|durum|görevler|trạng thái|الحالة|स्थिति",
    re.IGNORECASE,
)
_STATE = re.compile(
    r"(?:^|[ _-])(?:states?|info|now|current(?:ly)?|alerts?|live|active|session|environment|env|context)(?:$|[ _-])",
    re.IGNORECASE,
)
"""Names of tagged blocks that hold a state, or something that stays: what only varies there is volatile text."""
_MEMORY = re.compile(
    r"(?<![a-z])memor(?:y|ies)(?![a-z])|recall|retriev|relevant[ _-]|context[ _](?:docs|items)|knowledge"
    r"|search[ _]results|reference[ _](?:docs|documents|materials?)"
    r"|gedächtnis|erinnerung|wissensbasis|suchergebnis|fundstellen|mémoire|souvenir|résultats de recherche"
    r"|memoria|recuerdo"
    r"|resultados de (?:la )?búsqueda|memória|ricord|risultati della ricerca|памят|воспоминан|найденные|база знаний"
    r"|记忆|記憶|检索|檢索|搜索结果|知识|知識|参考资料|参考文献|参考資料|検索結果|기억|검색 결과|참고 자료|지식"
    r"|bellek|hafıza|arama sonuç|bộ nhớ|kết quả tìm kiếm|tài liệu tham khảo|ذاكرة|نتائج البحث|स्मृति|संदर्भ",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^(?:#{1,6}\s+(?P<mark>.+)|(?P<words>[^\W\d_][^\n:：]{1,60})[:：])\s*$")
_PATH = re.compile(r"(?:~|[A-Za-z]:)?[/\\][\w.@+~-]+(?:[/\\][\w.@+~-]*)*|(?<![\w.@+-])(?:[\w.@+-]+/)+[\w.@+-]+")
_LETTER = re.compile(r"[^\W\d_]")
_WORDS = {
    Varies.DATE_TIME: "a date or time",
    Varies.UUID: "a UUID",
    Varies.RANDOM_ID: "a random id",
    Varies.TEMP_PATH: "a path of this run",
    Varies.COUNTER: "a counter",
}
MOST_CHARS = 20_000
"""Of a longer region nothing is looked for with patterns."""
SAID, MOST_SAID = 60, 400
"""Characters that are told of what was inserted or removed, and those that are looked at for that."""
_AROUND = 160
"""Characters beside a region that are looked at, within its lines."""


def client_header(board: Board) -> None:
    """A client's own header line in the prompt. https://github.com/anthropics/claude-code/issues/68900; the messages
    route of vLLM 0.18 and newer strips it, https://github.com/vllm-project/vllm/pull/36829"""
    changes = [change for change in _texts(board) if _inside_header(change)]
    for group in _by_path(changes):
        board.claim(
            Kind.CLIENT_HEADER,
            group,
            "Claude Code's attribution header stands in the prompt, and changes",
            "set CLAUDE_CODE_ATTRIBUTION_HEADER=0, or strip the line in the proxy",
        )


def unicode_form(board: Board) -> None:
    """The same characters composed or decomposed, or written as escapes."""
    changes = [change for change in _texts(board) if _unescaped(_part(change)[0]) == _unescaped(_part(change)[1])]
    for group in _by_path(changes):
        board.claim(
            Kind.UNICODE_FORM,
            group,
            "the same characters in another Unicode form",
            "normalise the text once (NFC), and send it so on every turn",
        )


def whitespace(board: Board) -> None:
    """White space alone. https://github.com/NousResearch/hermes-agent/pull/7988"""
    changes = [change for change in _texts(board) if _bare(_part(change)[0]) == _bare(_part(change)[1])]
    for group in _by_path(changes):
        board.claim(
            Kind.WHITESPACE,
            group,
            "only white space differs",
            "send back texts as they were, not trimmed or wrapped anew",
        )


def live_status(board: Board) -> None:
    """A block that tells the state of something, under a tag or heading of its own, rewritten between turns.
    https://github.com/anthropics/claude-code/issues/47107, https://github.com/Kilo-Org/kilocode/issues/13336"""
    _in_block(board, Kind.LIVE_STATUS, partial(_is_status, board), "is rewritten between turns", _TAIL)


def memory_text(board: Board) -> None:
    """Recalled or retrieved text before the history. https://github.com/theexperiencecompany/gaia/pull/1025"""
    _in_block(board, Kind.MEMORY_TEXT, lambda name, _: bool(_MEMORY.search(name)), "is recalled anew", _TAIL)


_TAIL = "put it into the newest message, behind what stays"


def volatile_text(board: Board) -> None:
    """Times, ids, paths of a run, counters: equal once each is masked. https://github.com/earendil-works/pi/issues/2013"""
    found: dict[int, tuple[Varies, ...]] = {}
    changes = []
    for change in _texts(board):
        old, new = _lines(change)
        if values := varying(old, new):
            found[change.id] = values
            changes.append(change)
    for group in _by_path(changes):
        kinds = sorted({value for change in group for value in found[change.id]})
        words = " and ".join(_WORDS[value] for value in kinds)
        verb = "changes" if len(kinds) == 1 else "change"
        precision = _precision(group) if Varies.DATE_TIME in kinds else ""
        board.claim(
            Kind.VOLATILE_TEXT,
            group,
            f"{words} in the text {verb}{precision}",
            "put it into the newest message, or write it once for a conversation",
            values=kinds,
        )


def path_changed(board: Board) -> None:
    """Another working folder or file. https://github.com/earendil-works/pi/issues/6621"""
    changes = []
    for change in _texts(board):
        old, new = _lines(change)
        if len(old) + len(new) > MOST_CHARS:
            continue
        around = _PATH.sub("\0", old)
        if not (_PATH.search(old) and _PATH.search(new) and around == _PATH.sub("\0", new)):
            continue
        if varying(old, new) or _in_url(change):
            continue
        if _LETTER.search(around) or not _in_list(change):  # of a list of paths it is the list that was edited
            changes.append(change)
    for group in _by_path(changes):
        board.claim(
            Kind.PATH_CHANGED,
            group,
            "a path in the text is another one",
            "go on with a conversation in the folder where it began",
        )


_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'`<>]+", re.IGNORECASE)


def _in_url(change: Change) -> bool:
    region = change.region
    if region is None:
        return False
    start = max(change.new.rfind("\n", 0, region.new_at) + 1, region.new_at - 2_000)
    return any(m.start() <= region.new_at < m.end() for m in _URL.finditer(change.new, start, region.new_at + 200))


def _in_list(change: Change) -> bool:
    """Whether paths stand in the lines before or behind it, too."""
    region = change.region
    if region is None:
        return False
    before = change.new[: region.new_at].rpartition("\n")[0].rstrip().rpartition("\n")[2]
    behind = change.new[region.new_at + len(region.new) :].partition("\n")[2].lstrip().partition("\n")[0]
    return any(_PATH.fullmatch(line.strip(" -*\t")) for line in (before, behind))


def text_edited(board: Board) -> None:
    """What no rule above explains."""
    for group in _by_path(_texts(board)):
        old, new = "".join(_part(c)[0] for c in group), "".join(_part(c)[1] for c in group)
        done = "inserted" if not old else "removed" if not new else "edited"
        in_message = group[0].message is not None
        whose = role(board.comparison.new.messages[group[0].message or 0]) if in_message else ""
        board.claim(
            Kind.TEXT_EDITED,
            group,
            f"text of {'the system prompt' if whose in SYSTEM else 'an earlier message'} was {done}"
            f"{_said(old or new) if not (old and new) else ''}",
            "leave earlier text as it was sent; say what is new in a new message",
        )


def _said(text: str) -> str:
    """What came or went, and what of it will be another one the next time."""
    told = " ".join(text[:MOST_SAID].split())
    if not told:
        return ""
    kinds = dict.fromkeys(_WORDS[span.what] for span in spans(text[:MOST_CHARS]))
    short = told if len(told) <= SAID else f"{told[:SAID]}…"
    return f": “{short}”" + (f", with {' and '.join(kinds)} that may be another one each time" if kinds else "")


def _texts(board: Board) -> list[Change]:
    """Regions of messages; tools have rules of their own."""
    return [change for change in board.free(What.TEXT) if change.message is not None and change.region is not None]


def _by_path(changes: Iterable[Change]) -> list[list[Change]]:
    groups: dict[object, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.path, []).append(change)
    return list(groups.values())


def _part(change: Change) -> tuple[str, str]:
    region = change.region
    return (region.old, region.new) if region is not None else ("", "")


def _lines(change: Change) -> tuple[str, str]:
    """The region in both texts with what stands beside it in its lines."""
    region = change.region
    if region is None:
        return "", ""

    def around(text: str, at: int, size: int) -> tuple[int, int]:
        start = max(text.rfind("\n", 0, at) + 1, at - _AROUND)
        end = text.find("\n", at + size)
        return start, min(len(text) if end < 0 else end, at + size + _AROUND)

    a, b = around(change.old, region.old_at, len(region.old)), around(change.new, region.new_at, len(region.new))
    return change.old[a[0] : a[1]], change.new[b[0] : b[1]]


def _inside_header(change: Change) -> bool:
    region = change.region
    if region is None or len(region.old) + len(region.new) > MOST_CHARS:
        return False

    def inside(text: str, at: int, part: str) -> bool | None:
        """None: there is nothing of it on this side."""
        words = part.strip()
        if not words:
            return None
        start = at + len(part) - len(part.lstrip())
        line = max(text.rfind("\n", 0, start) + 1, start - MOST_CHARS)
        found = _HEADER.search(text, line, start + len(words))
        return found is not None and found.start() <= start and "\n" not in words

    sides = (inside(change.old, region.old_at, region.old), inside(change.new, region.new_at, region.new))
    return False not in sides and True in sides


def _bare(text: str) -> str:
    return "".join(text.split())


_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def _unescaped(text: str) -> str:
    return unicodedata.normalize("NFC", _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text))


def blocks_of(text: str, at: int) -> list[str]:
    """The names of what a place of a text stands under, the nearest first: label, heading, tagged blocks."""
    names: list[str] = []
    line_start = text.rfind("\n", 0, at) + 1
    label, colon, _ = text[line_start : min(at, line_start + 80)].replace("：", ":").partition(":")
    if colon and len(label) <= 60:
        names.append(label.strip(" -*#\t"))
    paragraph = True
    for line in reversed(text[max(0, line_start - 2_000) : line_start].splitlines()):
        found = _HEADING.match(line.strip())
        # A heading with marks stands over all paragraphs up to the next one.
        if found and (found["mark"] or paragraph):
            names.append((found["mark"] or found["words"]).strip())
            break
        paragraph = paragraph and bool(line.strip())
    return [*names, *around(text, at)]


def _under(text: str, at: int, part: str) -> list[str]:
    """Of a region's words, if it has any there."""
    words = part.lstrip()
    return blocks_of(text, at + len(part) - len(words)) if words else []


def _is_status(board: Board, name: str, change: Change) -> bool:
    varies = bool(varying(*_lines(change)))
    if role(board.comparison.new.messages[change.message or 0]) not in SYSTEM and varies:
        return f"<{name}" in change.new  # a tagged block of a message that was sent before
    tagged = f"<{name}" in change.new or f"<{name}" in change.old
    return bool(_STATUS.search(name)) or (tagged and bool(_STATE.search(name)) and not varies)


def _in_block(board: Board, kind: Kind, fits: Callable[[str, Change], bool], verb: str, fix: str) -> None:
    found: list[Change] = []
    names: dict[int, str] = {}
    values: dict[int, tuple[Varies, ...]] = {}
    for change in _texts(board):
        region = change.region
        if region is None:
            continue
        sides = ((change.new, region.new_at, region.new), (change.old, region.old_at, region.old))
        under = [name for side in sides for name in _under(*side)]
        if name := next((name for name in under if fits(name, change)), ""):
            names[change.id] = name
            values[change.id] = varying(*_lines(change)) or ()
            found.append(change)
    for group in _by_path(found):
        board.claim(
            kind,
            group,
            f"the block “{names[group[0].id]}” {verb}",
            fix,
            values={value for change in group for value in values[change.id]},
        )


def _precision(changes: Iterable[Change]) -> str:
    """To the second, minute or day: the finest that any of the times says that are not the same in both."""
    finest = 0
    for change in changes:
        old, new = _lines(change)
        for one, other in zip(spans(old), spans(new), strict=True):
            if one.what is Varies.DATE_TIME and one.text != other.text:
                finest = max(finest, *(_fineness(text) for text in (one.text, other.text)))
    return (" (to the day)", " (to the minute)", " (to the second)")[finest]


def _fineness(time: str) -> int:
    """2: it tells seconds; 1: minutes; 0: days."""
    if _SINCE_1970.fullmatch(time):
        return 2
    clock = _OCLOCK.search(time)
    return 0 if clock is None else 2 if clock["s"] else 1


_SINCE_1970 = re.compile(r"\d{10,}(?:\.\d+)?")
_OCLOCK = re.compile(r"\d(?::|\s?h\s?|[時点시]\s?)\d{1,2}(?P<s>:\d)?")
EARLY = (client_header, unicode_form, whitespace)
LATE = (path_changed, memory_text, live_status, volatile_text, text_edited)
