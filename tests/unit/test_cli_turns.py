"""`kvtop turns --from-metrics`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from metrics_texts import raw, texts_of

from kvtop.cli.main import main


def test_json_newest_first(captures: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns", "--from-metrics", str(captures("series-0.32.0")), "--json"]) == 0
    out = capsys.readouterr()
    rows = json.loads(out.out)
    assert [row["id"] for row in rows] == list(range(15, 0, -1))
    assert [row["n"] for row in rows if row["n"] > 1] == [3, 2, 2, 3]
    first = rows[-1]
    assert (first["prompt_tokens"], first["cached_tokens"], first["new_tokens"], first["source"]) == (
        1412,
        0,
        1412,
        "metrics",
    )
    assert (first["started_at"], first["inter_token_p50_s"]) == (None, None)
    assert out.err == ""


def test_table(captures: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns", "--from-metrics", str(captures("series-0.32.0"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 16
    assert lines[0].split()[:5] == ["turn", "n", "prompt", "cached", "new"]
    assert lines[-1].split()[:4] == ["1", "1", "1,412", "0"]
    assert {line.split()[-1] for line in lines[1:]} == {"ok", "queued"}, "in words, not by the keys of the JSON"


def test_a_bad_file_among_good_ones_is_named_and_skipped(
    captures: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for i, path in enumerate(texts_of(captures("series-0.32.0"))[3:10]):
        (tmp_path / f"{i}0.txt.gz").write_bytes(gzip.compress(raw(path).encode()))
    (tmp_path / "11.txt").write_text("<html>\n")
    (tmp_path / "12.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "13.txt").write_bytes(b"\xff\xfe\x00vllm:\n")
    (tmp_path / "14.txt").mkdir()
    (tmp_path / "15\x1b[2J.txt").write_text("# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tok")
    (tmp_path / "16.txt.gz").write_bytes(gzip.compress(b"vllm:x 1\n")[:-12])
    (tmp_path / "notes.md").write_text("not read")
    assert main(["turns", "--from-metrics", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr()
    assert [row["prompt_tokens"] for row in json.loads(out.out)] == [2110, 1710, 1412]
    skipped = out.err.splitlines()
    assert len(skipped) == 6 and all(line.startswith("kvtop: skipped '1") for line in skipped)
    assert "\x1b" not in out.err


@pytest.mark.parametrize("case", ["absent", "file", "empty"])
def test_wrong_use_is_one_line_and_exit_code_2(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").mkdir()
    where = {
        "absent": [str(tmp_path / "c\x1b[2J")],
        "file": [str(tmp_path / "a")],
        "empty": [str(tmp_path / "b")],
    }
    assert main(["turns", "--from-metrics", *where[case]]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert len(out.err.splitlines()) in (1, 2) and out.err.startswith("kvtop: ")
    assert "\x1b" not in out.err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["turns", "--help"])
    assert stop.value.code == 0
    assert "--from-metrics" in capsys.readouterr().out
