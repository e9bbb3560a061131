"""Trim reference checkpoints to what tests/glm needs: ``python trim_checkpoints.py FOLDER``.

FOLDER holds a tiny random GLM-5.3-Flash (4 layers) that exllamav3 1.6.5 converted twice, ``exl3_3.0_mul1``
and ``exl3_4.0_mcg``, and that program's fp16 logits of both, ``exllamav3_logits.safetensors``. Tensors equal
in both are kept once; the 4.0 model's MTP layer is left out; of the logits every fourth position of the one
pass is kept and every second of the single steps.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parent / "data"
MODELS = ("3.0_mul1", "4.0_mcg")
MTP = ".layers.4."


def main(source: Path) -> None:
    tensors = {name: load_file(source / f"exl3_{name}" / "model.safetensors") for name in MODELS}
    first, second = tensors.values()
    common = {
        key: value
        for key, value in first.items()
        if MTP not in key and key in second and torch.equal(value, second[key])
    }
    DATA.mkdir(exist_ok=True)
    save_file(common, DATA / "exl3_common.safetensors")
    for name in MODELS:
        own = {
            key: value
            for key, value in tensors[name].items()
            if key not in common and (MTP not in key or name == MODELS[0])
        }
        save_file(own, DATA / f"exl3_{name}.safetensors")
        config = json.loads((source / f"exl3_{name}" / "config.json").read_text())
        (DATA / f"config_{name}.json").write_text(json.dumps(config, indent=1) + "\n")
    logits = load_file(source / "exllamav3_logits.safetensors")
    kept = {key: value[..., :: 4 if key.endswith("nc") else 2, :] for key, value in logits.items()}
    ids = load_file(source / "oracle.safetensors")["ids"]
    save_file(
        {**{k: v.contiguous() for k, v in kept.items()}, "ids": ids}, DATA / "exllamav3_logits.safetensors"
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / f"exl3_{MODELS[0]}" / name, DATA / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
