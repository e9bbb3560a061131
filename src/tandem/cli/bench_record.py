"""``tandem bench --record ID``: a bench's medians as a confirmation of a recipe, with the machine's facts."""

from __future__ import annotations

import getpass
import hashlib
from pathlib import Path
from typing import Any, Literal

from tandem.core.errors import UserError
from tandem.recipes.measurement import Artifact, Confirmation, Machine, Measurement, Metric, Workload
from tandem.recipes.schema import Recipe


def confirmation_of(
    recipe: Recipe, record: dict[str, Any], *, by: str | None, profile: str | None, artifact: Path
) -> Confirmation:
    """The bench's record (as ``tandem bench --json`` prints it) in the catalogue's terms.

    ``by`` defaults to the name of the account. Raises UserError for a record without results.
    """
    author = by or getpass.getuser()
    machine = _machine(record)
    kept = Artifact(path=str(artifact.resolve()), sha256=hashlib.sha256(artifact.read_bytes()).hexdigest())
    measurements = [
        _measurement(recipe, name, result, record, by=author, profile=profile, machine=machine, artifact=kept)
        for name, result in record["results"].items()
        if _kind(name) is not None
    ]
    if not measurements:
        raise UserError(
            "The bench measured nothing that a recipe records", found=", ".join(record["results"])
        )
    return Confirmation(
        by=author,
        date=record["date"],
        outcome="serves",
        profile=profile,
        revision=recipe.revision,
        machine=machine,
        measurements=tuple(measurements),
        note=f"{record['command']} at {record['commit'] or 'an installed version'}",
    )


def _kind(name: str) -> tuple[Metric, Literal["stream", "aggregate"]] | None:
    if name == "decode, 1 stream":
        return "decode", "stream"
    if name.startswith("decode,") and name.endswith("together"):
        return "decode", "aggregate"
    if name.startswith("prefill"):
        return "prefill", "stream"
    if name.startswith("first token"):
        return "ttft", "stream"
    return None


def _measurement(
    recipe: Recipe,
    name: str,
    result: dict[str, Any],
    record: dict[str, Any],
    *,
    by: str,
    profile: str | None,
    machine: Machine,
    artifact: Artifact,
) -> Measurement:
    kind = _kind(name)
    assert kind is not None
    metric, scope = kind
    in_seconds = metric == "ttft"
    streams = next((int(word) for word in name.split() if word.isdigit()), 1) if scope == "aggregate" else 1
    prompt = next((int(word) for word in name.split() if word.isdigit()), None) if "tokens" in name else None
    slug = "-".join(part.strip(",") for part in name.split())
    return Measurement(
        id=f"{recipe.id}-{slug}-{record['date']}",
        metric=metric,
        value=round(result["median"] / (1000 if in_seconds else 1), 4),
        unit="s" if in_seconds else "tok/s",
        stat="median",
        runs=len(result["samples"]),
        scope=scope,
        profile=profile,
        workload=Workload(
            text_class="synthetic",
            prompt_tokens=prompt,
            concurrency=streams,
            cache="repeat" if name.endswith("same prompt") else "cold",
        ),
        machine=machine,
        by=by,
        date=record["date"],
        method="benchmark",
        artifact=artifact,
    )


def _machine(record: dict[str, Any]) -> Machine:
    facts = record.get("machine") or {}
    gpus = facts.get("gpus") or []
    memory = facts.get("memory_bytes")
    return Machine(
        card=gpus[0]["name"] if gpus else "processor",
        cards=len(gpus) or None,
        driver=facts.get("driver"),
        cpu=facts.get("processor"),
        ram_gib=round(memory / 2**30, 1) if memory else None,
        os=facts.get("system"),
    )
