"""Saved texts from files, pipes, and what is neither."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import pytest

from kvtop.cli import saved
from kvtop.cli.main import main
from kvtop.cli.saved import Unreadable, read_text


@pytest.mark.parametrize("data", [b"vllm:a 1\n", gzip.compress(b"vllm:a 1\n")], ids=["plain", "gzip"])
def test_a_pipe_is_read_once(data: bytes, tmp_path: Path) -> None:
    end, start = os.pipe()
    os.write(start, data)
    os.close(start)
    assert read_text(f"/dev/fd/{end}") == "vllm:a 1\n"
    os.close(end)
    os.mkfifo(tmp_path / "named")
    writer = threading.Thread(target=(tmp_path / "named").write_bytes, args=(data,))
    writer.start()
    assert read_text(str(tmp_path / "named")) == "vllm:a 1\n"
    writer.join()


def test_a_pipe_that_nobody_writes_to_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "PATIENCE_S", 0.1)
    os.mkfifo(tmp_path / "named")
    with pytest.raises(Unreadable, match="nobody wrote to it"):
        read_text(str(tmp_path / "named"))
    with pytest.raises(Unreadable, match="no regular file"):
        read_text(str(tmp_path / "named"), files_only=True)


@pytest.mark.parametrize("said", [b"", b"vllm:a 1\n"], ids=["nothing", "a line"])
def test_a_device_that_falls_silent_ends(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "PATIENCE_S", 0.1)
    writer, terminal = os.openpty()
    os.write(writer, said)
    with pytest.raises(Unreadable, match=r"it has no end: within 0\.1 s nobody wrote to it"):
        read_text(os.ttyname(terminal))
    with pytest.raises(Unreadable, match="no regular file"):
        read_text(os.ttyname(terminal), files_only=True)
    os.close(writer)
    os.close(terminal)


def test_a_terminal_that_nobody_opened_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "PATIENCE_S", 0.1)
    with pytest.raises(Unreadable):
        read_text("/dev/ptmx")


def test_a_pipe_may_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "PATIENCE_S", 0.1)
    end, start = os.pipe()
    later = threading.Timer(0.3, lambda: (os.write(start, b"vllm:a 1\n"), os.close(start)))
    later.start()
    assert read_text(f"/dev/fd/{end}") == "vllm:a 1\n"
    later.join()
    os.close(end)


@pytest.mark.parametrize("name", ["", "\0", "/", "/no/such", "/dev/zero"])
def test_what_is_no_text_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "MAX_BYTES", 1000)
    with pytest.raises(Unreadable) as caught:
        read_text(name)
    assert str(caught.value).isprintable()


def test_no_folder_is_not_the_current_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns", "--from-metrics", ""]) == 2
    assert "no folder" in capsys.readouterr().err


def test_a_line_about_saved_texts_has_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("up 1\n")
    assert main(["snapshot", "--from", str(tmp_path / "a"), "--to", str(tmp_path / "a"), "--line"]) == 1
    assert capsys.readouterr().out == "saved texts · not vLLM\n"


GOOD = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"


@pytest.mark.parametrize(
    ("texts", "state", "why"),
    [
        ((b"\x80\x00\xff\n" * 50, GOOD.encode()), "not_vllm", "{a}: the text has no vLLM series"),
        ((b"", GOOD.encode()), "not_vllm", "{a}: the text has no vLLM series"),
        ((GOOD.encode(), b"up 1\n"), "not_vllm", "{b}: the text has no vLLM series"),
        ((b"http_requests_total 1\n", GOOD.encode()), "no_stats", "{a}: engine statistics are off"),
        ((b"http_requests_total 1\n", b"up 1\n"), "not_vllm", "{a}: engine statistics are off"),
        ((GOOD.encode(), GOOD.encode()), "up", ""),
    ],
)
def test_both_texts_have_to_be_of_an_engine(
    texts: tuple[bytes, bytes], state: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(texts[0])
    b.write_bytes(texts[1])
    status = main(["snapshot", "--from", str(a), "--to", str(b), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (status, told["state"]) == (0 if state == "up" else 1, state)
    assert told["detail"].startswith(why.format(a=a, b=b)) and bool(told["detail"]) == bool(why)
    assert (told["requests"]["running"] == 1) == (state == "up")


@pytest.mark.parametrize("arg", ["--bogus=http://u:geheim@h", "--bogus=http://h?k=geheim", "--x=u:ge/heim@h#geheim"])
def test_an_argument_that_is_none_shows_no_secret(arg: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", arg]) == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments" in said and "heim" not in said
