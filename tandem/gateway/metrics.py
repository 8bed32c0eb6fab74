"""`/metrics`, in Prometheus' words: what the gateway counted itself, and what the engine last said of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem.contract.messages import ApplianceState, CachesView, Counters, Health, MemoryView, RoleState
from tandem.ledger.schema import Row

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(
        self, health: Callable[[], Health | None], picture: Callable[[], ApplianceState | None] = lambda: None
    ) -> None:
        """The engine's own word, and the director's."""
        registry = self._registry = CollectorRegistry()
        self.requests = Counter("tandem_requests", "Requests by outcome", ("route", "outcome"), registry=registry)
        self.tokens = Counter("tandem_tokens", "Tokens of finished requests", ("kind",), registry=registry)
        self.in_flight = Gauge("tandem_in_flight", "Requests now in the gateway", registry=registry)
        self.ttft = Histogram(
            "tandem_ttft_seconds", "From arrival to the first token", buckets=_SECONDS, registry=registry
        )
        self.queue = Histogram("tandem_queue_seconds", "Waiting for a slot", buckets=_SECONDS, registry=registry)
        self.total = Histogram("tandem_request_seconds", "From arrival to the end", buckets=_SECONDS, registry=registry)
        gateway = Counter("tandem_gateway_seconds", "The gateway's own work", ("part",), registry=registry)
        self.reading = gateway.labels("reading")  # validating, rendering the template, tokenizing
        self.writing = gateway.labels("writing")  # ids to text to bytes
        registry.register(_Seen(health, picture))

    def count(self, row: Row) -> None:
        self.requests.labels(row.route, row.finish).inc()
        self.tokens.labels("prompt").inc(row.prompt_tokens)
        self.tokens.labels("cached").inc(row.cached_tokens)
        self.tokens.labels("completion").inc(row.completion_tokens)
        self.total.observe(row.total_seconds)
        if row.ttft_seconds is not None:
            self.ttft.observe(row.ttft_seconds)
        if row.queue_seconds is not None:
            self.queue.observe(row.queue_seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Seen(Collector):
    """What others say of themselves, read when asked. The engine's counters begin at 0 again when it restarts, as
    Prometheus expects."""

    def __init__(self, health: Callable[[], Health | None], picture: Callable[[], ApplianceState | None]) -> None:
        self._health = health
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        if (picture := self._picture()) is not None:
            yield from _appliance(picture)
        health = self._health()
        yield GaugeMetricFamily("tandem_engine_ready", "1 when it serves", 1.0 if health and health.ready else 0.0)
        if health is None:
            return
        yield GaugeMetricFamily("tandem_engine_running", "Requests on slots", health.running)
        yield GaugeMetricFamily("tandem_engine_queued", "Requests that wait for a slot", health.queued)
        yield GaugeMetricFamily("tandem_engine_waiting_memory", "Requests that wait for memory", health.waiting_memory)
        yield GaugeMetricFamily("tandem_engine_resident_bytes", "Resident memory", health.resident_bytes)
        rows = GaugeMetricFamily("tandem_slot_rows", "Rows a slot holds", labels=("slot",))
        for slot in health.slots:
            rows.add_metric((str(slot.index),), slot.rows)
        yield rows
        if health.caches is not None:
            yield from _caches(health.caches)
        if health.counters is not None:
            yield from _counters(health.counters)
            yield from _memory_counters(health.counters)


def _caches(view: CachesView) -> Iterator[Metric]:
    held = GaugeMetricFamily("tandem_cache_bytes", "Copies of conversations, by level", labels=("level",))
    for level, size in view.held.items():
        held.add_metric((level,), size)
    if view.disk is not None:
        held.add_metric(("disk",), view.disk.bytes)
    yield held
    restored = CounterMetricFamily("tandem_cache_restored_rows", "Rows brought back, by source", labels=("source",))
    for source, rows in view.restored.items():
        restored.add_metric((source,), rows)
    yield restored
    yield CounterMetricFamily("tandem_cache_refused", "Copies there was no room for", view.refused)
    if view.disk is None:
        return
    files = CounterMetricFamily("tandem_cache_files", "Files on disk, by what became of them", labels=("fate",))
    for fate in ("written", "read", "evicted", "dropped", "corrupt", "failed"):
        files.add_metric((fate,), getattr(view.disk, fate))
    yield files


def _memory_counters(counters: Counters) -> Iterator[Metric]:
    yield CounterMetricFamily("tandem_memory_waits", "Requests that waited for memory", counters.memory_waits)
    yield CounterMetricFamily("tandem_memory_reclaims", "Walks down the pressure ladder", counters.reclaims)
    yield CounterMetricFamily("tandem_memory_ended", "Requests ended for want of memory", counters.ended_for_memory)
    reclaimed = CounterMetricFamily("tandem_memory_reclaimed_bytes", "Given back, by rung", labels=("rung",))
    for rung, size in counters.reclaimed.items():
        reclaimed.add_metric((rung,), size)
    yield reclaimed


def _appliance(picture: ApplianceState) -> Iterator[Metric]:
    if (view := picture.memory) is not None:
        yield _memory_view(view)
        if view.free_blocks is not None:
            yield GaugeMetricFamily("tandem_memory_free_blocks_bytes", "In blocks of 2 MiB and more", view.free_blocks)
    roles = GaugeMetricFamily("tandem_role", "1 for the state that each role is in", labels=("role", "state"))
    for role in picture.roles:
        for state in RoleState:
            roles.add_metric((role.name, state), float(role.state is state))
    yield roles


def _memory_view(view: MemoryView) -> Metric:
    parts = GaugeMetricFamily("tandem_memory_bytes", "Memory in use by part; they sum to it", labels=("part",))
    for part in view.parts:
        parts.add_metric((part.name,), part.bytes)
    return parts


def _counters(counters: Counters) -> Iterator[Metric]:
    rounds = CounterMetricFamily("tandem_rounds", "Rounds by how many slots decoded together", labels=("size",))
    for size, count in sorted(counters.rounds_by_size.items()):
        rounds.add_metric((str(size),), count)
    yield rounds
    by_rows = CounterMetricFamily(
        "tandem_engine_rounds_by_rows", "Rounds by the rows of their pass, guesses included", labels=("rows",)
    )
    for rows, count in sorted(counters.rounds_by_rows.items()):
        by_rows.add_metric((str(rows),), count)
    yield by_rows
    yield _by_drafter("tandem_engine_drafted", "Guesses checked, by drafter", counters.drafted)
    yield _by_drafter("tandem_engine_accepted", "Guesses that were right, by drafter", counters.accepted)
    yield CounterMetricFamily("tandem_engine_draft_seconds", "Time asking drafters", counters.draft_seconds)
    rounds_in_all = max(1, sum(counters.rounds_by_rows.values()))
    yield GaugeMetricFamily("tandem_engine_rows_a_round", "Mean since the start", counters.rows / rounds_in_all)
    accepted = sum(counters.accepted.values())
    yield GaugeMetricFamily("tandem_engine_accepted_a_round", "Mean since the start", accepted / rounds_in_all)
    yield CounterMetricFamily("tandem_rows", "Rows decoded, guesses included", counters.rows)
    yield CounterMetricFamily("tandem_committed_tokens", "Tokens committed", counters.committed_tokens)
    yield CounterMetricFamily("tandem_prefill_rows", "Prompt rows read", counters.prefill_rows)
    yield CounterMetricFamily("tandem_cached_rows", "Prompt rows found in caches", counters.cached_rows)
    yield CounterMetricFamily("tandem_round_seconds", "Time in rounds", counters.round_seconds)
    yield CounterMetricFamily("tandem_prefill_seconds", "Time reading prompts", counters.prefill_seconds)
    yield CounterMetricFamily("tandem_engine_requests", "Requests the engine took", counters.requests)
    yield CounterMetricFamily("tandem_engine_refused", "Requests the engine refused", counters.refused)
    yield CounterMetricFamily("tandem_engine_cancelled", "Requests that were cancelled", counters.cancelled)
    yield GaugeMetricFamily("tandem_peak_running", "Most requests on slots at once", counters.peak_running)


def _by_drafter(name: str, about: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, about, labels=("drafter",))
    for drafter, count in sorted(counts.items()):
        family.add_metric((drafter,), count)
    return family
