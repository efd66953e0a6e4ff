"""`systemctl` and `journalctl` of a few lines, in one file under both names: one unit whose program runs for real.
Their words, exit codes and outputs are those of systemd 252."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FAKE_SYSTEMD"])
UNIT = "vllm.service"


def read(name: str) -> str:
    file = STATE / name
    return file.read_text() if file.exists() else ""


def start() -> None:
    if read("refuse"):
        print(
            f"Job for {UNIT} failed because the control process exited with error code.\n"
            f'See "systemctl status {UNIT}" and "journalctl -xeu {UNIT}" for details.',
            file=sys.stderr,
        )
        sys.exit(1)
    for name in ("code", "pid"):
        (STATE / name).unlink(missing_ok=True)
    code = (
        "import subprocess,sys\n"
        "c=subprocess.Popen(sys.argv[2:],stdout=open(sys.argv[1]+'/journal','ab'),stderr=subprocess.STDOUT,stdin=subprocess.DEVNULL)\n"
        "open(sys.argv[1]+'/pid','w').write(str(c.pid))\n"
        "open(sys.argv[1]+'/code','w').write(str(c.wait()))\n"
    )
    subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            str(STATE),
            sys.executable,
            os.environ["FAKE_IMAGE"],
            "serve",
            "--port",
            os.environ["FAKE_PORT"],
        ],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not read("pid"):
        time.sleep(0.005)


def show() -> None:
    ended, pid = read("code"), read("pid")
    running = bool(pid) and not ended
    bad = ended not in ("", "0")
    signalled = ended.startswith("-")
    rows = {
        "LoadState": "loaded",
        "ActiveState": "active" if running else "failed" if bad else "inactive",
        "SubState": "running" if running else "failed" if bad else "dead",
        "Result": "success" if not bad else "signal" if signalled else "exit-code",
        "MainPID": pid if running else "0",
        "ExecMainCode": "0" if running else "2" if signalled else "1",
        "ExecMainStatus": "0" if running else str(abs(int(ended or 0))),
    }
    wanted = sys.argv[-1].removeprefix("--property=").split(",")
    for name in wanted:
        print(f"{name}={rows[name]}")


def stop() -> None:
    if read("pid") and not read("code"):
        os.kill(int(read("pid")), signal.SIGTERM)
        end = time.monotonic() + 2
        while not read("code") and time.monotonic() < end:
            time.sleep(0.02)
        if not read("code"):
            os.kill(int(read("pid")), signal.SIGKILL)
            while not read("code"):
                time.sleep(0.02)


def journal(argv: list[str]) -> None:
    at = 0
    if "-n" in argv and argv[argv.index("-n") + 1] != "all":
        lines = read("journal").splitlines(keepends=True)
        at = sum(len(line.encode()) for line in lines[: max(0, len(lines) - int(argv[argv.index("-n") + 1]))])
    while True:
        data = (STATE / "journal").read_bytes()[at:] if (STATE / "journal").exists() else b""
        at += len(data)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if "-f" not in argv:
            return
        time.sleep(0.02)


def main() -> None:
    program, argv = Path(sys.argv[0]).name, sys.argv[1:]
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps([program, *argv]) + "\n")
    if program == "journalctl":
        journal(argv)
        return
    if read("away"):
        print(
            "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
            "Failed to connect to bus: Host is down",
            file=sys.stderr,
        )
        sys.exit(1)
    words = [word for word in argv if not word.startswith("--")]
    if words[0] in ("start", "stop") and words[1] != UNIT:
        print(f"Failed to {words[0]} {words[1]}: Unit {words[1]} not found.", file=sys.stderr)
        sys.exit(5)
    if words[0] == "stop" and (STATE / "denied").exists():
        print(f"Failed to stop {UNIT}: Interactive authentication required.", file=sys.stderr)
        sys.exit(1)
    {"start": start, "show": show, "stop": stop}[words[0]]()


main()
