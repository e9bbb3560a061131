"""What the engine sees of a model: a specification before loading, one stage's layers after it.

Alphabet: R rows, C chunk_tokens, H hidden (the residual's width, ``ModelSpec.residual_width``), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tandem.core.cards import Capability, CardKind
from tandem.core.plan import ModelFootprint, StagePlan
from tandem.loader.base import TensorHeader, TensorSource

if TYPE_CHECKING:
    import torch

    from tandem.cache.layout import LayoutMemory, PrefillLayout, RowsLayout
    from tandem.kernels.sampling.operands import RowRequest, RowResult


class ModelSpec(Protocol):
    """Every dimension of one checkpoint, read from its config or metadata. Frozen, torch-free."""

    @property
    def architecture(self) -> str:
        """As the checkpoint names it, e.g. ``LlamaForCausalLM`` or (GGUF) ``llama``."""
        ...

    @property
    def num_layers(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_tokens(self) -> int:
        """The longest context the model was made for."""
        ...

    @property
    def residual_width(self) -> int:
        """fp32 values a row carries between stages."""
        ...

    @property
    def default_cache_format(self) -> str:
        """What the attention cache is kept in unless something else is asked for."""
        ...


class RowSampler(Protocol):
    """Draws tokens where the logits lie (``kernels/sampling``)."""

    def sample(
        self, logits: torch.Tensor, requests: Sequence[RowRequest | None]
    ) -> Sequence[RowResult | None]:
        """A result for every row of logits fp32 [R, V] of which something is asked; waits for them."""
        ...


class StageModel(Protocol):
    """Consecutive layers of one model with their caches, on one device.

    Methods are called by one thread at a time; different stages run on different threads. The residual
    ``hidden`` is contiguous fp32 and may be overwritten: the result may be the argument itself.
    Each row's bits depend on that row's own sequence alone, never on how many rows a call has.
    """

    @property
    def weight_bytes(self) -> int:
        """Bytes allocated for weights, embedding and head included where the stage has them."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for pages, states and rings."""
        ...

    @property
    def working_bytes(self) -> int:
        """Bytes held beside them as long as the stage lives: fixed buffers and captured steps."""
        ...

    @property
    def step_memory(self) -> LayoutMemory | None:
        """Where captured steps read their layout, which the engine writes there; they gather page tables by
        slot themselves. None: layouts may lie anywhere, and the engine brings and gathers them.
        """
        ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [R] -> fp32 [R, H]. Only on the stage with the embedding."""
        ...

    def forward_rows(self, hidden: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        """fp32 [R, H] -> [R, H]; stores each row's keys, values and states at its position."""
        ...

    def forward_prefill(self, hidden: torch.Tensor, layout: PrefillLayout) -> torch.Tensor:
        """fp32 [C, H] -> [C, H]; rows at and after ``layout.length`` come back unspecified."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 [R, H] -> fp32 [R, V] on the stage's device, final norm included; rows may lie apart, and are
        valid until the next call. Only on the stage with the head.
        """
        ...

    @property
    def row_sampler(self) -> RowSampler | None:
        """What samples rows of ``logits``; None: the host does. Its memory is part of ``working_bytes``."""
        ...

    def reset_slot(self, slot: int) -> None:
        """A new sequence takes the slot: its recurrent state, if any, becomes zero."""
        ...

    def save_state(self, slot: int, checkpoint: int) -> None:
        """Keep the slot's recurrent state under this number."""
        ...

    def restore_state(self, slot: int, checkpoint: int) -> None:
        """Load a kept state into the slot."""
        ...


class SpecModule(Protocol):
    """What ``models/<architecture>/spec.py`` offers."""

    def from_config(self, config: Mapping[str, object]) -> ModelSpec:
        """From config.json. Raises ModelUnsupportedError naming a missing or unusable field."""
        ...

    def from_gguf(self, metadata: Mapping[str, object]) -> ModelSpec:
        """From GGUF metadata. Raises ModelUnsupportedError naming a missing or unusable key."""
        ...

    def footprint(
        self,
        spec: ModelSpec,
        headers: Mapping[str, TensorHeader],
        *,
        chunk_tokens: int,
        cache_dtype: str,
        card_kind: CardKind = "cpu",
        capability: Capability | None = None,
    ) -> ModelFootprint:
        """Bytes in memory, part by part; ``capability`` is that of the CUDA cards, None = any.

        Raises ModelDamagedError for missing or misshapen tensors, and ModelUnsupportedError for those that a
        model with kernels for this kind of card cannot compute.
        """
        ...


class ModelModule(Protocol):
    """What ``models/<architecture>/model.py`` offers."""

    def build_stage(
        self,
        spec: ModelSpec,
        weights: TensorSource,
        stage: StagePlan,
        *,
        total_pages: int,
        page_tokens: int,
        chunk_tokens: int,
        max_slots: int,
        cache_dtype: str,
    ) -> StageModel:
        """Read the stage's tensors and allocate its caches."""
        ...
