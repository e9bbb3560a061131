"""The planner's face towards the catalogue: does a recipe's profile fit somebody's cards.

A recipe names its engine; ours and the peer's keep different things on a card, so each is judged by its own
model. What cannot be sized (another weight format, tensor parallelism) is *unknown*, with the reason.
"""

from __future__ import annotations

from tandem.api.card_defaults import CUDA
from tandem.api.dimensions import footprint_of_dimensions
from tandem.core.errors import TandemError
from tandem.core.plan import GIB, MIB, Card, format_bytes
from tandem.planner.engines import (
    PEER_OVERHEAD_BYTES,
    PeerProfile,
    drafter_bytes,
    simulate_peer_load,
)
from tandem.planner.fit import FitReport as PlannerReport
from tandem.planner.fit import fit as planner_fit
from tandem.planner.geometry import BitWidths, geometry_from_config
from tandem.planner.geometry import Geometry as ModelGeometry
from tandem.planner.place import PlanRequest
from tandem.recipes.fit import CardFit, FitReport, FitSubject, FitTerm, Hardware
from tandem.recipes.register import Geometry

_PEER_OVERHEAD_RANGE = (round(2.65 * GIB), round(3.10 * GIB))
"""Driver context plus largest transient of a card that reproduce every published outcome."""
_KNOWN_LAYOUTS = {None, "single", "layer_split", "pp"}
_DEFAULT_CONTEXT = 1_048_576


class PlannerFit:
    """A ``recipes.fit.FitCalculator`` over the planner."""

    def fit(self, subject: FitSubject, geometry: Geometry | None, hardware: Hardware) -> FitReport:
        reason = why_unknown(subject, geometry)
        if reason is not None or geometry is None:
            return FitReport("unknown", reason or "the model's dimensions are not known")
        try:
            model = model_geometry(geometry)
            bits = bit_widths(geometry)
            if subject.engine == "tandem":
                return _ours(subject, model, bits, hardware)
            return _peer(subject, model, bits, hardware)
        except TandemError as error:
            return FitReport("unknown", str(error))


def why_unknown(subject: FitSubject, geometry: Geometry | None) -> str | None:
    if geometry is None or geometry.architecture != "glm5_next":
        return "the model's dimensions are not in the register"
    if subject.scheme != "exl3":
        return f"weights in {subject.scheme or 'an unstated format'} cannot be sized yet"
    if subject.engine not in {"tandem", "exllamav3"}:
        return f"what {subject.engine or 'an unstated engine'} keeps in memory is not known"
    if subject.layout not in _KNOWN_LAYOUTS:
        return f"a layout of {subject.layout} is not modelled"
    return None


def model_geometry(geometry: Geometry) -> ModelGeometry:
    """The planner's dimensions from the register's. Raises ModelUnsupportedError naming a missing one."""
    config = dict(geometry.config)
    layers = int(str(config.get("num_hidden_layers", 0)))
    every = int(str(config.get("full_attention_interval", 4)))
    full = "deepseek_sparse_attention"
    return geometry_from_config(
        {
            "layer_types": [full if i % every == every - 1 else "linear_attention" for i in range(layers)],
            "hc_mult": config.get("hyper_connection_streams"),
            "max_position_embeddings": config.get("max_position_embeddings", _DEFAULT_CONTEXT),
            **config,
        }
    )


def bit_widths(geometry: Geometry) -> BitWidths:
    """Bits per weight of each group, as the register states them."""
    bits = geometry.bits
    base = bits.get("experts", 3.0)
    return BitWidths(
        experts=base,
        attention=bits.get("attention", base),
        shared=bits.get("shared_experts", base),
        dense=bits.get("dense", base),
        head=bits.get("head", 6.0),
        mtp=bits.get("mtp", 4.0),
    )


