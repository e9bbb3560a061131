"""From options to a running service, in two steps: everything that can refuse, then everything that costs.

``prepare_model`` reads headers, specification, text side and plan: it takes well under a second and no
memory, and names whatever is missing, damaged, unsupported or too large. ``load_model`` follows the plan.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.api.card_defaults import CardDefaults, defaults_for
from tandem.api.cuda_cards import common_capability, free_cuda_bytes
from tandem.api.reading import reading
from tandem.api.service import LoadState, ModelCard, Service
from tandem.api.warm_up import warm_up
from tandem.core.cards import Capability, CardKind, resolve_cards
from tandem.core.errors import BudgetError, EngineFault, ModelDamagedError, ModelNotFoundError, TandemError
from tandem.core.gguf import read_gguf_header
from tandem.core.log import get_logger
from tandem.core.machine import available_memory_bytes, usable_processors
from tandem.core.options import LoadOptions
from tandem.core.plan import GIB, ModelFootprint, Plan, format_bytes
from tandem.core.process import release_free_memory
from tandem.core.progress import ProgressSink
from tandem.core.settings import Environment
from tandem.loader.base import TensorSource
from tandem.loader.gguf import GgufSource
from tandem.loader.resolve import ModelLocation, resolve_model
from tandem.loader.safetensors import SafetensorsSource
from tandem.models.base import ModelSpec
from tandem.models.registry import model_module, spec_from_config, spec_from_gguf, spec_module
from tandem.planner.place import PlanRequest, place
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.loop import Scheduler
from tandem.text.bundle import TextBundle

_log = get_logger("api")

FreeBytes = Callable[[CardKind, int], int]

STATE_CHECKPOINT_BYTES = GIB
"""Host memory for checkpoints of recurrent state: seven of GLM-5.3-Flash's 146 MiB."""
MAX_STATE_CHECKPOINTS = 256


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that will load: found, whole, supported, and planned for its cards."""

    location: ModelLocation
    spec: ModelSpec
    weights: TensorSource
    text: TextBundle
    footprint: ModelFootprint
    plan: Plan
    options: LoadOptions
    cache_format: str

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.options.served_names or (self.location.name,)


def prepare_model(
    options: LoadOptions,
    environment: Environment,
    progress: ProgressSink,
    *,
    free_bytes: FreeBytes | None = None,
) -> PreparedModel:
    """Find (download where remote), check and plan a model. Raises UserError subclasses only."""
    options.check()
    # Before anything is downloaded: a card that is not there is the cheapest thing to find out.
    measure = free_bytes or free_card_bytes
    for card in options.cards:
        if card.kind == "cuda":
            measure(card.kind, card.index)
    cards = resolve_cards(options.cards, measure)
    location = resolve_model(options.model, environment, progress)
    spec, weights = open_checkpoint_of(location)
    text = _open_text(location, options)
    usual = defaults_for(cards)
    chunk = options.chunk_tokens or usual.chunk_tokens
    cache_format = options.cache_format or spec.default_cache_format
    footprint = footprint_of(spec, weights, chunk, cache_format, usual.kind, common_capability(cards))
    plan = place(footprint, cards, plan_request(options, chunk, usual))
    check_free_memory(plan, measure)
    return PreparedModel(location, spec, weights, text, footprint, plan, options, cache_format)


def check_free_memory(plan: Plan, free_bytes: FreeBytes) -> None:
    """A budget is what the user allows, not what is free. Raises BudgetError naming the card that is short.

    CPU cards share one memory, so their plans are added up.
    """
    planned: dict[tuple[CardKind, int], int] = {}
    for stage in plan.stages:
        memory = (stage.card.kind, stage.card.index if stage.card.kind == "cuda" else 0)
        planned[memory] = planned.get(memory, 0) + plan.card_bytes(stage.card.name)
    for (kind, index), needed in planned.items():
        free = free_bytes(kind, index)
        if needed > free:
            where = f"cuda:{index}" if kind == "cuda" else "this machine's CPU cards"
            raise BudgetError(
                f"{format_bytes(needed)} are planned on {where}",
                found=f"{format_bytes(free)} free, {format_bytes(needed - free)} short",
                remedy="end what else uses this memory, a shorter --context, or smaller budgets in --cards",
            )


def open_checkpoint_of(location: ModelLocation) -> tuple[ModelSpec, TensorSource]:
    """Specification and tensors of a model on this machine; every header is checked, no tensor is read."""
    if location.kind == "gguf":
        header = read_gguf_header(location.path)
        return spec_from_gguf(header.metadata), GgufSource(header)
    return spec_from_config(read_config(location.path)), SafetensorsSource.open(location.path)


def footprint_of(
    spec: ModelSpec,
    weights: TensorSource,
    chunk_tokens: int,
    cache_format: str,
    card_kind: CardKind = "cpu",
    capability: Capability | None = None,
) -> ModelFootprint:
    """Resident bytes from headers alone; ``capability`` is that of CUDA cards that are there.

    Raises ModelDamagedError for missing or misshapen tensors, and ModelUnsupportedError for those that this
    kind of card cannot compute.
    """
    headers = {name: weights.header(name) for name in weights.names()}
    module = spec_module(spec.architecture)
    return module.footprint(
        spec,
        headers,
        chunk_tokens=chunk_tokens,
        cache_dtype=cache_format,
        card_kind=card_kind,
        capability=capability,
    )


def read_config(folder: Path) -> Mapping[str, object]:
    """``config.json`` of a folder. Raises ModelNotFoundError or ModelDamagedError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelNotFoundError(f"{folder} holds no config.json") from None
    except (OSError, ValueError) as error:
        raise ModelDamagedError(f"{path} cannot be read", found=str(error)) from error
    if not isinstance(config, dict):
        raise ModelDamagedError(f"{path} is not a JSON object", found=type(config).__name__)
    return config


