"""Run the program in tmux, press its export key, and render what it exported. Called by scripts/pictures."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(ROOT / "tests" / "system"), str(ROOT / "tests" / "vllm")]

from tmuxpane import Pane  # noqa: E402

RENDER = """
import io, sys, PIL.Image, resvg_py
svg, png, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
font = "DejaVu Sans Mono"
drawn = bytes(resvg_py.svg_to_bytes(svg_path=svg, width=width, font_family=font, monospace_family=font))
picture = PIL.Image.open(io.BytesIO(drawn)).convert("RGB").quantize(192, dither=PIL.Image.Dither.NONE)
picture.save(png, optimize=True)
"""

XDG = {f"XDG_{name}_HOME": "" for name in ("CONFIG", "DATA", "STATE")}
"""Unset, so that what is shown of paths begins with the home of whoever looks."""

Step = Callable[[Pane], object]
Prepare = Callable[[Path], object]


def export(folder: Path, pane: Pane) -> Path:
    """Press `e` and wait for the picture of the screen."""
    pane.keys("e")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = list(folder.glob("kvtop-*.svg"))
        if found and found[0].read_text().rstrip().endswith("</svg>"):
            return found[0]
        time.sleep(0.1)
    raise TimeoutError(f"no export: {pane.screen()}")


def picture(
    tools: str,
    name: str,
    size: tuple[int, int],
    arguments: Sequence[str],
    *steps: Step,
    prepare: Prepare | None = None,
    end: Step | None = None,
) -> None:
    """docs/NAME.png: the program started with `arguments`, after `steps`; `prepare` fills its home before, `end` leaves
    nothing running."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        if prepare is not None:
            prepare(home)
        command = ["env", "--chdir", folder, sys.executable, "-m", "kvtop", *arguments]
        with Pane(command, *size, COLORTERM="truecolor", HOME=str(home), KVTOP_HOME="", **XDG) as pane:
            for step in steps:
                step(pane)
            svg = export(Path(folder), pane)
            if end is not None:
                end(pane)
            target = DOCS / f"{name}.png"
            # 1.0 px of the drawing a pixel at 120 columns; smaller screens are drawn larger.
            subprocess.run([tools, "-c", RENDER, svg, target, "1480" if size[0] > 100 else "1184"], check=True)
    print(f"{target.relative_to(ROOT)}  {target.stat().st_size // 1000} kB")


def past_is_told(pane: Pane) -> None:
    pane.wait_until(lambda screen: "· ok" in screen and "DEMO" in screen, "turns")
    time.sleep(5)


def one_broke(pane: Pane) -> None:
    """A turn whose prefix broke is there, told why; it is sought, and opened."""
    pane.wait_until(lambda screen: "broke" in screen and "SLOW" in screen, "a slow turn", 180)
    pane.keys("/")
    pane.keys("-l", "broke slow")
    pane.keys("Enter")
    pane.wait_until(lambda screen: "· ok" not in screen and "× " in screen, "the turns that broke", 60)
    pane.keys("Enter")
    pane.wait_until(lambda screen: "Causes" in screen, "the turn's page", 60)
    time.sleep(2)


def press(*keys: str) -> Step:
    def step(pane: Pane) -> None:
        pane.keys(*keys)
        time.sleep(2)

    return step


STAND_IN = """
model = "{model}"
names = ["tiny"]
host = "127.0.0.1"
port = {port}
args = {args}
[venv]
command = ["{python}", "{program}", "serve"]
[env.set]
STANDIN_LOG = "{log}"
STANDIN_PACE_S = "{pace}"
"""
"""A profile whose server prints the log of a recorded start of a real vLLM, at a pace."""


def profiles_of_stand_ins(home: Path) -> None:
    program = home / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text((ROOT / "tests" / "system" / "servestandin.py").read_text())
    folder = home / ".config" / "kvtop" / "profiles"
    folder.mkdir(parents=True)
    log = ROOT / "tests" / "fixtures" / "profile-logs" / "good-0.32.txt"
    flags = ["--enable-prompt-tokens-details"]
    for name, model, port, args in (
        ("coder-30b-tier", "Qwen3-Coder-30B", 18871, [*flags, "--kv-offloading-size", "2"]),
        ("qwen27-2x3090", "Qwen3.8-27B-FP8", 18872, flags),
        ("qwen27-large-tier", "Qwen3.8-27B-FP8", 18873, ["--kv-offloading-size", "4096"]),
    ):
        weights = home / "models" / model
        weights.mkdir(parents=True, exist_ok=True)
        said = {"model": weights, "port": port, "args": json.dumps(args), "pace": 14 if port == 18871 else 4}
        text = STAND_IN.format(**said, python=sys.executable, program=program, log=log)
        (folder / f"{name}.toml").write_text(f"[serve]{text}")
    (folder / "gpt-oss-20b.toml").write_text(
        'runner = "docker"\n[docker]\nimage = "vllm/vllm-openai:v0.32.0"\noptions = ["-p", "127.0.0.1:8000:8000"]\n'
        '[serve]\nmodel = "openai/gpt-oss-20b"\n'
    )
    (folder / "old-box.toml").write_text('[serve]\nmodel "x"\n')


