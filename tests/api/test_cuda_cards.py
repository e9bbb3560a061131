"""Cards that are not there or cannot be used, and what a kind of card is served with."""

from __future__ import annotations

import pytest
import torch

from tandem.api import cuda_cards
from tandem.api.card_defaults import CPU, CUDA, defaults_for
from tandem.api.cuda_cards import common_capability, free_cuda_bytes
from tandem.api.reading import planned_weight_bytes, reading
from tandem.core.errors import ServeError
from tandem.core.plan import GIB, Card, MemoryTerm, Plan, StagePlan


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with one CUDA card that can be used; a test takes something away."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some Card")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (5 * GIB, 8 * GIB))
    monkeypatch.setattr(cuda_cards, "_there", lambda module: True)
    return monkeypatch


def test_a_usable_card_tells_what_is_free(card: pytest.MonkeyPatch) -> None:
    assert free_cuda_bytes(0) == 5 * GIB


def test_cards_of_one_architecture_have_a_capability(card: pytest.MonkeyPatch) -> None:
    first, second = Card("cuda", 0, GIB), Card("cuda", 1, GIB)
    assert common_capability([Card("cpu", 0, GIB)]) is None
    assert common_capability([first]) == (9, 0)
    assert common_capability([first, second]) is None  # the second is not there
    card.setattr(torch.cuda, "device_count", lambda: 2)
    assert common_capability([first, second, Card("cpu", 0, GIB)]) == (9, 0)
    card.setattr(torch.cuda, "get_device_capability", lambda index: (9 - index, 0))
    assert common_capability([first, second]) is None
    card.setattr(torch.version, "cuda", None)
    assert common_capability([first]) is None


def refusal(index: int = 0) -> str:
    with pytest.raises(ServeError) as refused:
        free_cuda_bytes(index)
    assert refused.value.exit_code == 2
    assert refused.value.found
    assert "--cards cpu:1" in (refused.value.remedy or "")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_torch_without_cuda_is_named(card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.version, "cuda", None)
    assert "a torch without CUDA" in refusal()


def test_a_machine_without_a_driver_has_no_cards(card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "is_available", lambda: False)
    assert "Card cuda:0 was asked for; found: 0 CUDA card(s)" in refusal()


def test_a_card_beyond_the_last_one_is_named(card: pytest.MonkeyPatch) -> None:
    assert "Card cuda:1 was asked for; found: 1 CUDA card(s)" in refusal(1)


def test_an_old_card_is_named_with_its_capability(card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert "Some Card of compute capability 7.5" in refusal()


@pytest.mark.parametrize(("module", "name"), [("triton", "Triton"), ("cuda.core", "cuda-core")])
def test_missing_compilers_are_named_with_the_command_that_brings_them(
    card: pytest.MonkeyPatch, module: str, name: str
) -> None:
    card.setattr(cuda_cards, "_there", lambda asked: asked != module)
    said = refusal()
    assert f"no {name}" in said
    assert "pip install 'tandem-serve[gpu]'" in said


def test_one_cuda_card_among_others_sets_the_sizes() -> None:
    host, device = Card("cpu", 0, GIB), Card("cuda", 0, GIB)
    assert defaults_for([host, host]) is CPU
    assert defaults_for([host, device]) is CUDA


@pytest.mark.parametrize("usual", [CPU, CUDA], ids=lambda usual: usual.kind)
@pytest.mark.parametrize("chunk", [16, 64, 100, 300, 1000, 2048, 4096])
def test_a_chunk_is_a_whole_number_of_pages(usual: object, chunk: int) -> None:
    assert isinstance(usual, type(CPU))
    page = usual.page_tokens_of(chunk)
    assert chunk % page == 0
    assert 1 <= page <= usual.page_tokens


class _Source:
    """Stands for weights of any kind that a CPU card reads itself."""


def test_cpu_cards_read_their_weights_themselves() -> None:
    stage = StagePlan(Card("cpu", 0, GIB), 0, 3, True, True)
    terms = (
        MemoryTerm("cpu:0", "weights", 10), MemoryTerm("cpu:0", "head", 5),
        MemoryTerm("cpu:0", "kv_pages", 100), MemoryTerm("cpu:1", "weights", 1000),
    )  # fmt: skip
    plan = Plan((stage,), 64, 64, 1, 1, 64, terms)
    assert planned_weight_bytes(plan, stage) == 15
    source = _Source()
    with reading(source, plan, stage, "layers", lambda share, detail: None) as given:  # type: ignore[arg-type]
        assert given is source
