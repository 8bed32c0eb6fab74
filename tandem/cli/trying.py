"""`verify` and `calibrate`: the model of an appliance, loaded here and tried, with nothing else running."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.documents import HERE, Appliance, Json, Profile, Set
from tandem.errors import CannotStart, ExitStatus

if TYPE_CHECKING:
    from tandem.contract.plan import Plan
    from tandem.draft.drafting import Drafting
    from tandem.engine.verify import Difference, Outcome, Report
    from tandem.model.interface import Model


def register(app: typer.Typer) -> None:
    app.command()(verify)
    app.command()(calibrate)


def verify(
    appliance: Appliance = HERE,
    profile: Profile = None,
    overrides: Set = None,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, max=300, help="Conversations; every third is drawn too.")
    ] = 30,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Of each answer, at most.")] = 256,
    as_json: Json = False,
) -> None:
    """Write the same answers with and without guesses, on one, two and four slots, for new conversations and for such
    that come back from slots, memory or disk, and compare them token for token.

    Exit status 1 when anything differs that is no near tie.
    """
    plan = _plan(appliance, overrides, profile)
    model = _load(plan)
    from tandem.cli.try_view import Bar
    from tandem.engine.verify import verify as run
    from tandem.engine.verify_cases import cases_of

    cases = cases_of(Path(plan.engine.weights), prompts, tokens)
    with _apart(plan) as plan, Bar() as bar:
        report = run(model, plan, cases, lambda: _drafting(plan, model), bar.show)
    typer.echo(_json(report) if as_json else "\n".join(_lines(report)))
    raise typer.Exit(ExitStatus.GOOD if report.passed else ExitStatus.OUR_BUG)


def calibrate(appliance: Appliance = HERE, profile: Profile = None, overrides: Set = None) -> None:
    """Measure what a pass of more rows costs on this machine, so that drafting prices its guesses from the first round.

    Let nothing else run meanwhile. Without it the engine learns the prices while it serves.
    """
    import time

    plan = _plan(appliance, overrides, profile)
    if plan.engine.draft is None:
        raise CannotStart("drafting is off: nobody would read the prices", "write `draft: on` in the document")
    model = _load(plan)
    from tandem.cli.try_view import Bar
    from tandem.draft.price import write_prices
    from tandem.engine.calibrate import calibrate as run
    from tandem.engine.drafters import facts_of

    path = Path(plan.engine.draft.prices)
    with Bar() as bar:
        prices = run(
            model,
            plan.engine.slots[0].window,
            plan.engine.chunk,
            time.perf_counter,
            lambda done, total: bar.show("measuring passes", done, total),
        )
    try:
        write_prices(path, facts_of(plan.engine), prices)
    except OSError as error:
        raise CannotStart(f"the prices cannot be written to {path}: {error.strerror}") from error
    for context in sorted({price.context for price in prices}):
        row = "  ".join(f"{price.rows}: {price.ms:.1f}" for price in prices if price.context == context)
        typer.echo(f"context {context:>7,}, rows: ms   {row}")
    typer.echo(f"written to {path}; a running engine reads it at its next start")


def _plan(appliance: Path, overrides: list[str] | None, profile: str | None) -> Plan:
    from tandem.cli.documents import ensure_weights
    from tandem.config import load
    from tandem.memory.reading import read_box
    from tandem.planner.compile import compile_plan

    documents = load(appliance, [*(overrides or ()), *([] if profile is None else [f"profile={profile}"])])
    ensure_weights(documents)
    return compile_plan(documents, read_box())


def _load(plan: Plan) -> Model:
    """As the engine's process would."""
    program = plan.program("engine")
    assert program is not None
    os.environ.update(program.environment)  # read when torch is imported, which is now
    from tandem.cli.try_view import Bar
    from tandem.engine.device import load_model

    with Bar() as bar:
        return load_model(plan, lambda share: bar.show("loading", round(share * 100), 100))


def _drafting(plan: Plan, model: Model) -> AbstractContextManager[Drafting]:
    from tandem.engine.drafters import drafting_of

    return drafting_of(plan.engine, model)


@contextmanager
def _apart(plan: Plan) -> Iterator[Plan]:
    """With a lookup store of its own: what is tried here is nothing to remember."""
    import msgspec

    draft = plan.engine.draft
    if draft is None or draft.lookup is None:
        yield plan
        return
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        lookup = msgspec.structs.replace(draft.lookup, path=folder)
        draft = msgspec.structs.replace(draft, lookup=lookup)
        yield msgspec.structs.replace(plan, engine=msgspec.structs.replace(plan.engine, draft=draft))


# --- what is shown ----------------------------------------------------------------------------------------------


def _lines(report: Report) -> Iterator[str]:
    coming_back = sum(outcome.mode.kept is not None for outcome in report.outcomes)
    yield (
        f"{report.requests} requests in each of {len(report.outcomes) - coming_back} modes, "
        f"{report.returning} conversations in each of {coming_back} in which they come back"
    )
    for outcome in report.outcomes:
        yield _outcome(outcome)
    for difference in report.differences:
        yield _difference(difference)
    for outcome in report.outcomes:
        yield from (f"FAILED in {outcome.mode}: {failure}" for failure in outcome.failures)
    yield _verdict(report)


def _verdict(report: Report) -> str:
    if not report.passed:
        wrong = [each.mode for each in report.differences if not each.is_near_tie]
        causes = [
            *(["guesses, or requests beside each other,"] if any(mode.kept is None for mode in wrong) else []),
            *(["rows that conversations come back to"] if any(mode.kept is not None for mode in wrong) else []),
        ]
        return f"not the same: {' and '.join(causes)} change what is written" if causes else "requests failed"
    same = "the same but for near ties" if report.differences else "the same in every mode, token for token"
    untried = sum(not outcome.is_tried for outcome in report.outcomes)
    return f"{same}; {untried} modes were not tried, which more `--prompts` may do" if untried else same


def _outcome(outcome: Outcome) -> str:
    rounds = max(1, outcome.rounds)
    back = f", {outcome.resumed:,} of {outcome.prompts:,} prompt tokens not read again" if outcome.mode.kept else ""
    guesses = f"{outcome.accepted:,} of {outcome.drafted:,} guesses right" if outcome.drafted else "no guesses"
    apart = sum(not each.is_near_tie for each in outcome.differences)
    verdict = f"{len(outcome.differences)} differ, {apart} of them not near ties" if outcome.differences else "equal"
    if not outcome.is_tried:
        verdict += ", but no two of them together" if outcome.requests else ", as nothing was asked"
    return (
        f"  {outcome.mode!s:<34} {outcome.tokens:>7,} tokens in {outcome.rounds:>6,} rounds, "
        f"{outcome.rows / rounds:4.1f} rows and {outcome.accepted / rounds:4.2f} accepted a round, "
        f"{guesses}{back}: {verdict}"
    )


def _difference(difference: Difference) -> str:
    kind = "near tie" if difference.is_near_tie else "DIFFERENT"
    return (
        f"{kind}: `{difference.request}` in {difference.mode}, token {difference.position}: "
        f"{difference.written} instead of {difference.expected}, which led by {difference.lead:.4g} "
        f"(the two best by {difference.gap:.4g}; rounding is {difference.tolerance:.4g})"
    )


def _json(report: Report) -> str:
    return json.dumps({"passed": report.passed, **asdict(report)}, indent=1)