def start(pane: Pane, wanted: str) -> None:
    """Start the chosen profile; where a warning asks, yes."""
    pane.keys("Enter")
    screen = pane.wait_until(lambda screen: wanted in screen or "y yes" in screen, wanted, 90)
    if wanted not in screen:
        pane.keys("y")
        pane.wait_for(wanted, timeout_s=90)


def one_starts(pane: Pane) -> None:
    """A profile was started before, the second starts now; the cursor is on one that would not start."""
    pane.wait_until(lambda screen: "p profiles" in screen, "the dashboard", 60)
    pane.keys("p")
    pane.wait_until(lambda screen: "coder-30b-tier" in screen and "ready to start" in screen, "the profiles", 60)
    start(pane, "coder-30b-tier runs for")
    stop_it(pane)
    start(pane, "coder-30b-tier starts, about")
    pane.keys("End")
    pane.wait_until(lambda screen: "▸○ qwen27-large-tier" in screen and "shm_too_small" in screen, "a check", 60)
    pane.wait_until(lambda screen: "· process up" in screen, "a stage that is over", 60)


def stop_it(pane: Pane) -> None:
    pane.keys("Home")
    pane.keys("x")
    pane.wait_until(lambda screen: "y yes" in screen, "a question", 60)
    pane.keys("y")
    pane.wait_until(lambda screen: "stopped after" in screen, "its end", 60)


def profiles(tools: str) -> None:
    picture(
        tools, "profiles", (120, 36), ["http://127.0.0.1:18871"], one_starts, prepare=profiles_of_stand_ins, end=stop_it
    )


def demo(tools: str) -> None:
    picture(tools, "demo", (120, 36), ["demo"], past_is_told)
    picture(tools, "small", (80, 24), ["demo", "--theme", "kvtop-light"], past_is_told)
    picture(tools, "history", (120, 36), ["demo"], past_is_told, press("h"))
    picture(tools, "turn", (120, 36), ["demo"], past_is_told, one_broke)
    picture(tools, "diff", (120, 36), ["demo"], past_is_told, one_broke, press("d"))


async def traffic(url: str, until: asyncio.Event) -> None:
    """An agent's conversation, and every so often another that pushes it out of the device's cache."""
    from vllm_agent import Agent, Book, Server, opening, tool_turn

    turn = 0
    async with Agent(Server(url, 0)) as agent:
        messages = opening()
        while not until.is_set():
            turn += 1
            messages = messages + tool_turn(turn % 9)
            if len(messages) > 40:
                messages = opening(f"Task {turn}. ")
            await agent.stream(Book(), messages, max_tokens=120)
            if turn % 6 == 0:
                others = (opening(f"Agent {n}. ") + tool_turn(n) + tool_turn(n + 1) for n in range(10))
                await asyncio.gather(*(agent.chat(Book(), other, max_tokens=60) for other in others))
            await asyncio.sleep(1.0)


async def real(tools: str, seconds: float) -> None:
    manage = ROOT / "scripts" / "real-vllm"
    await asyncio.to_thread(subprocess.run, [manage, "start", "offload", "--wait"], check=True)
    try:
        said = await asyncio.to_thread(subprocess.run, [manage, "status", "--json"], capture_output=True, check=True)
        (url,) = (row["url"] for row in json.loads(said.stdout)["servers"] if row["name"] == "offload")
        until = asyncio.Event()
        talking = asyncio.create_task(traffic(url, until))
        watched: Step = lambda pane: time.sleep(seconds)  # noqa: E731
        await asyncio.to_thread(picture, tools, "real", (120, 36), [url, "--window", "1m"], watched)
        until.set()
        await talking
    finally:
        await asyncio.to_thread(subprocess.run, [manage, "stop", "offload"], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="pictures", description="Make docs/*.png from real runs, in tmux.")
    parser.add_argument("tools", help=argparse.SUPPRESS)
    parser.add_argument("--profiles", action="store_true", help="only docs/profiles.png")
    parser.add_argument("--real", action="store_true", help="also docs/real.png, of a real vLLM (scripts/real-vllm)")
    parser.add_argument("--seconds", type=float, default=90.0, help="of traffic before that picture (default 90)")
    arguments = parser.parse_args()
    DOCS.mkdir(exist_ok=True)
    if not arguments.profiles:
        demo(arguments.tools)
    profiles(arguments.tools)
    if arguments.real:
        asyncio.run(real(arguments.tools, arguments.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
