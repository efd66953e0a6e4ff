"""What in a text is made anew each time: dates, ids, paths of one run, counters. Spans are claimed once, the most
specific kind first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kvtop.triage.kinds import Varies

MOST_CHARS = 50_000
"""Of a longer text nothing is claimed."""


class Span(NamedTuple):
    """A stretch of a text that varies."""

    start: int
    end: int
    what: Varies
    text: str


_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs(?:day)?)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)"
_MONTHS = (
    r"(?:janvier|f[ée]vrier|mars|avril|mai|juin|juillet|ao[ûu]t|septembre|octobre|novembre|d[ée]cembre"
    r"|januar|februar|m[äa]rz|april|juni|juli|august|september|oktober|november|dezember|jänner|januari|februari|maart|mei|augustus"
    r"|enero|febrero|marzo|abril|mayo|junio|julio|agosto|sept?iembre|octubre|noviembre|diciembre"
    r"|gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|dicembre"
    r"|janeiro|fevereiro|março|maio|junho|julho|setembro|outubro|novembro|dezembro"
    r"|января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря"
    r"|stycznia|lutego|marca|kwietnia|maja|czerwca|lipca|sierpnia|września|października|listopada|grudnia"
    r"|січня|лютого|березня|квітня|травня|червня|липня|серпня|вересня|жовтня|листопада|грудня"
    r"|ocak|şubat|mart|nisan|mayıs|haziran|temmuz|ağustos|eylül|ekim|kasım|aralık|tháng\s\d{1,2}"
    r"|يناير|فبراير|مارس|أبريل|مايو|يونيو|يوليو|أغسطس|سبتمبر|أكتوبر|نوفمبر|ديسمبر"
    r"|जनवरी|फ़रवरी|फरवरी|मार्च|अप्रैल|मई|जून|जुलाई|अगस्त|सितंबर|अक्टूबर|नवंबर|दिसंबर"
    r"|มกราคม|กุมภาพันธ์|มีนาคม|เมษายน|พฤษภาคม|มิถุนายน|กรกฎาคม|สิงหาคม|กันยายน|ตุลาคม|พฤศจิกายน|ธันวาคม)"
)
_DAYS = (
    r"(?:lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|montag|dienstag|mittwoch|donnerstag|freitag|samstag"
    r"|sonntag|lunes|martes|mi[ée]rcoles|jueves|viernes|s[áa]bado|domingo|luned[ìi]|marted[ìi]|mercoled[ìi]"
    r"|gioved[ìi]|venerd[ìi]|sabato|domenica|(?:segunda|terça|quarta|quinta|sexta)(?:-feira)?|maandag|dinsdag"
    r"|woensdag|donderdag|vrijdag|zaterdag|zondag|понедельник|вторник|среда|четверг|пятница|суббота|воскресенье"
    r"|понеділок|вівторок|середа|четвер|пʼятниця|п'ятниця|субота|неділя"
    r"|poniedziałek|wtorek|środa|czwartek|piątek|niedziela|pazartesi|salı|çarşamba|perşembe|cuma|cumartesi|pazar)"
)
_DAYS_CJK = r"(?:(?:星期|礼拜|週|周)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일)"
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?"
_HALF = r"(?:\s?[ap]\.?m\.?\b)"

_RULES: tuple[tuple[Varies, str], ...] = (
    (Varies.UUID, r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])"),
    (Varies.TEMP_PATH, r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm)/[^\s\"'`<>|,;:)\]]*[^\s\"'`<>|,;:)\].]"),
    (Varies.TEMP_PATH, r"[a-z]:\\(?:users\\[^\\\s]+\\appdata\\local\\temp|temp|tmp)\\[^\s\"'`<>|,;:)\]]+"),
    (
        Varies.DATE_TIME,
        r"(?<![\d.-])(?:19|20)\d{2}[-/.](?:0?[1-9]|1[0-2])[-/.](?:0?[1-9]|[12]\d|3[01])(?!\d)"
        rf"(?:t(?:[01]\d|2[0-3])(?![\d:])|(?:[t ]|,\s|\s(?:at\s)?){_CLOCK}{_HALF}?"
        r"(?:\s?z\b|\s?(?:utc|gmt)\b|\s?[+-]\d{2}:?\d{2}\b)?)?",
    ),
    (
        Varies.DATE_TIME,
        rf"\b{_DAY},?\s(?:{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?|\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH}\.?),?(?:\s{_CLOCK})?"
        rf"(?:\s\d{{4}}\b)?(?:,?\s(?:at\s)?{_CLOCK}{_HALF}?(?:\s(?:utc|gmt|[a-z]{{3,4}})\b)?)?",
    ),
    (
        Varies.DATE_TIME,
        rf"\b(?:{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?,?\s\d{{4}}|\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH}\.?,?\s\d{{4}})\b"
        rf"(?:,?\s(?:at\s)?{_CLOCK}{_HALF}?(?:\s(?:utc|gmt)\b)?)?",
    ),
    (
        Varies.DATE_TIME,
        r"(?<![\d/.])(?:0?[1-9]|[12]\d|3[01])[/.](?:0?[1-9]|[12]\d|3[01])[/.](?:19|20)\d{2}(?![\d/])"
        rf"(?:,?\s(?:at\s)?{_CLOCK}{_HALF}?)?",
    ),
    (Varies.DATE_TIME, rf"(?<![\d:.]){_CLOCK}{_HALF}(?:\s[a-z]{{2,4}}\b(?![ \w]))?"),
    (
        Varies.DATE_TIME,
        r"(?<![\w:.])(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?![\d:])(?:\s?(?:utc|gmt)\b)?",
    ),
    (Varies.DATE_TIME, r"(?<![\d.])1[6-9]\d{8}(?:\.\d{1,9}|\d{3}|\d{6})?(?!\d|\.\d)"),
    (Varies.DATE_TIME, r"\b(?:19|20)\d{2}-?w(?:[0-4]\d|5[0-3])(?:-?[1-7])?\b"),
    (
        Varies.DATE_TIME,
        rf"(?:\b{_DAYS},?\s(?:(?:der|den|dem|le|el|il)\s)?)?\b\d{{1,2}}(?:er|º|\.)?\s(?:de\s|di\s)?{_MONTHS}\.?"
        rf"(?:\s(?:de\s|del\s|năm\s)?\d{{4}}\b)?(?:\s(?:года|року|г\.|р\.))?(?:,?\s{_DAYS}\b)?",
    ),
    (Varies.DATE_TIME, r"\b(?:[01]?\d|2[0-3])\s?h\s?[0-5]\d\b|(?:[01]?\d|2[0-3])[時点시]\s?[0-5]?\d[分분]"),
    (
        Varies.DATE_TIME,
        r"(?:(?:19|20)\d{2}\s?年\s?)?\d{1,2}\s?月\s?\d{1,2}\s?日|(?:(?:19|20)\d{2}년\s?)?\d{1,2}월\s?\d{1,2}일",
    ),
    (Varies.DATE_TIME, _DAYS_CJK),
    (Varies.DATE_TIME, rf"\b(?<=is )(?:{_DAY})\b"),
    (
        Varies.RANDOM_ID,
        r"\b(?:call|toolu|chatcmpl|cmpl|msg|resp|req|run|sess|session|thread|conv|task|agent|trace|span|fc|rs|ws|job"
        r"|item|srv|evt|tmp)"
        r"[_-](?=[0-9a-z_-]{0,80}\d)[0-9a-z_-]{5,}\b",
    ),
    (
        Varies.RANDOM_ID,  # nanoid, base64url
        r"(?-i:(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])(?=(?:[\w-]*\d){2})[A-Za-z0-9_-]{16,64}(?![\w-]))",
    ),
    (Varies.RANDOM_ID, r"\b01[0-9a-hjkmnp-tv-z]{24}\b"),  # ULID
    (Varies.RANDOM_ID, r"(?<![0-9a-z])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,}(?![0-9a-z])"),
)
_COUNTER = (
    r"(?<![\w.])(?<!\d,)[$~]?\d[\d,]*(?:\.\d+)?\s?(?:%|k\b|m\b)?(?=[^\S\n]{0,20}(?:[a-z]+[^\S\n]{1,20}){0,2}"
    r"(?:tokens?|left|remaining|used|elapsed|turns?|messages?|seconds?|secs?|ms\b|minutes?|steps?|requests?|calls?|usd)\b)",
    r"(?:tokens?|context|usage|budget|cost|turns?|steps?|iterations?|count(?:er)?|remaining|left|used|elapsed|uptime"
    r"|request|attempt|session|message|pid)"
    r"(?:[^\S\n]{1,20}[a-z]+){0,2}[^\S\n]{0,20}(?:[:=#]|is|no\.?)?[^\S\n]{0,20}[$~#]?(?P<n>\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d[\d,]*)?%?)",
)
_PATTERNS = [(what, re.compile(pattern, re.IGNORECASE)) for what, pattern in _RULES]
_COUNTERS = [re.compile(pattern, re.IGNORECASE) for pattern in _COUNTER]


@lru_cache(maxsize=16)
def spans(text: str) -> tuple[Span, ...]:
    """Those of a text, in order, without overlaps."""
    if len(text) > MOST_CHARS:
        return ()
    found: list[Span] = []
    taken = bytearray(len(text))

    def claim(start: int, end: int, what: Varies) -> None:
        if end > start and not any(taken[start:end]):
            taken[start:end] = b"\1" * (end - start)
            found.append(Span(start, end, what, text[start:end]))

    for what, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            claim(match.start(), match.end(), what)
    for counter in _COUNTERS:
        for match in counter.finditer(text):
            claim(*(match.span("n") if "n" in match.groupdict() else match.span()), Varies.COUNTER)
    return tuple(sorted(found))


def skeleton(text: str, kinds: Sequence[Varies] = tuple(Varies)) -> str:
    """The text with a sign in the place of each span: equal for texts that differ in such spans alone."""
    out: list[str] = []
    at = 0
    for span in spans(text):
        if span.what in kinds:
            out += [text[at : span.start], f"\0{span.what.value}\0"]
            at = span.end
    return "".join([*out, text[at:]])


def varying(old: str, new: str) -> tuple[Varies, ...] | None:
    """What varies between two texts of equal skeletons, sorted; None where they differ in more than that."""
    if old == new or skeleton(old) != skeleton(new):
        return None
    ours, theirs = spans(old), spans(new)
    if len(ours) != len(theirs):  # one of them says the very sign that stands for a span
        return None
    return tuple(sorted({one.what for one, other in zip(ours, theirs, strict=True) if one.text != other.text}))


_RANDOM = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?:(?<=[_.-])|^)(?=[0-9a-z]*\d)(?=[0-9a-z]*[a-z])[0-9a-z]{4,}(?=$|[_.-])|(?<!\d)(?!(?:19|20)\d\d(?!\d))\d{4,}",
    re.IGNORECASE,
)


def masked(name: str) -> str:
    """A tool's name without what looks random in it; the name itself where nothing does."""
    return _RANDOM.sub("\0", name)
