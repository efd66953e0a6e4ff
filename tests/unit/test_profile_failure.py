"""The root cause of a failed start: from the logs of starts that really failed, and from what else is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.profiles.running.failure import ended, root_cause

LOGS = Path(__file__).parents[1] / "fixtures" / "profile-logs"
P = "(EngineCore pid=7) ERROR 11-30 12:00:00 [core.py:1] "

CUT_JSON = "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 2 column 1 (char 59)"
BROKEN = "OSError: It looks like the config file at '/m/broken/config.json' is not a valid JSON file."

REAL = {
    "bad-flag": "unrecognized arguments: --no-such-flag 3",
    "bad-value": "argument --block-size: invalid int value: 'seventeen'",
    "bad-json": "argument --kv-transfer-config: 1 validation error for KVTransferConfig: "
    "Invalid JSON: key must be a string at line 1 column 2",
    "bad-key": "unrecognized arguments: --no-such-key",
    "bad-config": "FileNotFoundError: [Errno 2] No such file or directory: '/srv/run/none.yaml'",
    "bad-model": "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
    "'/srv/models/not-there'. Use `repo_type` argument if needed. (is the model's path right?)",
    "port-in-use": "OSError: [Errno 98] Address already in use (the port is taken: another server listens on it)",
    "no-tokenizer": "IndexError: list index out of range at strategies.py line 155, reply_label_ids, "
    "reading the tokenizer: are its files in the model's folder?",
    "bad-role": "argument --kv-transfer-config: 1 validation error for KVTransferConfig: kv_role: "
    "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'",
    "no-role": "argument --kv-transfer-config: 1 validation error for KVTransferConfig: Please specify kv_role when "
    "kv_connector is set, supported roles are ('kv_producer', 'kv_both', 'kv_consumer')",
    "large-tier": "RuntimeError: Insufficient space in /dev/shm for CPU KV offload shared region in /dev/shm: "
    "104857600 MiB required, 24106 MiB free. Increase /dev/shm (e.g. --shm-size or --ipc=host).",
    "block-size": "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).",
    "no-gpu-for-offload": "Exception: CPU Offloading is currently only supported on CUDA-alike and XPU GPUs",
}


def test_every_log_has_its_cause() -> None:
    assert {file.stem for file in LOGS.glob("*.txt")} - {"good-0.32", "engine-killed"} == set(REAL)


@pytest.mark.parametrize("name", REAL)
def test_the_cause_of_a_real_failure(name: str) -> None:
    assert root_cause((LOGS / f"{name}.txt").read_bytes()) == REAL[name]


def test_a_good_start_has_none() -> None:
    assert root_cause((LOGS / "good-0.32.txt").read_bytes()) == ""


def traceback(*exceptions: str, prefix: str = P, between: str = "direct cause") -> str:
    how = {
        "direct cause": "The above exception was the direct cause of the following exception:",
        "handling": "During handling of the above exception, another exception occurred:",
    }[between]
    blocks = [
        f"{prefix}Traceback (most recent call last):\n"
        f'{prefix}  File "/srv/x.py", line 5, in load\n{prefix}    go()\n{prefix}{one}\n'
        for one in exceptions
    ]
    return f"{prefix}\n{prefix}{how}\n{prefix}\n".join(blocks)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
            + traceback("RuntimeError: Engine core initialization failed. See root cause above."),
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
            "(another program may hold memory of the card: see nvidia-smi)",
        ),
        (traceback("ValueError: first", "RuntimeError: second"), "ValueError: first"),
        (traceback("KeyError: 'x'", "ValueError: no such layer", between="handling"), "ValueError: no such layer"),
        (traceback("AssertionError"), "AssertionError at x.py line 5, load"),
        (traceback(CUT_JSON, BROKEN, between="handling"), BROKEN),
        (traceback(CUT_JSON, BROKEN), BROKEN),
        (
            traceback(CUT_JSON, "OSError: it is no good", BROKEN, "ValueError: Invalid repository ID: '/m/broken'"),
            BROKEN,
        ),
        (traceback("KeyError: 'x'", CUT_JSON, BROKEN, between="handling"), BROKEN),
        (
            traceback(CUT_JSON, "RuntimeError: second"),
            "JSONDecodeError: Expecting ',' delimiter: line 2 column 1 (char 59)",
        ),
        (
            traceback(CUT_JSON) + traceback(BROKEN),
            "JSONDecodeError: Expecting ',' delimiter: line 2 column 1 (char 59)",
        ),
        (traceback("x.TOMLDecodeError: bad /srv/a.toml", "OSError: of /srv"), "TOMLDecodeError: bad /srv/a.toml"),
        (traceback("ValueError: first", BROKEN), "ValueError: first"),
        (
            traceback(
                "ValueError: To serve at least one request, 4.0 GiB KV cache is needed, "
                "which is larger than the available KV cache memory (2.1 GiB)."
            ),
            "ValueError: To serve at least one request, 4.0 GiB KV cache is needed, which is larger than the available "
            "KV cache memory (2.1 GiB).",
        ),
        (
            traceback(
                "RuntimeError: Qwen3ReasoningParser reasoning parser could not locate think start/end tokens in "
                "the tokenizer!"
            ),
            "RuntimeError: Qwen3ReasoningParser reasoning parser could not locate think start/end tokens in the "
            "tokenizer! (are the tokenizer's files in the model's folder, and is it the parser of this model?)",
        ),
        (f"{P}the disk went away\n", "the disk went away"),
        ("bash: vllm: command not found\n", "bash: vllm: command not found"),
        (traceback("ValueError: seen", prefix="(X pid=1) WARNING 11-30 12:00:00 [a.py:1] "), ""),
        ("", ""),
        ("all is well\n", ""),
    ],
)
def test_the_cause(log: str, cause: str) -> None:
    assert root_cause(log.encode()) == cause


def test_tracebacks_of_two_processes_between_each_other() -> None:
    worker = traceback("ValueError: mine", prefix="(Worker pid=1) ERROR 11-30 12:00:00 [a.py:1] ").splitlines()
    engine = traceback("RuntimeError: Worker failed with error 'mine'").splitlines()
    mixed = [line for pair in zip(engine, worker, strict=True) for line in pair]
    assert root_cause("\n".join(mixed).encode()) == "ValueError: mine"


def test_a_chain_between_the_lines_of_another_process() -> None:
    other = traceback("ValueError: other", "OSError: of /srv", prefix="(Worker pid=1) ERROR 11-30 12:00:00 [a.py:1] ")
    mixed = [
        line for pair in zip(traceback(CUT_JSON, BROKEN).splitlines(), other.splitlines(), strict=True) for line in pair
    ]
    assert root_cause("\n".join(mixed).encode()) == BROKEN


def test_secrets_and_control_characters_do_not_come_through() -> None:
    found = root_cause(b"vllm: error: unrecognized arguments: --x\x00 \x1b]0;t\x07 --api-key sk-1234567890\n")
    assert found == "unrecognized arguments: --x\\x00 --api-key ***"


def test_a_crash_is_told_by_its_end_and_not_by_requests_before_it() -> None:
    log = (
        traceback("ValueError: a request's own fault", prefix="(APIServer pid=1) ERROR 11-30 12:00:00 [a.py:1] ")
        + f"{P}EngineCore encountered a fatal error.\n"
        + traceback("RuntimeError: CUDA error: an illegal memory access was encountered")
    )
    assert root_cause(log.encode(), ran=True).startswith("RuntimeError: CUDA error: an illegal memory access")


def test_an_engine_that_was_killed() -> None:
    """kill -9 of the engine of a real server: nobody is left who could say why."""
    log = (LOGS / "engine-killed.txt").read_bytes()
    assert root_cause(log, ran=True) == (
        "engine core exited unexpectedly; starting cleanup (its log does not say why: killed, or out of memory?)"
    )


@pytest.mark.parametrize(
    ("cause", "code", "ran", "said"),
    [
        ("x", 1, False, "x; it ended with exit code 1 before it answered"),
        ("x", 0, True, "x; it ended with exit code 0 though nobody asked for that"),
        ("", 137, True, "it was killed by SIGKILL (out of memory?); its log says no more"),
        ("", 139, False, "it was killed by SIGSEGV before it answered; its log says no more"),
        ("x", None, True, "x; it ended"),
        ("", 255, True, "it was killed by signal 127; its log says no more"),
        (
            "HFError: pass 'x=False' as input.",
            1,
            False,
            "HFError: pass 'x=False' as input; it ended with exit code 1 before it answered",
        ),
        ("it waits...", 1, True, "it waits...; it ended with exit code 1"),
    ],
)
def test_how_it_ended(cause: str, code: int | None, ran: bool, said: str) -> None:
    assert ended(cause, code, ran=ran) == said


PIECES = st.sampled_from(
    [
        *(line + "\n" for line in traceback("ValueError: first", "RuntimeError: second").splitlines()),
        "vllm serve: error: argument --x: 1 validation error for Y\n",
        "  Value error, no [type=value_error]\n",
        "\x1b[31mred\x1b[0m\r",
        "(((((",
        "[" * 200,
    ]
)


@given(st.lists(PIECES | st.text(max_size=40), max_size=30), st.booleans())
def test_it_is_one_line_whatever_the_log(pieces: list[str], ran: bool) -> None:
    found = root_cause("".join(pieces).encode("utf-8", "surrogatepass"), ran=ran)
    assert "\n" not in found and found.isprintable() and len(found) <= 600
