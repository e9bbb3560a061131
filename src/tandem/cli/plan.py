"""``tandem plan``: what fits, before anything is downloaded or loaded."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from tandem.cli.console import output, print_json
from tandem.cli.flags import JsonFlag
from tandem.core.errors import SettingsError
from tandem.core.plan import MemoryTerm, format_bytes

_BAR_CELLS = 12


def plan(
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="`glm-5.3-flash`, a folder, a GGUF file, `org/name[@revision]` or `demo`."
        ),
    ] = "glm-5.3-flash",
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="Plan this recipe of the catalogue instead, with our engine."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="A profile of the recipe.", show_default="its default")
    ] = None,
    cards: Annotated[
        str, typer.Option("--cards", help="`2x64GiB`, `64GiB,48GiB`, `cuda:0=60GiB,cuda:1=62GiB`.")
    ] = "2x64GiB",
    context: Annotated[
        str | None,
        typer.Option(
            "--context", help="Tokens, as `393216`, `384k` or `1m`.", show_default="the model's own"
        ),
    ] = None,
    kv: Annotated[
        str | None,
        typer.Option("--kv", help="Cache format: fp16, q8, q6, q4.", show_default="the model's own"),
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, help="Sequences at once.", show_default="1")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option("--drafter", help="none, dflash2 or mtp.", show_default="none")
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option("--chunk", min=16, help="Prompt tokens computed at once.", show_default="2048 on GPUs"),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Layers per card, as `24,21`.", show_default="the best cut")
    ] = None,
    max_context: Annotated[
        bool, typer.Option("--max-context", help="Print only the longest context that fits.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say it in sentences, term by term.")] = False,
    json: JsonFlag = False,
) -> int:
    """Say what fits, card by card, and how far the context reaches. Nothing is loaded.

    Exit code: 0 fits, 3 marginal (fits only by the expected figures), 4 does not fit, 5 cannot be said.

    `tandem plan --recipe glm53-flash-2x64-layer-split --profile q8_1m`

    `tandem plan --cards 2x64GiB --context 384k --kv q8 --drafter dflash2`

    `tandem plan --max-context --cards 64GiB,48GiB,24GiB`
    """
    from tandem.api.plan import PlanQuestion, answer
    from tandem.api.plan_recipe import answer_recipe, with_peer
    from tandem.core.options import parse_tokens
    from tandem.core.settings import read_environment
    from tandem.planner.fit import explain as sentences
    from tandem.planner.fit import parse_split
    from tandem.planner.hardware import parse_hardware

    question = PlanQuestion(
        model=model,
        cards=parse_hardware(cards),
        context_tokens=parse_tokens(context, "--context") if context else None,
        kv_format=kv,
        slots=slots,
        drafter=drafter,
        chunk_tokens=chunk,
        split=parse_split(split) if split else None,
    )
    if profile is not None and recipe is None:
        raise SettingsError("--profile belongs to a recipe", remedy="--recipe ID --profile NAME")
    environment = read_environment()
    if recipe is not None:
        found = answer_recipe(recipe, profile, question, environment)
    else:
        found = with_peer(answer(question, environment), question)
    report = found.report
    if json:
        facts = {"model": found.subject, "kv": found.kv_format, "sized_from": found.sized_from}
        print_json(facts | {"peer": found.peer, "reason": found.reason} | report.to_dict())
    elif max_context:
        print(report.max_context_tokens)
    elif explain:
        last = [f"Weights are sized from {found.sized_from}."] if found.reason is None else []
        print("\n".join([*sentences(report), *last, *filter(None, [found.reason, found.peer])]))
    elif found.reason is not None:
        output().print(f"{found.subject}: unknown; {found.reason}.", markup=False, soft_wrap=True)
    else:
        _print_table(found.subject, found.kv_format, found.sized_from, report)
        if found.peer:
            output().print(f"Beside it, {found.peer}.", markup=False, soft_wrap=True)
    return report.exit_code


def _shown_term(term: MemoryTerm | None) -> str:
    if term is None:
        return "–"
    return ("" if term.quality == "exact" else "~") + format_bytes(term.bytes)


def _bar(share: float) -> str:
    filled = round(min(share, 1.0) * _BAR_CELLS)
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _print_table(model: str, kv_format: str, sized_from: str, report: object) -> None:
    from tandem.planner.fit import FitReport

    assert isinstance(report, FitReport)
    table = Table(
        title=f"{model}, {report.context_tokens:,} tokens, KV {kv_format}", title_justify="left", box=None
    )
    # A row for every term: two to four cards then fit a terminal of 80 columns.
    table.add_column("")
    for card in report.cards:
        table.add_column(card.card, justify="right")
    table.add_row("layers", *(f"{card.layers[0]}–{card.layers[1] - 1}" for card in report.cards))
    for name in dict.fromkeys(term.name for card in report.cards for term in card.terms):
        terms = [next((term for term in card.terms if term.name == name), None) for card in report.cards]
        table.add_row(name.replace("_", " "), *map(_shown_term, terms))
    table.add_row("used", *(format_bytes(card.expected_bytes) for card in report.cards), style="bold")
    table.add_row("of", *(format_bytes(card.budget_bytes) for card in report.cards))
    table.add_row("left", *(format_bytes(card.left_bytes) for card in report.cards))
    table.add_row("", *(_bar(card.expected_bytes / card.budget_bytes) for card in report.cards))
    out = output()
    out.print(table)
    verdict = {"fits": "It fits", "marginal": "Marginal", "no": "It does not fit", "unknown": "Unknown"}
    out.print(
        f"{verdict[report.verdict]}. Tightest card: {report.limiting_card}. "
        f"Longest context: {report.max_context_tokens:,} tokens."
    )
    if report.embedding_on_host:
        out.print("The embedding table stays in host memory, where the card reads a row a token.")
    for lever in report.levers:
        out.print(f"  {lever.change} reaches {lever.context_tokens:,} tokens", markup=False)
    out.print(f"~ estimated; weights sized from {sized_from}.", markup=False)
