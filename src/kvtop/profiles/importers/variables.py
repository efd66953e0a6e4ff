"""Which variables of a whole environment say something about vLLM, and files of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MATTERS = re.compile(
    r"(?:VLLM|CUDA|NCCL|NVIDIA|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|HF|HUGGING|TRANSFORMERS|TOKENIZERS|OMP|MKL|RAY"
    r"|LMCACHE|FLASHINFER|MOONCAKE|NIXL|UCX|GLOO|SAFETENSORS)_\w+|PYTHONHASHSEED|LD_PRELOAD|LD_LIBRARY_PATH"
)
_OF_IMAGES = re.compile(
    r"NVIDIA_(REQUIRE|PRODUCT|BUILD|DRIVER)_\w+|NV_\w+|CUDA_VERSION|(?:NCCL|CUDNN|CUBLAS|TORCH)_VERSION|CUDA_HOME|CUDA_PATH"
)
"""Set by images and by installations: of no use in a profile."""


def matters(name: str) -> bool:
    """Whether a variable of a process or a container is worth a place in a profile."""
    return bool(_MATTERS.fullmatch(name)) and not _OF_IMAGES.fullmatch(name)


def of_file(text: str) -> Iterator[tuple[str, str]]:
    """(name, value) of a file of variables, as docker, compose and systemd read them: one a line, quotes taken off."""
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals:
            continue
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        elif (at := value.find(" #")) >= 0:
            value = value[:at].rstrip()
        yield name.strip(), value
