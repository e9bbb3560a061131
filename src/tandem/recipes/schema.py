"""The recipe's schema, version 1. ``read_recipe`` and ``read_model`` in files.py are the way in.

``null`` means not stated, ``n/a`` cannot apply; a ``Stated`` field may keep the source's own wording, its
basis and unresolved candidates (values.py). Units are in the field names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tandem.recipes.measurement import Confirmation, Measurement
from tandem.recipes.values import (
    Document,
    MaybeFloat,
    MaybeInt,
    MaybeText,
    PartialDate,
    Slug,
    Stated,
    Text,
    Url,
)

SCHEMA_VERSION = 1

QuantScheme = Literal["exl3", "w4a16", "nvfp4", "fp8", "gguf", "bf16", "fp16", "other"]
DrafterKind = Literal["none", "mtp", "dflash2", "eagle", "ngram"]
EngineName = Literal["tandem", "exllamav3", "vllm", "sglang", "llama.cpp", "other"]
Layout = Literal["single", "layer_split", "pp", "tp", "tp_pp", "ep"]
CacheFormat = Literal["fp16", "bf16", "fp8", "q8", "q6", "q4", "nvfp4"]
PeerCopies = Literal["yes", "no", "not_needed"]
SourceType = Literal["repository", "message", "page", "paper", "record", "package"]
Severity = Literal["note", "limits", "breaks"]
Unknown: Any = Stated()
"""The default of what a source may leave untold. Frozen, so one instance serves all fields."""


class Source(Document):
    """Where facts come from. ``id`` is what ``source:`` fields elsewhere in the file refer to."""

    id: Slug
    type: SourceType
    title: Text
    url: Url | None = None
    author: str | None = None
    posted: PartialDate | None = None
    retrieved: PartialDate | None = None
    commit: str | None = None
    licence: str | None = None
    sha256: str | None = None
    note: str | None = None


class ModelFile(Document):
    """One file of a checkpoint."""

    name: Text
    bytes: int | None = Field(default=None, ge=0)
    sha256: str | None = None


class Quant(Document):
    """The weights as they are fetched."""

    label: MaybeText = Unknown
    """The source's own line."""
    scheme: Stated[QuantScheme] = Unknown
    bpw: MaybeFloat = Unknown
    """Mean bits per weight."""
    group_size: MaybeInt = Unknown
    activations: str | None = None
    repo: MaybeText = Unknown
    revision: MaybeText = Unknown
    branch: str | None = None
    download_gb: MaybeFloat = Unknown
    licence: MaybeText = Unknown
    files: tuple[ModelFile, ...] = ()


class Drafter(Document):
    """A way of speculating that the recipe offers."""

    kind: DrafterKind
    repo: str | None = None
    revision: str | None = None
    quant: str | None = None
    source_gb: float | None = None
    draft_tokens: int | None = None
    window_tokens: int | None = None
    ring_tokens: int | None = None
    licence: str | None = None
    note: str | None = None


class Engine(Document):
    """What runs the model, and from where."""

    label: MaybeText = Unknown
    name: Stated[EngineName] = Unknown
    version: MaybeText = Unknown
    commit: MaybeText = Unknown
    origin: Literal["index", "git", "image"] | None = None
    digest: str | None = None
    patched: bool | None = None
    server: str | None = None
    server_commit: str | None = None
    build_env: dict[str, str] = Field(default_factory=dict)


class Host(Document):
    """The machine around the cards."""

    cpu: str | None = None
    ram: str | None = None
    ram_gib: float | None = None
    disk_gb: MaybeFloat = Unknown
    build_gb: MaybeFloat = Unknown
    os: str | None = None


class Link(Document):
    """A card's PCIe link."""

    generation: MaybeInt = Unknown
    width: MaybeInt = Unknown


