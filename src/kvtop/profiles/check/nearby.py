"""What is there under nearly the name of a file or folder that is not. Blocks."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from pathlib import Path

_MOST = 2_000
"""Names of one folder that are looked at."""
_ALIKE = 0.6


def near(place: Path, *, model: bool) -> Path | None:
    """The path that is there, each of its parts as it was asked for or the one that is most alike in its folder; None:
    there is none. `model`: only a folder, or a file of one model (GGUF), can be meant."""
    at = Path(place.anchor)
    parts = place.parts[1:] if place.anchor else place.parts
    try:
        for number, part in enumerate(parts, 1):
            if not (at / part).exists():
                names = [one.name for one in islice(at.iterdir(), _MOST)]
                if model or number < len(parts):
                    names = [name for name in names if (at / name).is_dir() or name.endswith(".gguf")]
                small = {name.lower(): name for name in names}
                alike = get_close_matches(part.lower(), small, 1, _ALIKE)
                if not alike:
                    return None
                part = small[alike[0]]
            at /= part
    except (OSError, ValueError):
        return None
    return at
