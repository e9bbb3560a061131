"""Prometheus metrics, named after vLLM's so that existing dashboards need one search and replace."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem.api import Service
from tandem.core.errors import RequestError

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_INTER_TOKEN_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)


class _SchedulerCollector(Collector):
    """Reads the scheduler at scrape time: gauges cannot go stale, and nothing is counted twice."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self._service.stats()
        gauges = (
            ("num_requests_running", "Sequences that hold a slot", stats.running),
            ("num_requests_waiting", "Sequences in the queue", stats.waiting),
            (
                "kv_cache_usage_perc",
                "Share of the KV pages held by running sequences, 0 to 1",
                stats.live_pages / stats.total_pages if stats.total_pages else 0.0,
            ),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"tandem:{name}", text, value=value)
        pages = GaugeMetricFamily("tandem:kv_cache_pages", "KV pages by state", labels=["state"])
        pages.add_metric(["free"], stats.free_pages)
        pages.add_metric(["cached"], stats.cached_pages)
        pages.add_metric(["live"], stats.live_pages)
        yield pages
        counters = (
            ("prefix_cache_queries", "Prompt tokens looked up", stats.prefix_query_tokens_total),
            ("prefix_cache_hits", "Prompt tokens reused", stats.prefix_hit_tokens_total),
            ("num_preemptions", "Sequences that lost their pages", stats.preemptions_total),
            ("engine_steps", "Batches executed", stats.steps_total),
        )
        for name, text, value in counters:
            yield CounterMetricFamily(f"tandem:{name}", text, value=value)


class Metrics:
    """One server's metrics. Counters of tokens equal the summed ``usage`` of all requests."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_SchedulerCollector(service))
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens")
        self.finished = self._counter("request_success", "Sequences by end", "finished_reason")
        self._errors = self._counter("request_errors", "Error answers and events by code", "code")
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From the request's arrival", _TTFT_BUCKETS_S
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between tokens of a sequence", _INTER_TOKEN_BUCKETS_S
        )
        self.end_to_end = self._histogram(
            "e2e_request_latency_seconds", "Whole requests that ended well", _REQUEST_BUCKETS_S
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "From submission to admission", _REQUEST_BUCKETS_S
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tandem:{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"tandem:{name}", text, registry=self._registry, buckets=buckets)

    def count_tokens(self, prompt_tokens: int, generated_tokens: int) -> None:
        self._prompt_tokens.inc(prompt_tokens)
        self._generation_tokens.inc(generated_tokens)

    def count_error(self, error: RequestError) -> None:
        self._errors.labels(code=error.code or str(error.status)).inc()

    def render(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self._registry)