def _ours(subject: FitSubject, model: ModelGeometry, bits: BitWidths, hardware: Hardware) -> FitReport:
    kv_format = subject.kv or "q8"
    chunk = subject.chunk_tokens or CUDA.chunk_tokens
    context = subject.request_tokens or subject.cache_tokens or model.context_tokens
    cards = tuple(Card("cuda", i, size) for i, size in enumerate(hardware.usable_bytes))
    drafter = subject.drafter if subject.drafter in {"none", "dflash2", "mtp"} else "none"
    asked = PlanRequest(
        context_tokens=context,
        pool_tokens=subject.cache_tokens,
        max_slots=subject.slots or 1,
        chunk_tokens=chunk,
        drafter_bytes=drafter_bytes(model, bits, drafter, subject.cache_tokens or context),
    )
    footprint = footprint_of_dimensions(model, bits, kv_format=kv_format, chunk_tokens=chunk)
    return _translated(planner_fit(footprint, cards, CUDA.decide(asked)))


def _translated(report: PlannerReport) -> FitReport:
    cards = tuple(
        CardFit(
            name=card.card,
            usable_bytes=card.budget_bytes,
            low_bytes=card.low_bytes,
            expected_bytes=card.expected_bytes,
            high_bytes=card.high_bytes,
            terms=tuple(FitTerm(term.name, term.bytes, term.quality) for term in card.terms),
            layers=card.layers,
        )
        for card in report.cards
    )
    tightest = min(report.cards, key=lambda card: card.left_bytes)
    left = format_bytes(abs(tightest.left_bytes))
    state = "to spare" if tightest.left_bytes >= 0 else "short"
    return FitReport(
        verdict=report.verdict,
        reason=f"{tightest.card} is the tightest card, {left} {state}",
        cards=cards,
        limiting_card=report.limiting_card,
        levers=tuple(f"{lever.change} reaches {lever.context_tokens:,} tokens" for lever in report.levers),
        max_context_tokens=report.max_context_tokens,
    )


def _peer(subject: FitSubject, model: ModelGeometry, bits: BitWidths, hardware: Hardware) -> FitReport:
    profile = PeerProfile(
        name="asked",
        cache_tokens=subject.cache_tokens or subject.request_tokens or model.context_tokens,
        kv_format=subject.kv or "fp16",
        drafter="mtp" if subject.drafter == "mtp" else "dflash2" if subject.drafter == "dflash2" else "none",
        margin_bytes=(256 if subject.margin_mib is None else subject.margin_mib) * MIB,
        head_on_first_card=subject.head_card == 0,
    )
    return peer_fit(model, bits, profile, hardware.usable_bytes)


def peer_fit(
    model: ModelGeometry, bits: BitWidths, profile: PeerProfile, usable_bytes: tuple[int, ...]
) -> FitReport:
    """The greedy loader, at the low, expected and high end of what a card loses to context and transients."""
    low, high = _PEER_OVERHEAD_RANGE
    at_low, expected, at_high = (
        simulate_peer_load(model, bits, profile, cards=usable_bytes, overhead_bytes=overhead)
        for overhead in (low, PEER_OVERHEAD_BYTES, high)
    )
    cards = []
    first = 0
    for index, usable in enumerate(usable_bytes):
        held = expected.card_bytes[index]
        end = first + expected.layers_per_card[index]
        terms = (
            FitTerm("weights, cache and states", held, "estimated"),
            FitTerm("context and transients", PEER_OVERHEAD_BYTES, "estimated"),
            FitTerm("margin", profile.margin_bytes, "exact"),
        )
        fixed = held + profile.margin_bytes
        cards.append(
            CardFit(
                f"cuda:{index}",
                usable,
                fixed + low,
                fixed + PEER_OVERHEAD_BYTES,
                fixed + high,
                terms,
                (first, end),
            )
        )
        first = end
    limiting = max(cards, key=lambda card: card.expected_bytes - card.usable_bytes).name
    if expected.failed_layer is not None:
        reason = f"its loader finds no room for layer {expected.failed_layer} of {model.num_layers}"
        return FitReport("marginal" if at_low.failed_layer is None else "no", reason, tuple(cards), limiting)
    if at_high.failed_layer is not None:
        reason = "it loads unless a card loses more to context and transients than expected"
        return FitReport("marginal", reason, tuple(cards), limiting)
    return FitReport("fits", f"every layer finds room; {limiting} is the fuller card", tuple(cards), limiting)
