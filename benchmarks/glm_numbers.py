"""How far tiny GLM-5.3-Flash models lie from float64, and their q8 latents from fp16 ones.

    python -m benchmarks.glm_numbers [--out benchmarks/results/glm_numbers.json]

Run in the repository: the models are those of tests/glm. Precision: the relative error of every row of logits
in one pass, ours in float32 and transformers in float32 against transformers with every float32 in its
source read as float64. Formats: the divergence KL(fp16 || q8) of the next token's distribution and how often
both name the same token, over one pass and over single steps behind a prompt.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.glm.golden import DATA, MODELS, checkpoint_folder
from tests.glm.rig import Rig, build_stages
from tests.glm.tiny import Oracle, oracle_config, text_config
from transformers.models.glm5_next import modeling_glm5_next as float32_source

from tandem.kernels.jit import use_threads

LENGTHS = (63, 300, 1000)
POOLS = (4, 16)
VOCABULARY = 160
STEPS = 100


def float64_logits(oracle: Oracle, ids: torch.Tensor) -> torch.Tensor:
    """What transformers computes from the oracle's weights in float64 throughout: [T, V]."""
    text = Path(float32_source.__file__).read_text()
    text = text.replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    module = types.ModuleType(f"{float32_source.__name__}_float64")
    module.__package__ = float32_source.__package__
    module.__file__ = float32_source.__file__
    sys.modules[module.__name__] = module  # where its classes look for their annotations and source
    exec(compile(text, float32_source.__file__, "exec"), vars(module))
    config = oracle_config(oracle.config)
    config._experts_implementation = "eager"  # the grouped product knows no float64
    model = module.Glm5NextTextModel(config).double().eval()
    model.load_state_dict(oracle.model.state_dict())
    found: torch.Tensor = model(ids[None], use_cache=False).last_hidden_state[0]
    return found @ oracle.lm_head.weight.double().T


def one_pass(folder: Path, ids: torch.Tensor, cache: str) -> torch.Tensor:
    rig = Rig(build_stages(folder, cache=cache))
    rig.open(0, len(ids))
    return rig.prefill(0, ids)


def single_steps(folder: Path, ids: torch.Tensor, cache: str) -> torch.Tensor:
    rig = Rig(build_stages(folder, cache=cache))
    rig.open(0, len(ids))
    prompt = len(ids) - STEPS
    rig.prefill(0, ids[:prompt])
    return rig.steps(0, ids, prompt)


def row_errors(found: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    rows = (found - exact).norm(dim=1) / exact.norm(dim=1)
    whole = (found - exact).norm() / exact.norm()
    return {
        "whole": rounded(whole),
        "median_row": rounded(rows.median()),
        "worst_row": rounded(rows.max()),
        "rows_above_1e-3": int((rows > 1e-3).sum()),
    }


def divergence(fp16: torch.Tensor, q8: torch.Tensor) -> dict[str, float]:
    half, eighth = (torch.log_softmax(logits.double(), -1) for logits in (fp16, q8))
    each = (half.exp() * (half - eighth)).sum(-1)
    same = (half.argmax(1) == eighth.argmax(1)).double().mean()
    return {
        "rows": len(each),
        "kl_mean": rounded(each.mean()),
        "kl_median": rounded(each.median()),
        "kl_max": rounded(each.max()),
        "argmax_equal": round(float(same), 4),
    }


def rounded(value: torch.Tensor) -> float:
    return float(f"{float(value):.2e}")


def measure(folder: Path) -> dict[str, object]:
    precision: dict[str, object] = {}
    formats: dict[str, object] = {}
    for pool in POOLS:
        oracle = Oracle(text_config(index_kpool=pool), seed=pool)
        made = oracle.save(folder / f"pool{pool}")
        for length in LENGTHS:
            ids = torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(length))
            exact = float64_logits(oracle, ids)
            ours, theirs = one_pass(made, ids, "fp32").double(), oracle(ids).double()
            precision[f"pools of {pool}, {length} tokens"] = {
                "ours": row_errors(ours, exact),
                "transformers": row_errors(theirs, exact),
                "ours against transformers": row_errors(ours, theirs),
            }
        name = f"random, pools of {pool}"
        formats[f"{name}, one pass"] = divergence(*(one_pass(made, ids, f) for f in ("fp16", "q8")))
        formats[f"{name}, steps"] = divergence(*(single_steps(made, ids, f) for f in ("fp16", "q8")))
    ids = load_file(DATA / "exllamav3_logits.safetensors")["ids"].flatten()
    for model in MODELS:
        (folder / model).mkdir()
        made = checkpoint_folder(model, folder / model)
        formats[f"EXL3 {model}, one pass"] = divergence(*(one_pass(made, ids, f) for f in ("fp16", "q8")))
        formats[f"EXL3 {model}, steps"] = divergence(*(single_steps(made, ids, f) for f in ("fp16", "q8")))
    return {"relative error against float64": precision, "q8 against fp16 latents": formats}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/glm_numbers.json"))
    options = parser.parse_args()
    use_threads(1)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    record = {
        "benchmark": "tiny GLM-5.3-Flash models: precision and cache formats",
        "command": "python -m benchmarks.glm_numbers",
        "commit": commit.stdout.strip(),
        "machine": platform.machine(),
        **found,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
