"""The committed EXL3 checkpoints as folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import safe_open

DATA = Path(__file__).parent / "data"
MODELS = ("3.0_mul1", "4.0_mcg")


def checkpoint_folder(name: str, folder: Path) -> Path:
    """One of MODELS as the converter wrote it, but in two shards. The 4.0 model has no MTP layer."""
    shards = {f"exl3_{name}": "model-00001-of-00002", "exl3_common": "model-00002-of-00002"}
    weight_map: dict[str, str] = {}
    for stored, shard in shards.items():
        shutil.copyfile(DATA / f"{stored}.safetensors", folder / f"{shard}.safetensors")
        with safe_open(folder / f"{shard}.safetensors", "pt") as file:
            weight_map |= dict.fromkeys(file.keys(), f"{shard}.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copyfile(DATA / f"config_{name}.json", folder / "config.json")
    for text in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(DATA / text, folder / text)
    return folder