def plan_request(options: LoadOptions, chunk_tokens: int, usual: CardDefaults) -> PlanRequest:
    """The planner's question for these options."""
    asked = PlanRequest(
        context_tokens=options.context_tokens,
        pool_tokens=options.pool_tokens,
        split=options.split,
        max_slots=options.max_running,
        chunk_tokens=chunk_tokens,
    )
    return usual.decide(asked)


def free_card_bytes(kind: CardKind, index: int) -> int:
    """Free bytes of one CUDA card, or of this machine for CPU cards. Raises ServeError for a missing one."""
    return available_memory_bytes() if kind == "cpu" else free_cuda_bytes(index)


def load_model(prepared: PreparedModel, service: Service) -> None:
    """Read the weights to where the plan puts them, start the engine, and attach it to the service.

    Raises UserError subclasses; what was allocated is freed.
    """
    from tandem.engine.build import build_engine
    from tandem.loader.finite import damaged_weights

    started = time.perf_counter()
    plan, options = prepared.plan, prepared.options
    threads = options.threads or usable_processors()
    module = model_module(prepared.spec.architecture)
    stages = []
    for index, stage in enumerate(plan.stages):
        where = f"layers {stage.first_layer} to {stage.end_layer - 1} onto {stage.card.name}"

        def report(share: float, detail: str, before: int = index) -> None:
            service.report(LoadState("loading", 0.95 * (before + share) / len(plan.stages), detail))

        report(0.0, f"reading {where}")
        with reading(prepared.weights, plan, stage, where, report) as weights:
            stages.append(
                module.build_stage(
                    prepared.spec,
                    weights,
                    stage,
                    total_pages=plan.total_pages,
                    page_tokens=plan.page_tokens,
                    chunk_tokens=plan.chunk_tokens,
                    max_slots=plan.max_slots,
                    cache_dtype=prepared.cache_format,
                )
            )
    service.report(LoadState("loading", 0.95, "starting the engine"))
    engine = build_engine(
        stages,
        plan,
        residual_width=prepared.spec.residual_width,
        vocab_size=prepared.spec.vocab_size,
        state_checkpoints=state_checkpoints(prepared.footprint, options),
        threads=threads,
    )
    release_free_memory()
    service.report(LoadState("loading", 0.97, "compiling kernels and checking first steps"))
    try:
        warm_up(engine, prepared.spec.vocab_size)
    except BaseException as error:
        engine.shutdown()
        # A kernel or card that fails is not the user's to put right, a file that was damaged is.
        damaged = damaged_weights(prepared.weights) if isinstance(error, EngineFault) else None
        if damaged is not None:
            raise damaged from error
        raise
    scheduler = Scheduler(engine, scheduler_config(options, prepared.footprint))
    weight_bytes = sum(stage.weight_bytes for stage in stages)
    _log.info(
        "loaded %s in %.1f s: weights %s, cache %s, context %d tokens, on %s",
        prepared.location.name,
        time.perf_counter() - started,
        format_bytes(weight_bytes),
        format_bytes(sum(stage.cache_bytes for stage in stages)),
        plan.context_tokens,
        ", ".join(stage.card.name for stage in plan.stages),
    )
    release_free_memory()
    service.attach(_model_card(prepared, weight_bytes), prepared.text, scheduler)


