"""``tandem rehearse``: a model with random weights on this machine's cards, and what its steps take."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.console import make_folder, notices, print_json, write_json
from tandem.cli.facts import source_commit
from tandem.cli.recipes_read import open_catalogue
from tandem.core.cards import CardRequest, parse_cards, resolve_cards
from tandem.core.errors import SettingsError

if TYPE_CHECKING:
    from tandem.models.glm5_next.dimensions import Glm5NextSpec
    from tandem.planner.geometry import BitWidths

_SCALES = ("full", "small")
_CACHE_FORMATS = ("fp16", "q8")


def rehearse(
    recipe: Annotated[
        str, typer.Option("--recipe", help="Which model and bit rates; GLM-5.3-Flash's are known.")
    ] = "glm53-flash-2x64-layer-split",
    cards: Annotated[
        str | None,
        typer.Option(
            "--cards",
            help="CUDA cards at full scale; at small scale any cards, the processor's too.",
            show_default="cuda:1, or cpu:1 where there is no CUDA card",
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", help="full, or small: every kind of layer in a few megabytes.")
    ] = "full",
    context: Annotated[
        int, typer.Option("--context", min=8192, help="Tokens the caches hold at full scale.")
    ] = 266_240,
    kv: Annotated[
        str, typer.Option("--kv", help="Format of the latents at full scale: fp16 or q8.")
    ] = "fp16",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the record.", show_default="none is written")
    ] = None,
) -> int:
    """Measure decode, verification and prefill with random weights made on the card.

    At full scale the captured steps of one CUDA card are timed. On several cards, and at small scale on any
    cards, the model goes through the engine as a served one does.

    `tandem rehearse --out benchmarks/results`

    `tandem rehearse --cards cuda:2`

    `tandem rehearse --context 1048832 --kv q8`

    `tandem rehearse --scale small --cards cpu:2`
    """
    if scale not in _SCALES:
        raise SettingsError("--scale cannot be read", found=scale, remedy=" or ".join(_SCALES))
    if kv not in _CACHE_FORMATS:
        raise SettingsError("--kv cannot be read", found=kv, remedy=" or ".join(_CACHE_FORMATS))
    if not recipe.startswith("glm53-flash"):
        raise SettingsError("Only GLM-5.3-Flash can be rehearsed", found=recipe, remedy="glm53-flash-…")
    open_catalogue().entry(recipe)  # the record names it: it must be there
    if out is not None:
        make_folder(out)
    small = scale == "small"
    cards = cards or _cards_here(small)
    record = _small(cards) if small else _full(cards, context, kv)
    command = f"tandem rehearse --recipe {recipe} --cards {cards} --scale {scale}"
    if not small:
        command += f" --context {context} --kv {kv}"
    record |= {"commit": source_commit(), "command": command}
    if out is not None:
        name = "glm-small" if small else "glm-5.3-flash" if kv == "fp16" else f"glm-5.3-flash-{kv}"
        where = re.sub(r"\W+", "-", cards)
        write_json(out / f"rehearsal_{name}_{where}_{datetime.date.today().isoformat()}.json", record)
    print_json(record)
    return 0


def _cards_here(small: bool) -> str:
    import torch

    return "cpu:1" if small and not torch.cuda.is_available() else "cuda:1"


def _full(cards: str, context_tokens: int, cache_format: str) -> dict[str, object]:
    requests = parse_cards(cards)
    if any(request.kind != "cuda" for request in requests):
        raise SettingsError(
            "A rehearsal at full scale runs on CUDA cards",
            found=cards,
            remedy="--cards cuda:1, or --scale small",
        )
    if cards == "cuda:1":
        return _replays(context_tokens, cache_format)

    from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS

    return _served(requests, RELEASED, RELEASED_BITS, context_tokens, cache_format)


def _replays(context_tokens: int, cache_format: str) -> dict[str, object]:
    """Captured steps of one card."""
    import torch

    from tandem.api.cuda_cards import common_capability, free_cuda_bytes
    from tandem.api.rehearsal_plan import plan_rehearsal
    from tandem.core.plan import Card
    from tandem.core.settings import read_environment
    from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS

    free_bytes = free_cuda_bytes(0)
    plan = plan_rehearsal(
        RELEASED,
        RELEASED_BITS,
        context_tokens,
        cache_format,
        common_capability([Card("cuda", 0, free_bytes)]),
    )
    plan.check(free_bytes)

    from tandem.api.rehearse import rehearse as run  # after the checks: it imports Triton

    cache_dir = read_environment().cache_dir
    return run(RELEASED, RELEASED_BITS, plan, torch.device("cuda", 0), cache_dir, _telling())


def _small(cards: str) -> dict[str, object]:
    from tandem.models.glm5_next.rehearsal_spec import SMALL, SMALL_BITS

    return _served(parse_cards(cards), SMALL, SMALL_BITS, None, None)


def _served(
    requests: tuple[CardRequest, ...],
    spec: Glm5NextSpec,
    bits: BitWidths,
    context_tokens: int | None,
    cache_format: str | None,
) -> dict[str, object]:
    """Through the engine. ``context_tokens``: of all caches together, at full scale."""
    from tandem.api.load import free_card_bytes
    from tandem.api.rehearse_engine import RELEASED_SIZES, SMALL_SIZES, rehearse_engine

    for request in requests:
        free_card_bytes(request.kind, request.index)
    resolved = resolve_cards(requests, free_card_bytes)
    sizes = SMALL_SIZES if context_tokens is None else RELEASED_SIZES
    return rehearse_engine(
        spec,
        bits,
        sizes,
        requests,
        resolved,
        pool_tokens=context_tokens,
        cache_format=cache_format,
        told=_telling(),
    )


def _telling() -> Callable[[str, float], None]:
    """Prints every step for people as it is measured, beside the record for programs."""
    begin, console = time.perf_counter(), notices()

    def told(name: str, value: float) -> None:
        step, _, unit = name.rpartition("_")
        unit = "tokens/s" if unit == "tps" else unit
        elapsed = time.perf_counter() - begin
        console.print(f"{elapsed:5.0f} s  {step.replace('_', ' '):28} {value:>12,} {unit}")

    return told
