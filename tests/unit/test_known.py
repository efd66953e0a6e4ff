"""What one look at a server tells triage of it, on texts of real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from metrics_texts import made, raw, scrape, texts_of

from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured
from kvtop.errors import KvtopError
from kvtop.live.casebooks import Casebooks, Place
from kvtop.model.judge import Thresholds
from kvtop.readings import Scrape, ServerFacts, SourceDown, State, VllmProcess
from kvtop.triage.engine import Layers
from kvtop.triage.known import known, look
from kvtop.triage.seen import Server


@pytest.mark.parametrize(
    ("folder", "server"),
    [
        ("vllm-0.32.0", Server(128, 2_097_152, None, 1, Layers.FULL, False, hash_algorithm="sha256")),
        ("vllm-0.32.0-offload", Server(128, 16_640, None, 1, Layers.FULL, True, hash_algorithm="sha256")),
        ("vllm-0.32.0-tier", Server(128, 16_640, None, 1, Layers.FULL, True, None, True, "sha256")),
        ("vllm-0.32.0-hybrid", Server(288, 3_976_669, None, 1, Layers.HYBRID, False, hash_algorithm="sha256")),
        ("dp2", Server(128, 33_280, None, 2, Layers.FULL, False, hash_algorithm="sha256")),
    ],
)
def test_real_servers(folder: str, server: Server, captures: Callable[[str], Path]) -> None:
    found = known(scrape(raw(texts_of(captures(folder))[-1]), 1.0), None, 900.0)
    assert (found.server, found.rate) == (server, 900.0)
    assert found.engine is not None and found.engine.block == server.unit


def test_a_connector_without_series_of_its_own_shows_in_what_is_asked_of_it() -> None:
    config = 'cache_config_info{engine="0",block_size="16"}'
    queries = 'external_prefix_cache_queries_total{engine="0"}'
    assert known(made({config: 1.0, queries: 0.0}), None, None).server.offload is False
    assert known(made({config: 1.0, queries: 900.0}), None, None).server.offload is True


def test_a_server_that_tells_nothing_is_not_known() -> None:
    assert known(scrape("http_requests_total 3\n"), None, None).server == Server()


class _Looked:
    url = "http://127.0.0.1:8000"

    def __init__(self, scrape: Scrape | SourceDown, facts: ServerFacts | SourceDown) -> None:
        self._scrape, self._facts = scrape, facts

    async def scrape(self) -> Scrape | SourceDown:
        return self._scrape

    async def facts(self) -> ServerFacts | SourceDown:
        return self._facts


async def test_a_look() -> None:
    down = SourceDown(State.REFUSED, "the connection is refused", 0.0)
    text = made({'cache_config_info{engine="0",block_size="16"}': 1.0})
    assert (await look(_Looked(text, ServerFacts(version="0.32.0")), None)).server.version == "0.32.0"
    assert (await look(_Looked(text, down), None)).server.version is None
    with pytest.raises(KvtopError, match=r"127\.0\.0\.1:8000 does not answer: the connection is refused"):
        await look(_Looked(down, down), None)


async def test_the_dashboard_takes_the_size_of_a_tier_from_the_process_too(
    captures: Callable[[str], Path], tmp_path: Path
) -> None:
    read = scrape(raw(texts_of(captures("vllm-0.32.0-offload"))[-1]), 1.0)
    process = VllmProcess(7, "api", port=8000, ports=(8000,), tier_bytes=48 << 30)
    place = Place("http://127.0.0.1:8000", latest=(read, ServerFacts()), rate=900.0)
    books = Casebooks(lambda: None, Thresholds())
    with Store.open(tmp_path / "turns.db", write=True) as store:
        found = await books._known(store, Captured(), replace(place, process=lambda: process))
        assert found.server.tier_bytes == 48 << 30
        assert (await books._known(store, Captured(), place)).server.tier_bytes is None
