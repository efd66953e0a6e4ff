"""Make the models that the real servers run: a few MB of random weights, no download.

usage (with the Python of the server's environment, which has torch and tokenizers): make_models.py tiny|hybrid FOLDER

`tiny` has two layers of plain attention (Qwen3 shape). `hybrid` has three gated-delta-net layers and one of full
attention (Qwen3-Next shape), whose state can be resumed only where it was saved. Both share a tokenizer of 8,192
entries that is trained here on the standard library, so token counts belong to one CPython patch version.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCABULARY = 8192
MAX_TOKENS = 40960
HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 128, 4, 2, 32
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def texts() -> Iterator[str]:
    for path in sorted(Path(os.__file__).parent.glob("*.py"))[:150]:
        yield path.read_text(encoding="utf-8", errors="replace")


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def make_tokenizer(folder: Path) -> dict[str, int]:
    """Train and save the tokenizer; the ids of the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (Path(__file__).parent / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_TOKENS,
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "chat_template": template,
        },
    )
    return {text: tokenizer.token_to_id(text) for text in SPECIAL}


def write_generation_config(folder: Path, ids: dict[str, int]) -> None:
    ends = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    write_json(folder / "generation_config.json", {"eos_token_id": ends, "do_sample": False, "temperature": 1.0})


def make_tiny(folder: Path) -> None:
    ids = make_tokenizer(folder)
    layers, inner = 2, 2 * HIDDEN
    write_json(
        folder / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_SIZE,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_TOKENS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
    )
    write_generation_config(folder, ids)
    dice = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=dice) * 0.05).to(torch.bfloat16)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    weights = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN), "model.norm.weight": ones(HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        weights |= {
            f"{at}input_layernorm.weight": ones(HIDDEN),
            f"{at}post_attention_layernorm.weight": ones(HIDDEN),
            f"{at}self_attn.q_proj.weight": random(HEADS * HEAD_SIZE, HIDDEN),
            f"{at}self_attn.k_proj.weight": random(KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{at}self_attn.v_proj.weight": random(KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{at}self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_SIZE),
            f"{at}self_attn.q_norm.weight": ones(HEAD_SIZE),
            f"{at}self_attn.k_norm.weight": ones(HEAD_SIZE),
            f"{at}mlp.gate_proj.weight": random(inner, HIDDEN),
            f"{at}mlp.up_proj.weight": random(inner, HIDDEN),
            f"{at}mlp.down_proj.weight": random(HIDDEN, inner),
        }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def make_hybrid(folder: Path) -> None:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    ids = make_tokenizer(folder)
    layers = 4
    config = Qwen3NextConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=MAX_TOKENS,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        layer_types=["linear_attention"] * (layers - 1) + ["full_attention"],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=list(range(layers - 1)),  # vLLM wants one layer with experts: "No Qwen3Next layer found"
        bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 1.0},
        dtype="bfloat16",
    )
    torch.manual_seed(7)
    model = Qwen3NextForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "conv1d" not in name:
                weight.normal_(0, 0.05)
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", written | {"architectures": ["Qwen3NextForCausalLM"]})
    write_generation_config(folder, ids)


def main(argv: list[str]) -> int:
    kind, folder = argv[1], Path(argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    {"tiny": make_tiny, "hybrid": make_hybrid}[kind](folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
