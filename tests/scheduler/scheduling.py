"""Driving the state machine by hand: sinks that keep books, and a bench that checks after every move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from contract_engine import ContractEngine, alone

from tandem.core.batch import Batch, EngineLimits
from tandem.core.requests import Finish, FinishReason, GenerationRequest, SamplingParams, TokenOutput
from tandem.scheduler.admission import longest_sequence_tokens
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.prefix import Node
from tandem.scheduler.scheduler import StepScheduler


def make_limits(
    *,
    page_tokens: int = 4,
    chunk_tokens: int = 8,
    total_pages: int = 64,
    max_slots: int = 4,
    max_step_rows: int = 16,
    context_tokens: int = 100,
    pipeline_depth: int = 1,
    state_checkpoints: int = 0,
) -> EngineLimits:
    return EngineLimits(
        page_tokens=page_tokens,
        chunk_tokens=chunk_tokens,
        total_pages=total_pages,
        max_slots=max_slots,
        max_step_rows=max_step_rows,
        context_tokens=context_tokens,
        pipeline_depth=pipeline_depth,
        state_checkpoints=state_checkpoints,
    )


def make_request(
    name: str,
    prompt: tuple[int, ...],
    *,
    max_tokens: int = 5,
    seed: int = 0,
    stops: frozenset[int] = frozenset(),
    reuse_prefix: bool = True,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_tokens=prompt,
        sampling=SamplingParams(seed=seed),
        max_tokens=max_tokens,
        stop_token_ids=stops,
        reuse_prefix=reuse_prefix,
    )


@dataclass
class RecordingSink:
    """Keeps what it gets; ``on_each`` may end the sequence or raise."""

    on_each: Callable[[TokenOutput], FinishReason | None] = lambda output: None
    tokens: list[int] = field(default_factory=list)
    outputs: list[TokenOutput] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)

    def on_token(self, output: TokenOutput) -> FinishReason | None:
        assert not self.finishes, "a token after the end"
        self.tokens.append(output.token_id)
        self.outputs.append(output)
        return self.on_each(output)

    def on_finish(self, finish: Finish) -> None:
        self.finishes.append(finish)

    @property
    def finish(self) -> Finish:
        (finish,) = self.finishes
        return finish


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A scheduler on a contract engine; every move is followed by the conservation check."""

    def __init__(
        self,
        limits: EngineLimits,
        config: SchedulerConfig | None = None,
        *,
        eager: bool = True,
        faulty_seeds: frozenset[int] = frozenset(),
    ) -> None:
        self.limits = limits
        self.clock = FakeClock()
        self.engine = ContractEngine(limits, eager=eager, faulty_seeds=faulty_seeds)
        self.scheduler = StepScheduler(self.engine, config or SchedulerConfig(), self.clock)
        self.context_tokens = longest_sequence_tokens(limits)

    def add(self, request: GenerationRequest, sink: RecordingSink | None = None) -> RecordingSink:
        sink = RecordingSink() if sink is None else sink
        self.scheduler.add(request, sink)
        return sink

    def alone(self, request: GenerationRequest) -> list[int]:
        return alone(request, recurrent=self.limits.state_checkpoints > 0, context_tokens=self.context_tokens)

    def submit(self) -> Batch | None:
        """Hand one batch to the engine, if there is one."""
        batch = self.scheduler.next_batch()
        if batch is not None:
            self._check_writes(batch)
            self.engine.submit(batch)
        self.check()
        return batch

    def commit(self) -> bool:
        """Finish the oldest batch in flight, if there is one."""
        if not self.engine.pending:
            return False
        self.scheduler.commit(self.engine.finish_oldest())
        self.clock.now += 1.0
        self.check()
        return True

    def step(self) -> Batch | None:
        """Fill the pipeline, then finish one batch. Returns the last batch handed over."""
        last = None
        while (batch := self.submit()) is not None:
            last = batch
        self.commit()
        return last

    def run(self, max_steps: int = 2000) -> None:
        """Until nobody runs or waits; more than ``max_steps`` is a livelock."""
        for _ in range(max_steps):
            if self.scheduler.idle:
                break
            self.step()
        assert self.scheduler.idle, "the scheduler does not come to an end"
        assert self.scheduler.memory.pool.live_pages == 0
        assert not self.engine.leases
        assert self.scheduler.memory.checkpoints.idle

    def check(self) -> None:
        """Conservation, and the books of pages, index and checkpoints against each other."""
        self.scheduler.check()
        memory = self.scheduler.memory
        indexed = [page for page in range(self.limits.total_pages) if memory.pool.is_indexed(page)]
        assert sorted(page for node in self.published() for page in node.pages) == indexed
        for number, node in self.checkpointed().items():
            assert node.checkpoint == number
            assert not node.attached or node in self.published()
        stats = self.scheduler.snapshot
        assert stats.free_pages + stats.cached_pages + stats.live_pages == stats.total_pages

    def published(self) -> list[Node]:
        """All nodes of the prefix index."""
        nodes = [self.scheduler.memory.index.root]
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes[1:]

    def checkpointed(self) -> dict[int, Node]:
        """The checkpoint numbers that belong to a node."""
        return dict(self.scheduler.memory.checkpoints._nodes)

    def _check_writes(self, batch: Batch) -> None:
        pool = self.scheduler.memory.pool
        size = self.limits.page_tokens
        for run in batch.runs:
            end = run.start + len(run.tokens)
            for page in run.pages[run.start // size : -(-end // size)]:
                assert pool.references(page) == 1, "a page that others hold is written"
                assert not pool.is_indexed(page), "a published page is written"
            for page in run.pages:
                assert pool.references(page) >= 1, "a page is used that nobody holds"


def prompt_of(text: int, length: int) -> tuple[int, ...]:
    """A prompt of a family: prompts of one ``text`` are prefixes of each other."""
    return tuple((text * 7 + i * i + i // 3) % 19 for i in range(length))
