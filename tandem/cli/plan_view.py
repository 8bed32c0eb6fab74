"""A plan for people: what a token and a slot cost, the memory from top to bottom, the roles' answers, the processes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.config import Documents
from tandem.config.documents import Kv
from tandem.contract.plan import Basis, Box, DraftPlan, MemoryItem, Plan
from tandem.planner.arithmetic import slot_bytes
from tandem.planner.diff import Change
from tandem.planner.serving import Serving
from tandem.units import GIB, format_bytes, format_duration

_PIPE_WIDTH = 132  # columns when nobody's terminal says


def print_head(documents: Documents, serving: Serving, box: Box) -> None:
    console = _console()
    total, available = format_bytes(box.memory_total, 2), format_bytes(box.memory_available, 2)
    _say(console, f"{documents.profile_name} on {box.name}: {total}, {available} available, {box.cpus} CPUs\n", "bold")
    sentence = _kv_sentence(documents.profile.kv, serving.element)
    _say(console, f"{sentence} = {serving.bytes_a_token:,} bytes a token")
    console.print(_slot_costs(serving))
    every = max(serving.count, 4)
    rows = every * serving.window * serving.bytes_a_token / GIB
    _say(
        console, f"{every} slots of {serving.window:,} without the pool: {rows:.2f} GiB of KV before the first request"
    )


def print_plan(documents: Documents, plan: Plan) -> None:
    console = _console()
    engine, gateway = plan.engine, plan.gateway
    console.print(_waterfall(plan))
    _say(console, f"the engine's declared peak is {engine.declared_peak / GIB:.2f} GiB, side slots included")
    if plan.placements:
        console.print(_roles(plan))
    console.print(_programs(plan))
    served = (
        f"{engine.family} in {engine.compute} on {engine.device}, {engine.threads} threads, chunks of {engine.chunk}"
    )
    _say(console, f"{served}; `{gateway.model}` at http://{gateway.host}:{gateway.port}/v1")
    _say(console, _drafting(engine.draft))
    console.print(_limits(plan))
    if documents.profile.facts:
        console.print(_facts(documents))
    for warning in (*plan.warnings, *plan.key_warnings):
        _say(console, f"! {warning}", "yellow")
    made = f"plan {plan.id}, from {len(plan.documents)} documents; run directory {plan.paths.run}"
    _say(console, made, "dim")


def print_memory_table(plan: Plan) -> None:
    """What each part takes and what it leaves."""
    _console().print(_waterfall(plan))


def print_change(change: Change, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(change), indent=1) + "\n")
        return
    console = _console()
    _say(console, f"{change.kind}: {_MEANING[change.kind]}", "bold")
    for sentence in change.sentences:
        _say(console, f"  {sentence}")


_MEANING = {
    "none": "the documents would say what they say now",
    "live": "running processes would take the new values, nothing would restart",
    "role": "roles would restart, the engine would not",
    "engine": "processes would drain and restart",
}


def _console() -> Console:
    """No markup and no emoji: a document's words are printed as they are."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def _say(console: Console, text: str, style: str = "") -> None:
    """A sentence on a line of its own, which the terminal may wrap and a pipe may search."""
    console.print(Text(text, style=style), soft_wrap=True)


def _kv_sentence(kv: Kv, element: int) -> str:
    parts = f"(K + V of {kv.heads} heads x {kv.head_dim}"
    parts += f" + indexer key of {kv.indexer_key})" if kv.indexer_key else ")"
    sentence = f"KV: {kv.layers} layers x {parts} x {element} B"
    if kv.drafters:
        sentence += f" + {len(kv.drafters)} drafters {' + '.join(f'{size:,}' for size in kv.drafters)}"
    return sentence + (f" + rotary {kv.rotary}" if kv.rotary else "")


def _slot_costs(serving: Serving) -> Table:
    """What one side slot would take: its window and shorter or full ones, with and without graphs."""
    table = _table("What a side slot takes", "window", "graphs", "rows", "beside them", "in all", "known by", "")
    figures = serving.figures
    switches = (True, False) if figures.graphs.size != figures.plain.size else (serving.graphs,)
    for window in dict.fromkeys((serving.side_window, 8192, serving.window)):
        for graphs in switches:
            mine = window == serving.side_window and graphs == serving.graphs
            figure = figures.graphs if graphs else figures.plain
            constant, basis = (
                (serving.side_constant.bytes, serving.side_constant.basis) if mine else (int(figure.size), figure.basis)
            )
            total = slot_bytes(window, serving.bytes_a_token, constant, pool=False)
            chosen = "these slots" if mine and serving.count > 1 else ""
            chosen += ", rows when written" if chosen and serving.kv_pool else ""
            table.add_row(
                f"{window:,}",
                "on" if graphs else "off",
                f"{window * serving.bytes_a_token / GIB:.3f}",
                f"{constant / GIB:.3f}",
                f"{total / GIB:.1f} GiB",
                str(basis),
                chosen,
                style="bold" if mine else "",
            )
    return table


