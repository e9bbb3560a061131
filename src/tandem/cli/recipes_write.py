"""``tandem recipes lint | add | confirm | fit``: checking, extending and judging recipes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.console import notices, output, print_json
from tandem.cli.flags import JsonFlag
from tandem.cli.recipes_read import HardwareFlag, RecipeId, open_catalogue

if TYPE_CHECKING:
    from tandem.recipes.fit import FitReport, FitSubject
    from tandem.recipes.lint import Finding

EXIT_FINDINGS = 1


def lint(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Recipe files; none = the whole catalogue."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    notes: Annotated[bool, typer.Option("--notes", help="Print gaps worth filling, too.")] = False,
    json: JsonFlag = False,
) -> int:
    """Check recipes for contradictions and for what may mislead. Exit code 1 if there is an error.

    `tandem recipes lint my-recipe.yaml`
    """
    from tandem.core.settings import read_environment
    from tandem.recipes.files import load_catalogue
    from tandem.recipes.lint import lint as lint_catalogue
    from tandem.recipes.userdata import lint_file

    data_dir = read_environment().data_dir
    today = dt.date.today().toordinal()
    if files:
        findings = [finding for path in files for finding in lint_file(path, data_dir, today)]
    else:
        findings = lint_catalogue(load_catalogue(data_dir), today)
    shown = [finding for finding in findings if notes or finding.level != "note"]
    if json:
        print_json([_finding(finding) for finding in shown])
    else:
        for finding in shown:
            output().print(finding.text(), markup=False)
        notices().print(_summary(findings), markup=False)
    bad = {"error", "warning"} if strict else {"error"}
    return EXIT_FINDINGS if any(finding.level in bad for finding in findings) else 0


def _finding(finding: Finding) -> dict[str, object]:
    return {key: getattr(finding, key) for key in ("file", "line", "field", "level", "rule", "message")}


def _summary(findings: Sequence[Finding]) -> str:
    counts = {
        level: sum(finding.level == level for finding in findings) for level in ("error", "warning", "note")
    }
    return ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())


def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recipe as YAML.", show_default=False)],
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite your recipe of the same id.")] = False,
) -> None:
    """Check a recipe and keep it beside the shipped ones, where no upgrade touches it.

    `tandem recipes add my-recipe.yaml`
    """
    from tandem.core.settings import read_environment
    from tandem.recipes.userdata import add_recipe

    today = dt.date.today().toordinal()
    recipe, findings = add_recipe(file, read_environment().data_dir, today, replace=replace)
    for finding in findings:
        if finding.level != "note":
            notices().print(finding.text(), markup=False)
    notices().print(f"Added {recipe.id}: {recipe.title}", markup=False)
    print(recipe.id)


def confirm(
    recipe_id: RecipeId,
    by: Annotated[str, typer.Option("--by", help="Who confirms; a name or handle.", show_default=False)],
    outcome: Annotated[str, typer.Option("--outcome", help="boots, serves, number, fails or disputes.")],
    profile: Annotated[str | None, typer.Option("--profile", help="The profile that was run.")] = None,
    card: Annotated[
        str | None, typer.Option("--card", help="The card's model, as the recipe writes it.")
    ] = None,
    cards: Annotated[int | None, typer.Option("--cards", min=1, help="How many cards.")] = None,
    date: Annotated[
        str | None, typer.Option("--date", help="The day, as 2026-10-20.", show_default="today")
    ] = None,
    author: Annotated[bool, typer.Option("--author", help="You are the recipe's author.")] = False,
    note: Annotated[str | None, typer.Option("--note", help="What a reader should know.")] = None,
) -> None:
    """Write down that a recipe did, or did not, do what it says on your machine.

    `tandem recipes confirm ID --by me --outcome serves --profile q8_384k --card "CMP 170HX" --cards 2`
    """
    from pydantic import ValidationError

    from tandem.core.errors import SettingsError
    from tandem.core.settings import read_environment
    from tandem.recipes.measurement import Confirmation, Machine
    from tandem.recipes.profiles import named_profile
    from tandem.recipes.userdata import add_confirmation

    recipe = open_catalogue().entry(recipe_id).recipe
    if profile is not None:
        named_profile(recipe, profile)
    fields: dict[str, Any] = {
        "by": by,
        "date": date or dt.date.today().isoformat(),
        "outcome": outcome,
        "profile": profile,
        "revision": recipe.revision,
        "machine": Machine(card=card, cards=cards),
        "independent": not author,
        "note": note,
    }
    try:
        confirmation = Confirmation(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SettingsError(f"--{first['loc'][0]}: {first['msg']}", found=str(first["input"])) from error
    print(add_confirmation(recipe_id, confirmation, read_environment().data_dir))


def fit(
    recipe_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A recipe's id.")] = None,
    hw: HardwareFlag = None,
    every: Annotated[bool, typer.Option("--all", help="Judge every recipe.")] = False,
    profile: Annotated[str | None, typer.Option("--profile", help="Only this profile.")] = None,
    context: Annotated[
        str | None, typer.Option("--ctx", "--context", help="Another context: `384k`.")
    ] = None,
    kv: Annotated[str | None, typer.Option("--kv", help="Another cache format.")] = None,
    slots: Annotated[int | None, typer.Option("--slots", min=1, help="Another number of requests.")] = None,
    json: JsonFlag = False,
) -> int:
    """Say whether a recipe's profiles fit your cards, before any download.

    Exit code: 0 fits, 3 marginal, 4 does not fit, 5 not known; of the profile asked for, else of the default
    one, with `--all` the best of all.

    `tandem recipes fit glm53-flash-2x64-layer-split --hw 2x64GiB`

    `tandem recipes fit --all --hw 2x64GiB:usable=63.4 --json`
    """
    from dataclasses import asdict, replace

    from tandem.cli.recipes_print import print_fits
    from tandem.core.errors import SettingsError
    from tandem.core.options import parse_tokens
    from tandem.core.plan import EXIT_CODES
    from tandem.recipes.fit import fit_subject, parse_hardware
    from tandem.recipes.profiles import named_profile

    if hw is None:
        raise SettingsError("Which cards?", remedy="--hw 2x64GiB")
    if (recipe_id is None) != every:
        raise SettingsError("One recipe's id, or --all", remedy="tandem recipes fit --all --hw 2x64GiB")
    hardware = parse_hardware(hw)
    tokens = parse_tokens(context, "--context") if context is not None else None
    catalogue = open_catalogue()

    def changed(subject: FitSubject) -> FitSubject:
        given = {"cache_tokens": tokens, "request_tokens": tokens, "kv": kv, "slots": slots}
        return replace(subject, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]

    judged: list[tuple[str, str, FitReport]] = []
    decisive: list[FitReport] = []
    for identity in catalogue.recipe_ids() if recipe_id is None else (recipe_id,):
        recipe = catalogue.entry(identity).recipe
        chosen = named_profile(recipe, None if every else profile)
        for item in recipe.profiles if profile is None else (chosen,):
            report = catalogue.fit_of(changed(fit_subject(recipe, item)), hardware)
            judged.append((identity, item.name, report))
            if every or item.name == chosen.name:
                decisive.append(report)
    if json:
        print_json([{"recipe": name, "profile": item} | asdict(report) for name, item, report in judged])
    else:
        print_fits(output(), judged, hardware.text())
    return min(EXIT_CODES[report.verdict] for report in decisive)
