"""How ``tandem recipes`` prints: tables for people; JSON is made elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.core.plan import format_bytes
from tandem.recipes.catalogue import Entry
from tandem.recipes.compare import Difference
from tandem.recipes.drilldown import FacetView
from tandem.recipes.facets import LABELS, Facet
from tandem.recipes.facts import shown, workload_text
from tandem.recipes.fit import FitReport
from tandem.recipes.profiles import effective_profile
from tandem.recipes.query import Query
from tandem.recipes.status import number_standing

_GAP = "–"


def print_listing(console: Console, query: Query, rows: Sequence[dict[str, Any]], total: int) -> None:
    columns = {
        "recipe": ("id", "model", "hardware", "context", "decode", "status"),
        "profile": ("id", "profile", "context", "kv", "slots", "drafter"),
        "measurement": ("id", "metric", "number", "profile", "workload", "by", "when"),
    }[query.grain]
    table = _table(*columns)
    for row in rows:
        cells = [str(row[name]) if row[name] else _GAP for name in columns]
        if query.grain == "recipe" and row["decode_deviations"]:
            cells[4] += f" ({', '.join(row['decode_deviations'])})"
        table.add_row(*map(Text, cells))
    console.print(table)
    console.print(f"{len(rows)} of {total:,}", markup=False)


def print_facet_names(console: Console, facets: Iterable[Facet]) -> None:
    table = _table("key", "facet", "kind", "unit")
    for facet in facets:
        table.add_row(facet.key, facet.label, facet.kind, facet.unit or "")
    console.print(table)


def print_facet(console: Console, view: FacetView) -> None:
    table = _table("id", view.facet.label, "recipes")
    for value in view.values:
        mark = " (chosen)" if value.selected else ""
        table.add_row(Text(value.id), Text(value.label + mark), f"{value.count:,}")
    console.print(table)
    console.print(f"{view.unknown:,} of {view.total:,} state none", markup=False)


def print_recipe(console: Console, entry: Entry, evidence: bool) -> None:
    recipe = entry.recipe
    standing = ", ".join(LABELS[name] for name in (entry.standing.status, *entry.standing.overlays))
    console.print(Text(recipe.title, style="bold"))
    console.print(Text(recipe.summary))
    facts = _table("", "")
    facts.show_header = False
    for label, text in (
        (
            "status",
            standing
            + (f" (the source says {recipe.status_claimed.text()})" if recipe.status_claimed.text() else ""),
        ),
        ("model", entry.model.name),
        ("weights", recipe.quant.label.text() or recipe.quant.repo.text()),
        ("revision", recipe.quant.revision.text()),
        ("engine", recipe.engine.label.text() or shown("engine", recipe.engine.name)),
        ("cards", f"{recipe.hardware.count.text()} × {recipe.hardware.card.text()}"),
        ("layout", recipe.topology.label or shown("layout", recipe.topology.layout)),
        ("memory per card", recipe.vram.text()),
    ):
        facts.add_row(label, Text(text or _GAP))
    console.print(facts)
    profiles = _table("profile", "longest request", "cache", "at once", "speculation", "notes")
    for profile in recipe.profiles:
        full = effective_profile(recipe, profile)
        marks = [word for word, on in (("default", profile.default), ("untested", profile.untested)) if on]
        profiles.add_row(
            profile.name,
            Text(full.max_request_tokens.text("tokens") or _GAP),
            Text(shown("kv", full.kv) or _GAP),
            Text(full.slots.text() or _GAP),
            Text(LABELS.get(full.drafter or "", full.drafter or _GAP)),
            Text(", ".join(marks)),
        )
    console.print(profiles)
    if recipe.measurements:
        numbers = _table("metric", "number", "configuration", "workload", "by", "when", "source")
        for item in recipe.measurements:
            changed = f" (changed: {', '.join(item.deviations)})" if item.deviations else ""
            numbers.add_row(
                LABELS.get(item.metric, item.metric),
                Text(item.text() or _GAP),
                Text((item.profile or _GAP) + changed),
                Text(workload_text(item) or _GAP),
                Text(item.by or _GAP),
                Text(item.when or _GAP),
                Text(item.source or _GAP),
            )
        console.print(numbers)
    for issue in recipe.issues:
        console.print(Text(f"issue: {issue.text}"))
    if evidence:
        _print_evidence(console, entry)


def _print_evidence(console: Console, entry: Entry) -> None:
    recipe = entry.recipe
    for text in entry.standing.missing:
        console.print(Text(f"missing for Proven: {text}"))
    for text in entry.standing.because:
        console.print(Text(f"because: {text}"))
    for item in recipe.confirmations:
        said = item.outcome or "not told what"
        console.print(Text(f"confirmation: {item.by} on {item.date}: {said}. {item.note or ''}".rstrip()))
    for number in recipe.measurements:
        console.print(
            Text(f"number {number.id}: {number_standing(recipe, number)}. {number.note or ''}".rstrip())
        )
    for source in recipe.sources:
        parts = [source.title, source.url, source.author, source.posted, source.commit, source.licence]
        console.print(Text(f"source {source.id}: " + ", ".join(part for part in parts if part)))
    console.print(Text(f"file: {entry.file}"))


def print_difference(console: Console, lines: Sequence[Difference], left: str, right: str) -> None:
    table = _table("", left, right)
    for section, held in groupby(lines, key=lambda line: line.section):
        table.add_row(Text(section, style="bold"))
        for line in held:
            table.add_row(line.label, Text(line.left or _GAP), Text(line.right or _GAP))
    console.print(table)


def print_fits(console: Console, judged: Sequence[tuple[str, str, FitReport]], hardware: str) -> None:
    table = _table("recipe", "profile", "verdict", "fullest card", "reason")
    for recipe_id, profile, report in judged:
        fullest = max(report.cards, key=lambda card: card.expected_bytes - card.usable_bytes, default=None)
        used = (
            f"{fullest.name}: {format_bytes(fullest.expected_bytes)} of {format_bytes(fullest.usable_bytes)}"
            if fullest is not None
            else _GAP
        )
        helps = f" Would help: {'; '.join(report.levers)}." if report.levers else ""
        table.add_row(recipe_id, profile, report.verdict, used, Text(report.reason.rstrip(".") + "." + helps))
    console.print(f"On {hardware}:", markup=False)
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    return table
