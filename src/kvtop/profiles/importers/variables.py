"""Which variables of a whole environment say something about vLLM, and files of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MATTERS = re.compile(
    r"(?:VLLM|CUDA|CUDNN|CUBLAS|NCCL|NVIDIA|NVTE|PYTORCH|TORCH[A-Z]*|TRITON|INDUCTOR|HF|HUGGING|HUGGINGFACE|TRANSFORMERS"
    r"|TOKENIZERS|SAFETENSORS|OMP|GOMP|KMP|MKL|OPENBLAS|NUMBA|RAY|LMCACHE|FLASHINFER|MOONCAKE|NIXL|UCX|GLOO|XFORMERS|CUTE"
    r"|HIP|HSA|ROCM|ROCR|RCCL|MIOPEN|AITER|ONEAPI|CCL|SYCL|ZE|XLA|TPU|PJRT|OTEL|LD|MALLOC|TCMALLOC)_\w+"
    r"|PYTHON[A-Z]+|GLIBC_TUNABLES"
)
_OF_IMAGES = re.compile(
    r"NVIDIA_(REQUIRE|PRODUCT|BUILD|DRIVER)_\w+|NV_\w+|CUDA_VERSION|(?:NCCL|CUDNN|CUBLAS|TORCH)_VERSION|CUDA_HOME|CUDA_PATH"
)
"""Set by images: there in any case, and of no use in a profile."""
_OF_SESSIONS = re.compile(
    r"PWD|OLDPWD|SHLVL|_|SHELL|TERM|TERM_\w+|COLORTERM|COLUMNS|LINES|LS_COLORS|HOST|HOSTNAME|HOSTTYPE|MACHTYPE|OSTYPE|USER"
    r"|LOGNAME|USERNAME|MAIL|PS\d|EDITOR|VISUAL|PAGER|LESS\w*|WINDOWID|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|DBUS_\w+|XDG_\w+"
    r"|SSH_\w+|TMUX\w*|STY|GPG_\w+|DESKTOP_\w+|GNOME_\w+|GTK_\w+|QT_\w+|KDE_\w+|SYSTEMD_\w+|INVOCATION_ID|JOURNAL_STREAM"
    r"|MANAGERPID|MOTD_SHOWN|PROMPT_COMMAND|HIST\w+|VIRTUAL_ENV_PROMPT|SUDO_\w+"
)
"""Set by a login, a desktop or a shell."""


def matters(name: str, *, image: bool = False) -> bool:
    """Whether a variable of a process is worth a place in a profile. `image`: of a container, where it may come from
    its image."""
    return bool(_MATTERS.fullmatch(name)) and not (image and _OF_IMAGES.fullmatch(name))


def of_session(name: str) -> bool:
    """Whether it says something about who is logged in, and nothing about a program."""
    return bool(_OF_SESSIONS.fullmatch(name))


def of_file(text: str) -> Iterator[tuple[str, str]]:
    """(name, value) of a file of variables, as docker, compose and systemd read them: one a line, quotes taken off. A
    value in quotes may have several lines."""
    lines = iter(text.splitlines())
    for line in lines:
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals:
            continue
        value = value.strip()
        quote = value[:1] if value[:1] in ("'", '"') else ""
        while quote and quote not in value[1:] and (more := next(lines, None)) is not None:
            value = f"{value}\n{more}"
        while value.endswith("\\") and not quote and (more := next(lines, None)) is not None:
            value = value[:-1] + more.strip()
        if quote and (end := value.find(quote, 1)) > 0 and not value[end + 1 :].strip().removeprefix("#").strip():
            value = value[1:end]
        elif len(value) > 1 and value[0] == value[-1] and quote:
            value = value[1:-1]
        elif (at := value.find(" #")) >= 0:
            value = value[:at].rstrip()
        yield name.strip(), value
