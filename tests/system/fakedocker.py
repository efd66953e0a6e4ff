"""A `docker` of a few lines: keeps its containers in a folder, runs their program for real, and writes down how it was
called. Its words, exit codes and outputs are those of docker 28."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FAKE_DOCKER"])
VALUED = {
    "--name",
    "--gpus",
    "-e",
    "--env-file",
    "--entrypoint",
    "-p",
    "-v",
    "--shm-size",
    "--format",
    "--type",
    "--since",
    "-n",
    "-t",
    "-f",
    "--profile",
}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def all_containers() -> list[dict]:
    return [json.loads(file.read_text()) for file in STATE.glob("*.json")]


def save(one: dict) -> None:
    fresh = STATE / f".{one['id']}.{os.getpid()}"
    fresh.write_text(json.dumps(one))
    fresh.replace(STATE / f"{one['id']}.json")


def find(name: str) -> dict | None:
    return next((one for one in all_containers() if one["name"] == name or one["id"].startswith(name)), None)


def need(name: str, kind: str = "container") -> dict:
    one = find(name)
    if one is None:
        print(f"Error response from daemon: No such {kind}: {name}", file=sys.stderr)
        sys.exit(1)
    return one


def make(name: str, command: list[str], ports: list[str], env: dict[str, str]) -> str:
    id = hashlib.sha256(f"{name}{time.time_ns()}".encode()).hexdigest()
    env["HOSTNAME"] = id[:12]
    # what runs the container: keeps its exit code when it ends
    code = (
        "import subprocess, sys, signal\n"
        "signal.signal(2, signal.SIG_IGN)\n"
        "log = open(sys.argv[1] + '.log', 'ab')\n"
        "c = subprocess.Popen(sys.argv[2:], stdout=log, stderr=log, stdin=subprocess.DEVNULL)\n"
        "open(sys.argv[1]+'.pid','w').write(str(c.pid))\n"
        "r=c.wait()\n"
        "open(sys.argv[1]+'.code','w').write(str(r if r>=0 else 128-r))\n"
    )
    base = str(STATE / id)
    between = os.fork()
    if not between:  # a container is the daemon's, and no descendant of the tool that asks for it
        subprocess.Popen(
            [sys.executable, "-c", code, base, *command],
            env=env,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os._exit(0)
    os.waitpid(between, 0)
    while not Path(f"{base}.pid").exists() or not Path(f"{base}.pid").read_text():
        time.sleep(0.005)
    made = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + ".123456789Z"
    save({"id": id, "name": name, "ports": ports, "made": made})
    return id


def pid_of(one: dict) -> int:
    return int((STATE / f"{one['id']}.pid").read_text())


def code_of(one: dict) -> int | None:
    file = STATE / f"{one['id']}.code"
    return int(file.read_text()) if file.exists() and file.read_text() else None


def words(argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    found: dict[str, list[str]] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        found.setdefault(flag, []).append(rest.pop(0) if flag in VALUED else "")
    return found, rest


def run(argv: list[str]) -> None:
    flags, rest = words(argv)
    name = flags["--name"][0]
    pull = STATE / "pull"
    while pull.exists() and "KVTOP_TEST_PULLED" not in os.environ:  # until the test takes it away
        time.sleep(0.01)
    other = find(name)
    if other is not None:
        print(
            f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use '
            f'by container "{other["id"]}". You have to remove (or rename) that container to be able to reuse '
            "that name.\n\n"
            "Run 'docker run --help' for more information",
            file=sys.stderr,
        )
        sys.exit(125)
    env = dict(os.environ)
    for one in flags.get("-e", []):
        variable, equals, value = one.partition("=")
        if equals:
            env[variable] = value
    if rest[0] == "no/such:image":
        print(
            "Unable to find image 'no/such:image' locally\n"
            "docker: Error response from daemon: pull access denied for no/such, "
            "repository does not exist or may require 'docker login'\n\nRun 'docker run --help' for more information",
            file=sys.stderr,
        )
        sys.exit(125)
    # the image is an interpreter and a program here
    id = make(name, [sys.executable, os.environ["FAKE_IMAGE"], "serve", *rest[1:]], flags.get("-p", []), env)
    if (slow := STATE / "slow").exists():  # the daemon has made it, and its answer is under way
        slow.rename(STATE / "asked")
        time.sleep(600)
    print(id)


def inspect(argv: list[str]) -> None:
    flags, rest = words(argv)
    hangs = STATE / "hangs"
    while hangs.exists():  # until the test takes it away
        hangs.write_text("asked")
        time.sleep(0.02)
    one = find(rest[0])
    if one is None:
        print("[]")
        print(f"Error response from daemon: No such container: {rest[0]}", file=sys.stderr)
        sys.exit(1)
    if flags.get("--format") == ["{{.Id}}"]:
        print(one["id"])
        return
    code, pid = code_of(one), pid_of(one)
    ports = {}
    for published in one["ports"]:
        *host, outer, inner = published.split(":")
        ports[f"{inner}/tcp"] = [{"HostIp": host[0] if host else "0.0.0.0", "HostPort": outer}]
    state = {
        "Status": "running" if code is None else "exited",
        "Running": code is None,
        "Paused": False,
        "Restarting": False,
        "OOMKilled": False,
        "Dead": False,
        "Pid": pid if code is None else 0,
        "ExitCode": code or 0,
        "Error": "",
        "StartedAt": one["made"],
        "FinishedAt": "0001-01-01T00:00:00Z",
    }
    print(
        json.dumps(
            [
                {
                    "Id": one["id"],
                    "Created": one["made"],
                    "Name": f"/{one['name']}",
                    "State": state,
                    "NetworkSettings": {"Ports": ports},
                    "HostConfig": {"NetworkMode": "bridge" if ports else "host"},
                }
            ]
        )
    )


def stop(one: dict, wait: float) -> None:
    if code_of(one) is None:
        os.kill(pid_of(one), signal.SIGTERM)
        end = time.monotonic() + wait
        while code_of(one) is None and time.monotonic() < end:
            time.sleep(0.02)
        if code_of(one) is None:
            os.kill(pid_of(one), signal.SIGKILL)
            while code_of(one) is None:
                time.sleep(0.02)


def logs(one: dict, follow: bool, lines: str) -> None:
    file = STATE / f"{one['id']}.log"
    at = 0
    if lines != "all":
        text = file.read_bytes().splitlines(keepends=True)
        at = sum(map(len, text[: max(0, len(text) - int(lines))]))
    while True:
        over = code_of(one) is not None or not follow
        with file.open("rb") as log:
            log.seek(at)
            data = log.read()
        at += len(data)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if over and not data:
            return
        time.sleep(0.02)


def compose(argv: list[str]) -> None:
    _, rest = words(argv)
    job, (more, services) = rest[0], words(rest[1:]) if rest[0] != "logs" else split_logs(rest[1:])
    name = f"proj-{services[0]}-1"
    one = find(name)
    if job == "up":
        if services[0] == "nope":
            print("no such service: nope", file=sys.stderr)
            sys.exit(1)
        for old in all_containers():
            if old["name"] == name and code_of(old) is not None:
                remove(old)
        port = os.environ["FAKE_PORT"]
        make(
            name,
            [sys.executable, os.environ["FAKE_IMAGE"], "serve", "--port", port],
            [f"{port}:{port}"],
            dict(os.environ),
        )
        print(f" Container {name}  Started", file=sys.stderr)
    elif job == "ps" and one is not None:
        print(one["id"])
    elif job == "stop" and one is not None:
        stop(one, float(more["-t"][0]))
    elif job == "logs" and one is not None:
        logs(one, "-f" in more, more.get("-n", ["all"])[0])


def split_logs(argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """-f has no value behind `logs`."""
    found: dict[str, list[str]] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        found.setdefault(flag, []).append(rest.pop(0) if flag in ("--since", "-n") else "")
    return found, rest


def remove(one: dict) -> None:
    for file in STATE.glob(f"{one['id']}.*"):
        file.unlink()


def main() -> None:
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\n")
    job, rest = sys.argv[1], sys.argv[2:]
    if job == "run":
        run(rest)
    elif job == "inspect":
        inspect(rest)
    elif job == "stop":
        one = need(rest[2])
        stop(one, float(rest[1]))
        if (STATE / "rm").exists():  # docker run --rm
            remove(one)
        print(rest[2])
    elif job == "rm":
        one = need(rest[0])
        if code_of(one) is None:
            print(
                f'Error response from daemon: cannot remove container "/{one["name"]}": container is running: stop the '
                "container before removing or force remove",
                file=sys.stderr,
            )
            sys.exit(1)
        remove(one)
        print(rest[0])
    elif job == "logs":
        flags, names = split_logs(rest)
        logs(need(names[0]), "-f" in flags, flags.get("-n", ["all"])[0])
    elif job == "compose":
        compose(rest)


main()
