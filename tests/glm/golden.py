"""transformers on the dequantized weights of the committed EXL3 checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel

from tandem.loader.safetensors import SafetensorsSource
from tandem.quant.exl3.format import is_exl3, read_format
from tandem.quant.exl3.linear import Exl3Linear

from .checkpoints import DATA, MODELS, checkpoint_folder
from .tiny import oracle_config

__all__ = ["DATA", "MODELS", "DequantizedOracle", "checkpoint_folder"]


class DequantizedOracle(torch.nn.Module):
    """transformers' text model with the folder's weights in their original basis, float32."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())["text_config"]
        self.model = Glm5NextTextModel(oracle_config(config))
        tensors = dequantized(SafetensorsSource.open(folder))
        self.head = tensors.pop("lm_head.weight")
        state = {key: checkpoint_value(key, tensors) for key in self.model.state_dict()}
        self.model.load_state_dict(state)
        self.eval().requires_grad_(False)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """One pass: int64 [T] → [T, V]."""
        return self.model(token_ids[None], use_cache=False).last_hidden_state[0] @ self.head.T


def dequantized(source: SafetensorsSource) -> dict[str, torch.Tensor]:
    """Every tensor in float32, EXL3 matrices in their original basis; names without the trunk's prefix."""
    headers = {name: source.header(name) for name in source.names()}
    tensors: dict[str, torch.Tensor] = {}
    for name, header in headers.items():
        base, _, part = name.rpartition(".")
        if part == "trellis":
            k, n = header.shape[0] * 16, header.shape[1] * 16
            tensors[f"{base}.weight"] = Exl3Linear(read_format(base, headers, k, n), source).dense()
        elif not is_exl3(base, headers):
            tensors[name] = source.read(name).float()
    return {name.removeprefix("model.language_model."): value for name, value in tensors.items()}


def checkpoint_value(key: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The checkpoint's tensor for one of transformers' parameters."""
    name = key.replace("forget_gate.", "").replace("attn_hc.", "hc_attn_").replace("ffn_hc.", "hc_ffn_")
    base = name.rpartition(".")[0]
    experts = range(sum(k.startswith(f"{base}.") and k.endswith("down_proj.weight") for k in tensors))
    if name.endswith("gate_up_proj"):
        return torch.stack(
            [torch.cat([tensors[f"{base}.{e}.{p}_proj.weight"] for p in ("gate", "up")]) for e in experts]
        )
    if name.endswith("experts.down_proj"):
        return torch.stack([tensors[f"{base}.{e}.down_proj.weight"] for e in experts])
    for part, third in zip("qkv", range(3), strict=True):
        if name.endswith(f".{part}_proj.weight") and name not in tensors:
            return tensors[name.replace(f".{part}_proj", ".qkv_proj")].chunk(3)[third]
    return tensors[name]
