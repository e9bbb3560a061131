"""Does it fit, and how far does the context reach: for a model on disk, on the hub, or not yet anywhere.

Sizes come from the best source there is: headers of local files, headers of remote files by range requests,
else the published dimensions of a known model.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.api.card_defaults import CUDA, CardDefaults, defaults_for
from tandem.api.dimensions import footprint_of_dimensions
from tandem.core.errors import SettingsError
from tandem.core.plan import Card, ModelFootprint
from tandem.core.progress import Silent
from tandem.core.settings import Environment
from tandem.planner.engines import drafter_bytes
from tandem.planner.fit import FitReport, fit
from tandem.planner.geometry import EXL3_3_05_BITS, GLM_5_3_FLASH, BitWidths, Geometry
from tandem.planner.place import PlanRequest

KNOWN_MODELS: dict[str, tuple[Geometry, BitWidths]] = {"glm-5.3-flash": (GLM_5_3_FLASH, EXL3_3_05_BITS)}
"""Models that can be planned from their published dimensions alone."""


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """``model``: a known name, a folder, a GGUF file or a hub id. ``None`` context = the model's own."""

    model: str
    cards: tuple[Card, ...]
    context_tokens: int | None = None
    kv_format: str | None = None
    slots: int | None = None
    """None = one."""
    drafter: str | None = None
    """None = no drafter."""
    chunk_tokens: int | None = None
    split: tuple[int, ...] | None = None
    pool_tokens: int | None = None
    """Tokens all sequences share; None = one full context."""


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    report: FitReport
    kv_format: str
    sized_from: str
    """Where the bytes of the weights come from, for people to read."""
    subject: str
    """What was planned."""
    dimensions: tuple[Geometry, BitWidths] | None = None
    """Set where they, not headers, were planned from."""
    peer: str | None = None
    """One line: what the engine of the source recipe would do."""
    reason: str | None = None
    """Why the verdict is unknown."""


def answer(question: PlanQuestion, environment: Environment) -> PlanAnswer:
    """Plan without loading anything. Raises UserError subclasses."""
    known = KNOWN_MODELS.get(question.model.lower())
    if known is not None:
        return answer_dimensions(question, *known, "published dimensions and bit widths (±0.5 GiB)")
    return _answer_checkpoint(question, environment)


def answer_dimensions(
    question: PlanQuestion, geometry: Geometry, bits: BitWidths, sized_from: str
) -> PlanAnswer:
    """Plan a model nobody has to hold: from its dimensions. Raises SettingsError."""
    drafter_asked = question.drafter or "none"
    kv_format = question.kv_format or "q8"
    chunk = question.chunk_tokens or CUDA.chunk_tokens

    def ask(kv: str, drafter: str, chunk_tokens: int) -> tuple[ModelFootprint, PlanRequest]:
        footprint = footprint_of_dimensions(geometry, bits, kv_format=kv, chunk_tokens=chunk_tokens)
        context = question.context_tokens or geometry.context_tokens
        asked = PlanRequest(
            context_tokens=question.context_tokens,
            pool_tokens=question.pool_tokens,
            max_slots=question.slots or 1,
            chunk_tokens=chunk_tokens,
            split=question.split,
            drafter_bytes=drafter_bytes(geometry, bits, drafter, max(context, question.pool_tokens or 0)),
        )
        return footprint, CUDA.decide(asked)

    footprint, request = ask(kv_format, drafter_asked, chunk)
    changes = [("--kv q8", ("q8", drafter_asked, chunk))] if kv_format == "fp16" else []
    if kv_format in {"fp16", "q8"}:
        changes.append(("--kv q4", ("q4", drafter_asked, chunk)))
    if drafter_asked != "none":
        changes.append(("--drafter none", (kv_format, "none", chunk)))
    if chunk > 512:
        changes.append((f"--chunk {chunk // 2}", (kv_format, drafter_asked, chunk // 2)))
    alternatives = tuple((change, *ask(*settings)) for change, settings in changes)
    report = fit(footprint, question.cards, request, alternatives)
    return PlanAnswer(report, kv_format, sized_from, question.model, (geometry, bits))


def _answer_checkpoint(question: PlanQuestion, environment: Environment) -> PlanAnswer:
    if question.drafter not in {None, "none"}:
        raise SettingsError(
            f"--drafter {question.drafter} is planned for known models only",
            found=question.model,
            remedy=f"one of {', '.join(KNOWN_MODELS)}, or --drafter none",
        )
    usual = defaults_for(question.cards)
    chunk = question.chunk_tokens or usual.chunk_tokens
    footprint, kv_format, origin = _sized(question, chunk, usual, environment)
    asked = PlanRequest(
        context_tokens=question.context_tokens,
        max_slots=question.slots or 1,
        chunk_tokens=chunk,
        split=question.split,
    )
    report = fit(footprint, question.cards, usual.decide(asked))
    return PlanAnswer(report, kv_format, f"tensor headers of {origin}", question.model)


def _sized(
    question: PlanQuestion, chunk_tokens: int, usual: CardDefaults, environment: Environment
) -> tuple[ModelFootprint, str, str]:
    """Footprint, cache format and origin from headers alone; of a hub model no weights are fetched."""
    from tandem.api.load import footprint_of, open_checkpoint_of
    from tandem.loader.hub import HubModel, HubOptions
    from tandem.loader.remote_headers import read_hub_headers
    from tandem.loader.resolve import ModelLocation, hub_reference, resolve_model
    from tandem.models.registry import spec_from_config, spec_module

    reference = hub_reference(question.model)
    if reference is None:
        location = resolve_model(question.model, environment, Silent())
    else:
        found = read_hub_headers(*reference, HubOptions.from_environment(environment, Silent()))
        if not isinstance(found, HubModel):
            spec = spec_from_config(found.config)
            kept = question.kv_format or spec.default_cache_format
            footprint = spec_module(spec.architecture).footprint(
                spec, found.headers, chunk_tokens=chunk_tokens, cache_dtype=kept, card_kind=usual.kind
            )
            return footprint, kept, f"{found.repository}@{found.revision}, read over the network"
        location = ModelLocation("folder", found.folder, found.repository, f"{found.name}, in the cache")
    spec, weights = open_checkpoint_of(location)
    kept = question.kv_format or spec.default_cache_format
    return footprint_of(spec, weights, chunk_tokens, kept, usual.kind), kept, location.origin
