"""Made-up recipes in any number, for measuring and testing the catalogue. Every kind of gap occurs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tandem.recipes.files import RecipeFile
from tandem.recipes.measurement import METRIC_UNITS, Confirmation, Machine, Measurement, Metric, Workload
from tandem.recipes.register import ModelEntry
from tandem.recipes.schema import (
    Drafter,
    Engine,
    Hardware,
    Profile,
    Quant,
    Recipe,
    Source,
    Tested,
    Topology,
)
from tandem.recipes.values import Stated
from tandem.recipes.yaml_lines import Located

_PEOPLE = [f"person{number}" for number in range(60)]
_CARDS = ["CMP 170HX", "RTX 3090", "RTX 4090", "A100", "Instinct MI50", "RTX PRO 6000"]
_GAPS = (None, None, "n/a")


def synthetic_models(count: int) -> dict[str, ModelEntry]:
    """``model-000`` and so on, each with one alias."""
    entries = [
        ModelEntry(id=f"model-{i:03}", name=f"Model {i}", aliases=(f"Model {i} (alias)",))
        for i in range(count)
    ]
    return {entry.id: entry for entry in entries}


def synthetic_recipes(count: int, seed: int, models: int = 40) -> Iterator[RecipeFile]:
    """The same recipes for the same seed."""
    rng = random.Random(seed)
    for number in range(count):
        recipe = _recipe(rng, number, models)
        yield RecipeFile(recipe, rng.choice(("shipped", "shipped", "user")), Located("synthetic.yaml", {}))


def _maybe(rng: random.Random, value: object, candidates: tuple[object, ...] = ()) -> Any:
    """The value, or one of the gaps a source may leave."""
    draw = rng.random()
    if draw < 0.7:
        return Stated.model_validate(value)
    if draw < 0.8 and candidates:
        return Stated.model_validate({"basis": "unresolved", "candidates": [*candidates, None]})
    return Stated.model_validate(rng.choice(_GAPS))


def _date(rng: random.Random) -> str:
    day = f"{rng.randint(2024, 2026)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return day[: rng.choice((4, 7, 10, 10, 10, 10))]


def _recipe(rng: random.Random, number: int, models: int) -> Recipe:
    cards = rng.choice((1, 2, 2, 3, 4, 8))
    people = rng.sample(_PEOPLE, rng.choice((0, 1, 1, 2)))
    profiles = _profiles(rng)
    names = [profile.name for profile in profiles]
    measurements = tuple(_measurement(rng, index, names) for index in range(rng.choice((0, 1, 2, 4))))
    return Recipe(
        schema_version=1,
        id=f"recipe-{number:06}",
        title=f"Recipe {number} for {rng.choice(_CARDS)}",
        revision=1,
        revised=rng.choice((None, "2025-06-01")),
        summary=f"Made up, number {number}.",
        model=f"model-{min(int(rng.expovariate(0.15)), models - 1):03}",
        status_claimed=Stated.model_validate(rng.choice((None, "proven", "reported"))),
        quant=Quant(
            scheme=_maybe(rng, rng.choice(("exl3", "w4a16", "gguf", "fp8")), ("exl3", "nvfp4")),
            bpw=_maybe(rng, rng.choice((2.5, 3.0, 3.05, 4.0, 4.3, 8.0)), (3.0, 4.0)),
            repo=_maybe(rng, f"org{rng.randint(0, 30)}/weights-{rng.randint(0, 9)}"),
            revision=_maybe(rng, f"rev{rng.randint(0, 5)}"),
        ),
        drafters=(Drafter(kind="mtp", licence=rng.choice((None, "MIT", "Apache-2.0"))),),
        engine=Engine(
            name=_maybe(rng, rng.choice(("exllamav3", "vllm", "tandem"))),
            version=_maybe(rng, f"{rng.randint(0, 2)}.{rng.randint(0, 30)}.{rng.randint(0, 5)}"),
        ),
        hardware=Hardware(
            card=_maybe(rng, rng.choice(_CARDS), tuple(_CARDS[:2])),
            count=_maybe(rng, cards, (2, 3)),
            sold_gib=_maybe(rng, rng.choice((8.0, 24.0, 48.0))),
            power_limit_w=_maybe(rng, rng.choice((0.0, 180.0, 250.0, 300.0)), (180.0,)),
            driver=_maybe(rng, f"{rng.randint(500, 620)}.{rng.randint(0, 9)}"),
        ),
        topology=Topology(layout=_maybe(rng, rng.choice(("layer_split", "tp", "pp", "single")))),
        headline=measurements[0].id if measurements else None,
        profiles=profiles,
        measurements=measurements,
        confirmations=tuple(_confirmation(rng, cards, names[0]) for _ in range(rng.choice((0, 0, 1, 2)))),
        tested=tuple(
            Tested(
                by=Stated[str](value=person),
                date=_maybe(rng, _date(rng), ("2026-10-13", "2026-10")),
            )
            for person in people
        ),
        sources=(
            Source(
                id="src", type=rng.choice(("repository", "message", "page")), title="Source", licence="MIT"
            ),
        ),
    )


def _profiles(rng: random.Random) -> tuple[Profile, ...]:
    return tuple(
        Profile(
            name=f"p{index}",
            max_request_tokens=_maybe(rng, rng.choice((8192, 32768, 131072, 262144, 392960, 1048576))),
            kv=_maybe(rng, rng.choice(("fp16", "q8", "q4")), ("fp8", "q8")),
            slots=_maybe(rng, rng.randint(1, 8)),
            drafter=rng.choice((None, "none", "mtp", "dflash2")),
        )
        for index in range(rng.choice((1, 1, 2, 3)))
    )


def _measurement(rng: random.Random, index: int, profiles: list[str]) -> Measurement:
    metric: Metric = rng.choice(("decode", "decode", "prefill", "ttft", "vram", "power"))
    value = round(rng.lognormvariate(4, 1), rng.choice((0, 1, 2)))
    shape = rng.random()
    return Measurement(
        id=f"m{index}",
        metric=metric,
        value=value if shape < 0.7 else None,
        low=value if shape >= 0.85 else None,
        high=value * 1.2 if shape >= 0.85 else None,
        candidates=(value, 107.67) if 0.7 <= shape < 0.8 else (),
        unit=METRIC_UNITS[metric][0] if rng.random() < 0.85 else rng.choice((None, "s")),
        scope=rng.choice((None, "stream", "aggregate")),
        stat=rng.choice((None, "idle", "peak")),
        profile=rng.choice((None, *profiles)),
        deviations=rng.choice(((), (), ("another link",))),
        workload=rng.choice(
            (None, Workload(text_class=rng.choice(("easy", "hard", "prose")), prompt_tokens=1024))
        ),
        by=rng.choice((None, *_PEOPLE[:10])),
        date=rng.choice((None, _date(rng))),
        method=rng.choice(("client", "server", "unknown")),
        source="src",
    )


def _confirmation(rng: random.Random, cards: int, profile: str) -> Confirmation:
    return Confirmation(
        by=rng.choice(_PEOPLE),
        date=f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        outcome=rng.choice((None, "boots", "serves", "fails", "disputes")),
        profile=rng.choice((None, profile)),
        revision=rng.choice((None, 1)),
        machine=Machine(card=rng.choice(_CARDS), cards=cards),
    )
