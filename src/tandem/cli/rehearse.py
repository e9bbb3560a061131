"""``tandem rehearse``: a model at its full size with random weights on this machine's card."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.console import output
from tandem.core.errors import SettingsError

_SCALES = ("full", "small")


def rehearse(
    recipe: Annotated[
        str, typer.Option("--recipe", help="Which model and bit rates; GLM-5.3-Flash's are known.")
    ] = "glm53-flash-2x64-layer-split",
    cards: Annotated[str, typer.Option("--cards", help="`cuda:1`: the first CUDA card.")] = "cuda:1",
    scale: Annotated[
        str, typer.Option("--scale", help="full, or small: every kind of layer in a few megabytes.")
    ] = "full",
    context: Annotated[int, typer.Option("--context", min=8192, help="Tokens the caches hold.")] = 266_240,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the record.", show_default="none is written")
    ] = None,
) -> int:
    """Measure decode, verification and prefill with random weights made on the card.

    `tandem rehearse --out benchmarks/results`
    """
    if scale not in _SCALES:
        raise SettingsError("--scale cannot be read", found=scale, remedy=" or ".join(_SCALES))
    if not recipe.startswith("glm53-flash"):
        raise SettingsError("Only GLM-5.3-Flash can be rehearsed", found=recipe, remedy="glm53-flash-…")
    if cards != "cuda:1":
        raise SettingsError("A rehearsal runs on one CUDA card", found=cards, remedy="--cards cuda:1")
    import torch

    from tandem.api.rehearse import rehearse as run
    from tandem.core.settings import read_environment
    from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS, SMALL, SMALL_BITS

    if not torch.cuda.is_available():
        raise SettingsError("A rehearsal needs a CUDA card", found="none", remedy="tandem doctor says why")
    small = scale == "small"
    record = run(
        SMALL if small else RELEASED,
        SMALL_BITS if small else RELEASED_BITS,
        context,
        torch.device("cuda", 0),
        read_environment().cache_dir,
    )
    record["commit"] = _commit()
    record["command"] = f"tandem rehearse --recipe {recipe} --cards {cards} --scale {scale}"
    text = json.dumps(record, indent=1)
    if out is not None:
        name = "glm-small" if small else "glm-5.3-flash"
        path = out / f"rehearsal_{name}_{cards.replace(':', '-')}_{datetime.date.today().isoformat()}.json"
        path.write_text(text + "\n")
    output().print(text, markup=False, highlight=False)
    return 0


def _commit() -> str:
    found = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() if found.returncode == 0 else "unknown"