def _waterfall(plan: Plan) -> Table:
    table = _table("Memory, GiB", "part", "takes", "leaves", "known by", "why")
    table.add_row(
        "the box", "", f"{plan.box.memory_total / GIB:.2f}", str(_box_basis(plan.box)), "MemTotal", style="bold"
    )
    left = plan.box.memory_total
    for item in _grouped(plan.memory):
        left -= item.bytes
        style = "bold" if item.label == "floor" else ""
        table.add_row(
            item.label, f"{item.bytes / GIB:.2f}", f"{left / GIB:.2f}", str(item.basis), item.why, style=style
        )
    table.add_row(
        "left over", "", f"{left / GIB:.2f}", "", "above the floor: page cache, requests, more roles", style="bold"
    )
    return table


def _box_basis(box: Box) -> Basis:
    return Basis.CONFIGURED if box.declared else Basis.MEASURED


def _grouped(items: tuple[MemoryItem, ...]) -> list[MemoryItem]:
    """Side slots that are alike become one line."""
    sides = [item for item in items if item.label.startswith("side slot ")]
    if len(sides) < 2:
        return list(items)
    together = MemoryItem(
        f"{len(sides)} side slots", sum(item.bytes for item in sides), sides[0].basis, f"each {sides[0].why}"
    )
    first = items.index(sides[0])
    return [*items[:first], together, *items[first + len(sides) :]]


def _roles(plan: Plan) -> Table:
    table = _table("Roles, in the order they ask", "role", "model", "claim", "leaves", "answer")
    models = {role.name: role.model for role in plan.roles}
    for placement in plan.placements:
        table.add_row(
            placement.role,
            models[placement.role],
            f"{placement.claim / GIB:.2f}",
            f"{placement.after / GIB:.2f}",
            placement.sentence,
            style="" if placement.admitted else "yellow",
        )
    return table


def _programs(plan: Plan) -> Table:
    table = _table("Processes, in start order", "process", "command", "ready within", "stops within", "fingerprint")
    for program in plan.programs:
        table.add_row(
            program.name,
            " ".join(program.command[1:-2]),  # without where the plan lies
            format_duration(round(program.start_timeout)),
            format_duration(round(program.stop_timeout)),
            program.fingerprint,
        )
    return table


def _drafting(draft: DraftPlan | None) -> str:
    if draft is None:
        return "drafting: off, every round writes one token a slot"
    who = []
    if (lookup := draft.lookup) is not None:
        stored = "this request alone" if lookup.scope == "request" else f"a store of {lookup.scope}"
        stored += " that learns nothing" if lookup.readonly else ""
        who.append(f"lookup in {stored}" + (f" and {lookup.corpus}" if lookup.corpus else ""))
    who += ["the model's own head where its weights carry one"] if draft.mtp else []
    who += [f"{draft.model.weights} in {draft.model.compute}"] if draft.model is not None else []
    return f"drafting: up to {draft.nodes} guesses a slot and round, by {', '.join(who) or 'what a grammar forces'}"


def _limits(plan: Plan) -> Table:
    table = _table("Limits, changed without a restart", "limit", "value", "limit", "value")
    limits, floors = plan.live.limits, plan.live.floors
    pairs = [
        ("request timeout", format_duration(limits.request_timeout)),
        ("floor", format_bytes(floors.floor)),
        ("queue timeout", format_duration(limits.queue_timeout)),
        ("hard floor", format_bytes(floors.hard_floor)),
        ("drain timeout", format_duration(limits.drain_timeout)),
        ("margin for roles", format_bytes(floors.margin)),
        ("longest queue", f"{limits.max_queue:,}"),
        ("largest request", format_bytes(limits.max_body)),
        ("keepalive", format_duration(limits.keepalive)),
        ("tokens when unsaid", f"{limits.default_max_tokens:,}"),
        ("at once, of one key", _or_any(limits.per_key_running)),
        ("a minute, of one key", _or_any(limits.per_key_requests)),
    ]
    for (left, first), (right, second) in zip(pairs[::2], pairs[1::2], strict=True):
        table.add_row(left, first, right, second)
    return table


def _or_any(limit: int | None) -> str:
    return "any number" if limit is None else f"{limit:,}"


def _facts(documents: Documents) -> Table:
    table = _table("Known about this profile", "what", "value", "known by")
    for fact in documents.profile.facts:
        table.add_row(fact.what, fact.value, str(fact.basis))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        numeric = column in ("window", "rows", "beside them", "in all", "takes", "leaves", "claim")
        table.add_column(column, justify="right" if numeric else "left", header_style="dim", overflow="fold")
    return table
