"""The facets: what the catalogue can be drilled by, in the order of the page.

Every facet belongs to a *group*. A record matches when, for each group, **one** member of it (the recipe
itself, one profile, one decode measurement …) satisfies all the group's filters together: two measurements
that happen to share a recipe never satisfy a filter on a pair of their properties.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from tandem.recipes.measurement import METRIC_UNITS, Method
from tandem.recipes.schema import (
    CacheFormat,
    DrafterKind,
    EngineName,
    Layout,
    PeerCopies,
    QuantScheme,
    SourceType,
)

Group = Literal["recipe", "profile", "decode", "prefill", "ttft", "vram", "measurement"]
Kind = Literal["term", "number", "date"]
Grain = Literal["recipe", "profile", "measurement"]

GRAINS: tuple[Grain, ...] = get_args(Grain)
METRIC_GROUPS: tuple[Group, ...] = ("decode", "prefill", "ttft", "vram")
VERDICTS = ("fits", "marginal", "no", "unknown")

LABELS: dict[str, str] = {
    "exl3": "EXL3", "w4a16": "W4A16", "nvfp4": "NVFP4", "fp8": "FP8", "gguf": "GGUF", "bf16": "BF16",
    "fp16": "FP16", "q8": "Q8", "q6": "Q6", "q4": "Q4", "exllamav3": "ExLlamaV3", "vllm": "vLLM",
    "sglang": "SGLang", "tandem": "Tandem", "layer_split": "layer split", "pp": "pipeline parallel",
    "tp": "tensor parallel", "tp_pp": "tensor and pipeline parallel", "ep": "expert parallel",
    "not_needed": "not needed", "mtp": "MTP head", "dflash2": "DFlash2", "eagle": "EAGLE",
    "ngram": "n-gram", "proven": "Proven", "reported": "Reported", "disputed": "Disputed",
    "broken": "Broken", "stale": "Stale", "shipped": "shipped with Tandem", "user": "your own",
    "ttft": "time to first token", "vram": "memory per card", "kv_pool": "cache pool",
    "kernel_time": "kernel time", "prefill_change": "prefill, relative", "follow_up": "follow-up",
    "stream": "one stream", "aggregate": "all streams together", "reproduced": "reproduced",
    "deviating": "with deviations", "single": "reported once",
}  # fmt: skip
_OWN_LABELS = {("layout", "single"): "one card", ("drafter", "none"): "no speculation"}


@dataclass(frozen=True, slots=True)
class Facet:
    """``choices`` closes the vocabulary: any other value in a query is an error."""

    key: str
    label: str
    kind: Kind
    group: Group
    section: str
    unit: str = ""
    multi: bool = False
    choices: tuple[str, ...] | None = None
    folded: bool = True
    """Shown closed until opened (or filtered)."""
    none_label: str = "None stated"

    def label_of(self, value: str) -> str:
        """The reader's word for a value of a closed vocabulary."""
        if self.choices is None:
            return value
        return _OWN_LABELS.get((self.key, value)) or LABELS.get(value, value)


def _facet(key: str, label: str, kind: Kind, group: Group, section: str, **more: object) -> Facet:
    return Facet(key, label, kind, group, section, **more)  # type: ignore[arg-type]


_MODEL, _MACHINE, _SETUP, _SPEED, _PROOF = "Model", "Machine", "Configuration", "Numbers", "Evidence"
_CACHES = ("cold", "repeat", "follow_up")