def state_checkpoints(footprint: ModelFootprint, options: LoadOptions) -> int:
    """How many checkpoints of recurrent state host memory may hold; 0 for models without such state."""
    if not footprint.checkpoint_bytes or options.prefix_reuse == "off":
        return 0
    return min(STATE_CHECKPOINT_BYTES // footprint.checkpoint_bytes, MAX_STATE_CHECKPOINTS)


def scheduler_config(options: LoadOptions, footprint: ModelFootprint) -> SchedulerConfig:
    # Pages of a recurrent model are worthless without a state to go on from.
    stateless_pages = footprint.checkpoint_bytes > 0 and not state_checkpoints(footprint, options)
    return SchedulerConfig(
        max_waiting=options.max_waiting,
        max_wait_s=options.max_wait_s,
        stall_timeout_s=options.stall_timeout_s,
        prefix_reuse="off" if stateless_pages else options.prefix_reuse,
    )


def load_in_background(prepared: PreparedModel, service: Service) -> TandemError | None:
    """``load_model`` for a worker thread: a failure becomes the service's state and is returned."""
    try:
        load_model(prepared, service)
    except TandemError as error:
        service.report(LoadState("failed", detail=str(error)))
        return error
    return None


def open_service(options: LoadOptions, environment: Environment, progress: ProgressSink) -> Service:
    """Prepare and load in this thread: for commands that want a model and no server."""
    prepared = prepare_model(options, environment, progress)
    service = Service(prepared.served_names[0])
    load_model(prepared, service)
    return service


def _open_text(location: ModelLocation, options: LoadOptions) -> TextBundle:
    reasoning, tools = options.reasoning_format, options.tool_format
    if location.kind == "folder":
        return TextBundle.from_folder(location.path, reasoning_format=reasoning, tool_format=tools)
    return TextBundle.from_gguf(
        location.path, sampling=location.sampling, reasoning_format=reasoning, tool_format=tools
    )


def _model_card(prepared: PreparedModel, weight_bytes: int) -> ModelCard:
    names = prepared.served_names
    return ModelCard(
        id=names[0],
        created=int(time.time()),
        context_tokens=prepared.plan.context_tokens,
        aliases=names[1:],
        bytes_per_token=prepared.footprint.decode_bytes,
        details={
            "architecture": prepared.spec.architecture,
            "origin": prepared.location.origin,
            "weights": format_bytes(weight_bytes),
            "cache_format": prepared.cache_format,
            "cards": ", ".join(
                f"{s.card.name} (layers {s.first_layer}-{s.end_layer - 1})" for s in prepared.plan.stages
            ),
        },
    )
