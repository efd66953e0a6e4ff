"""Whether a server's tokens can be those that it read: two witnesses against them, its cache and the texts. Pure."""

from __future__ import annotations

from kvtop.capture.turn import Captured, possible
from kvtop.model.words import exact
from kvtop.triage.differ import Divergence
from kvtop.triage.ids import count
from kvtop.triage.render import render
from kvtop.triage.reuse import Expected
from kvtop.triage.windows import common_head


def doubt(found: Divergence, turn: Captured, expected: Expected | None, unit: int) -> str:
    """Why these tokens are not believed, in words; empty: they may well be right.

    More came from the cache than they have in common with any captured prompt, and the words of the two requests are
    the same for as long as that. Only of tokens that were asked for anew; those that came with an answer are its own.
    """
    cached, common = possible(turn.cached_tokens, turn.prompt_tokens), found.diff.tokens.common
    if found.counted is None or found.diff.method != "server_tokens" or cached is None or common is None:
        return ""
    most = max(common, expected.at_most if expected is not None else 0)
    if cached - most < 2 * unit:
        return ""
    old, new = (render(one.prompt).text for one in found.sent)
    tokens = turn.prompt_tokens or count(found.counted[1].ids)
    if common_head(old, new) * tokens < cached * len(new):  # by as many characters a token as this prompt has
        return ""
    return (
        f"the server's tokens are not believed: by them {exact(common)} tokens are the same, but {exact(cached)} came "
        "from the cache, and the texts agree with that"
    )