FACETS: tuple[Facet, ...] = (
    _facet("model", "Model", "term", "recipe", _MODEL, folded=False),
    _facet("quant", "Quantization", "term", "recipe", _MODEL, choices=get_args(QuantScheme), folded=False),
    _facet("bpw", "Bits per weight", "number", "recipe", _MODEL),
    _facet("quant_repo", "Weights from", "term", "recipe", _MODEL),
    _facet("licence", "Licences", "term", "recipe", _MODEL, multi=True),
    _facet("engine", "Engine", "term", "recipe", _MODEL, choices=get_args(EngineName), folded=False),
    _facet("engine_version", "Engine version", "term", "recipe", _MODEL),
    _facet("engine_commit", "Engine commit", "term", "recipe", _MODEL),
    _facet("card", "Card", "term", "recipe", _MACHINE, folded=False),
    _facet("cards", "Cards", "number", "recipe", _MACHINE, folded=False),
    _facet("nodes", "Machines", "number", "recipe", _MACHINE),
    _facet("sold_gib", "Memory sold", "number", "recipe", _MACHINE, unit="GiB"),
    _facet("exposed_gib", "Memory exposed", "number", "recipe", _MACHINE, unit="GiB"),
    _facet("p2p", "P2P", "term", "recipe", _MACHINE, choices=get_args(PeerCopies)),
    _facet("power_w", "Power limit", "number", "recipe", _MACHINE, unit="W"),
    _facet("driver", "Driver", "term", "recipe", _MACHINE),
    _facet("unlock", "Unlock", "term", "recipe", _MACHINE),
    _facet("fits", "Fits your cards", "term", "profile", _SETUP, choices=VERDICTS, folded=False),
    _facet("layout", "Layout", "term", "recipe", _SETUP, choices=get_args(Layout), folded=False),
    _facet("degree", "Layout degree", "number", "recipe", _SETUP),
    _facet("context", "Longest request", "number", "profile", _SETUP, unit="tokens", folded=False),
    _facet("pool", "Cache pool", "number", "profile", _SETUP, unit="tokens"),
    _facet("kv", "Cache format", "term", "profile", _SETUP, choices=get_args(CacheFormat), folded=False),
    _facet("slots", "Requests at once", "number", "profile", _SETUP),
    _facet("drafter", "Speculation", "term", "profile", _SETUP, choices=get_args(DrafterKind)),
    _facet("decode_tps", "Decode", "number", "decode", _SPEED, unit="tok/s", folded=False),
    _facet("decode.class", "Decode: kind of text", "term", "decode", _SPEED),
    _facet("decode.scope", "Decode: scope", "term", "decode", _SPEED, choices=("stream", "aggregate")),
    _facet(
        "decode.standing", "Decode: standing", "term", "decode", _SPEED,
        choices=("reproduced", "single", "deviating"),
    ),
    _facet("decode.by", "Decode: measured by", "term", "decode", _SPEED),
    _facet("prefill_tps", "Prefill", "number", "prefill", _SPEED, unit="tok/s", folded=False),
    _facet("prefill.class", "Prefill: kind of text", "term", "prefill", _SPEED),
    _facet("ttft_s", "First token", "number", "ttft", _SPEED, unit="s"),
    _facet("ttft.cache", "First token: cache", "term", "ttft", _SPEED, choices=_CACHES),
    _facet("ttft.prompt", "First token: prompt", "number", "ttft", _SPEED, unit="tokens"),
    _facet("vram_gib", "Memory per card", "number", "vram", _SPEED, unit="GiB"),
    _facet("vram.stat", "Memory per card: when", "term", "vram", _SPEED, choices=("idle", "peak")),
    _facet("status", "Status", "term", "recipe", _PROOF, choices=("proven", "reported"), folded=False),
    _facet(
        "standing", "Warnings", "term", "recipe", _PROOF, multi=True,
        choices=("disputed", "broken", "stale"), none_label="no warning",
    ),
    _facet("claimed", "Status claimed", "term", "recipe", _PROOF, choices=("proven", "reported")),
    _facet("tested_by", "Tested by", "term", "recipe", _PROOF, multi=True, folded=False),
    _facet("tested_on", "Tested on", "date", "recipe", _PROOF, folded=False),
    _facet("confirmed_by", "Confirmed by", "term", "recipe", _PROOF, multi=True),
    _facet("source_type", "Source", "term", "recipe", _PROOF, multi=True, choices=get_args(SourceType)),
    _facet("source_domain", "Source site", "term", "recipe", _PROOF, multi=True),
    _facet("completeness", "Completeness", "number", "recipe", _PROOF, unit="%"),
    _facet("origin", "Where it is from", "term", "recipe", _PROOF, choices=("shipped", "user")),
    _facet("metric", "Metric", "term", "measurement", _SPEED, choices=tuple(METRIC_UNITS), folded=False),
    _facet("method", "Measured with", "term", "measurement", _SPEED, choices=get_args(Method)),
    _facet("measured_by", "Measured by", "term", "measurement", _SPEED, folded=False),
    _facet("measured_on", "Measured on", "date", "measurement", _SPEED, folded=False),
)  # fmt: skip

BY_KEY: dict[str, Facet] = {facet.key: facet for facet in FACETS}


def facets_of(grain: Grain) -> tuple[Facet, ...]:
    """The facets a grain has: those of single measurements only where records are measurements."""
    return tuple(facet for facet in FACETS if grain == "measurement" or facet.group != "measurement")


@dataclass(frozen=True, slots=True)
class Cell:
    """One member's values of one facet. All empty means none is stated.

    Terms are ids; numbers are (low, high); dates are partial dates. ``possible`` are unresolved candidates.
    """

    values: tuple[str | tuple[float, float], ...] = ()
    possible: tuple[str | tuple[float, float], ...] = ()
    not_applicable: bool = False


Cells = dict[str, Cell]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group: its cells, and the profile (by position) it belongs to."""

    group: Group
    cells: Cells
    profile: int | None = None
    summary: dict[str, object] = field(default_factory=dict)
