"""What the first frame waits for, and what it does not."""

from __future__ import annotations

import subprocess
import sys


def test_the_first_frame_does_not_wait_for_the_machine() -> None:
    code = (
        "import sys; import kvtop.cli.dashboard, kvtop.ui.app, kvtop.live.watch, kvtop.live.factories; "
        "import kvtop.sources.vllm; "
        "early = {'psutil', 'pynvml', 'plotext', 'prometheus_client'} & set(sys.modules); "
        "sys.exit(str(early) if early else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