class Hardware(Document):
    """``sold_gib`` is what the card's name says, ``exposed_gib`` what software sees."""

    card: MaybeText = Unknown
    count: MaybeInt = Unknown
    nodes: MaybeInt = Unknown
    sold_gib: MaybeFloat = Unknown
    exposed_gib: MaybeFloat = Unknown
    peer_copies: Stated[PeerCopies] = Unknown
    link: Link = Link()
    host: Host = Host()
    driver: MaybeText = Unknown
    driver_at_least: bool = False
    unlock: MaybeText = Unknown
    power_limit_w: MaybeFloat = Unknown
    required_free_gb: MaybeFloat = Unknown


class Topology(Document):
    """How the model is laid over the cards."""

    label: str | None = None
    layout: Stated[Layout] = Unknown
    degree: MaybeInt = Unknown
    transport: str | None = None


class Profile(Document):
    """One complete configuration of the recipe. Unset fields come from ``extends``, then from the recipe."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]{0,39}$")]
    default: bool = False
    extends: str | None = None
    engine: EngineName | None = None
    """Set where the profile is for another engine than the recipe's own."""
    max_request_tokens: MaybeInt = Unknown
    cache_tokens: MaybeInt = Unknown
    pool_tokens: MaybeInt = Unknown
    kv: Stated[CacheFormat] = Unknown
    slots: MaybeInt = Unknown
    drafter: DrafterKind | None = None
    draft_tokens: int | None = None
    chunk_tokens: int | None = None
    head_card: int | None = None
    margin_mib: int | None = None
    index_keys: Literal["raw", "pooled"] | None = None
    flags: tuple[str, ...] = ()
    """The source's command-line flags, word for word; Tandem's own settings are the typed fields."""
    env: dict[str, str] = Field(default_factory=dict)
    notes: str | None = None
    untested: bool = False
    """Nobody has reported running it; shown as such, and never the subject of a status."""


class Requirement(Document):
    text: Text
    source: Slug | None = None


class Step(Document):
    """One step to a running server. ``command`` is for a shell, word for word."""

    title: Text
    command: str | None = None
    note: str | None = None
    download_gb: float | None = None
    duration: str | None = None


class Mechanism(Document):
    """Why the recipe works: a claim, its evidence and its limit."""

    claim: Text
    evidence: str | None = None
    caveat: str | None = None
    source: Slug | None = None


class Issue(Document):
    text: Text
    severity: Severity = "note"
    since: PartialDate | None = None
    fixed_in: str | None = None
    source: Slug | None = None


class Failure(Document):
    """A setting that was tried and does not work."""

    setting: Text
    outcome: Text
    source: Slug | None = None


class Related(Document):
    kind: Literal["extended_by", "extends", "alternative_to", "replaces", "replaced_by"]
    recipe: Slug | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Related:
        if self.recipe is None and self.text is None:
            raise ValueError("needs a recipe or a text")
        return self


class Tested(Document):
    """Who ran it and when, as the page's "Tested" row says."""

    by: MaybeText = Unknown
    date: Stated[PartialDate] = Unknown
    source: Slug | None = None


class Recipe(Document):
    """One recipe. ``revision`` grows when a change makes earlier confirmations meaningless."""

    schema_version: Literal[1]
    id: Slug
    title: Text
    revision: int = Field(ge=1)
    revised: PartialDate | None = None
    summary: Text
    model: Slug
    """An id of the model register."""
    model_label: str | None = None
    status_claimed: Stated[Literal["proven", "reported"]] = Unknown
    """What the source calls it. Tandem's own status is computed and cannot be written."""
    quant: Quant
    drafters: tuple[Drafter, ...] = ()
    engine: Engine
    hardware: Hardware
    topology: Topology
    context: MaybeText = Unknown
    vram: MaybeText = Unknown
    headline: str | None = None
    """The id of the measurement shown as the recipe's speed."""
    profiles: tuple[Profile, ...] = Field(min_length=1)
    measurements: tuple[Measurement, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()
    tested: tuple[Tested, ...] = ()
    prerequisites: tuple[Requirement, ...] = ()
    steps: tuple[Step, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    failures: tuple[Failure, ...] = ()
    issues: tuple[Issue, ...] = ()
    related: tuple[Related, ...] = ()
    sources: tuple[Source, ...] = Field(min_length=1)
