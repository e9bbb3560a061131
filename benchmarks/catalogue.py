"""Server time of the catalogue's pages, for the shipped recipes and for many made-up ones.

    python benchmarks/catalogue.py [--recipes 100000] [--repeats 9] [--out benchmarks/results/catalogue]

Every page is asked for through the application itself (routing, query, SQLite, template), in this process
and without a network. The ceiling to compare with is counting alone: one pass over every facet's values.
The store is built once in a temporary folder. Writes PREFIX.json and PREFIX.md; standard output is the JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

import tandem
from tandem.recipes.build import rebuild_store
from tandem.recipes.catalogue import Catalogue
from tandem.recipes.facets import facets_of
from tandem.recipes.fit import CardFit, FitReport, FitSubject, FitTerm, Hardware
from tandem.recipes.index import CatalogueIndex
from tandem.recipes.register import Geometry
from tandem.recipes.store import Store
from tandem.recipes.synthetic import synthetic_models, synthetic_recipes
from tandem.server.recipes_web.routes import recipes_app

TODAY = dt.date(2026, 11, 1)
BARS_MS = {"made-up": 150.0, "shipped": 15.0}
PAGES = {
    "all": "/recipes",
    "one value": "/recipes?engine=vllm",
    "four facets": "/recipes?cards=2..=4&engine=exllamav3&kv=q8&status=reported",
    "a profile and a number": "/recipes?kv=q8&decode_tps=50..&decode.class=hard",
    "ranges and gaps": "/recipes?tested_on=2026&power_w=~none&context=100000..",
    "other": "/recipes?quant_repo=~other&tested_by.not=person3",
    "search": "/recipes?q=recipe+42",
    "sorted, last page but one": "/recipes?sort=-decode_tps&limit=250",
    "fits": "/recipes?hw=2x64gib&fits=fits",
    "profiles": "/recipes?grain=profile&kv=q8",
    "numbers": "/recipes?grain=measurement&metric=decode",
    "all as JSON": "/recipes.json",
}


class Threshold:
    """A calculator of no meaning: what more than so many tokens need does not fit."""

    def fit(self, subject: FitSubject, geometry: Geometry | None, hardware: Hardware) -> FitReport:
        tokens = subject.request_tokens
        if tokens is None:
            return FitReport("unknown", "not stated")
        used, usable = tokens * 200_000, hardware.usable_bytes[0]
        card = CardFit("cuda:0", usable, used, used, used, (FitTerm("cache", used, "estimated"),))
        return FitReport("fits" if used <= usable else "no", "by the threshold", (card,))


async def measure(catalogue: Catalogue, repeats: int) -> dict[str, dict[str, float]]:
    """Median and minimum milliseconds of each page, by the clock and of processor time.

    The first call, which may build an index, is apart.
    """
    transport = httpx.ASGITransport(recipes_app(catalogue))
    results: dict[str, dict[str, float]] = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://catalogue") as client:
        for name, path in PAGES.items():
            times, busy = [], []
            for _ in range(repeats + 1):
                start, cpu = time.perf_counter(), time.process_time()
                response = await client.get(path)
                times.append((time.perf_counter() - start) * 1e3)
                busy.append((time.process_time() - cpu) * 1e3)
                assert response.status_code == 200, (name, response.status_code, response.text[:300])
            results[name] = {
                "first_ms": round(times[0], 1),
                "median_ms": round(statistics.median(times[1:]), 1),
                "min_ms": round(min(times[1:]), 1),
                "cpu_ms": round(statistics.median(busy[1:]), 1),
                "kib": round(len(response.content) / 1024, 1),
            }
            print(f"{name:28} {results[name]}", file=sys.stderr)
    return results


def counting_ms(catalogue: Catalogue, repeats: int) -> float:
    """One pass over every facet's values of all recipes: what no page can be quicker than without a cache."""
    grain = CatalogueIndex(catalogue.store).grain("recipe")
    columns = [grain.column(facet, False) for facet in facets_of("recipe") if facet.key != "fits"]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for column in columns:
            np.bincount(column.codes, minlength=column.code_count)
        times.append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(times), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipes", type=int, default=100_000)
    parser.add_argument("--store", type=Path, help="keep the store here, and use it again")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/catalogue"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.store or Path(folder) / "catalogue.sqlite3"
        store = Store(path)
        start = time.perf_counter()
        state = f"made up, {arguments.recipes}"
        if store.meta("state") != state:
            recipes = synthetic_recipes(arguments.recipes, 1)
            rebuild_store(store, recipes, synthetic_models(40), (), TODAY.toordinal(), state)
            built = f"built in {time.perf_counter() - start:.0f} s"
        else:
            built = "built by an earlier run"
        print(built, file=sys.stderr)
        many = Catalogue(None, store=store, today=TODAY, calculator=Threshold())
        start = time.perf_counter()
        many.recipe_ids()
        loaded_s = time.perf_counter() - start
        record = {
            "what": "catalogue pages, server time",
            "commit": _output("git", "rev-parse", "--short", "HEAD"),
            "command": "python " + " ".join(sys.argv),
            "tandem": tandem.__version__,
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": [round(value, 2) for value in os.getloadavg()],
            "recipes": arguments.recipes,
            "repeats": arguments.repeats,
            "store": built,
            "store_mib": round(path.stat().st_size / 2**20, 1),
            "index_loaded_s": round(loaded_s, 1),
            "counting_alone_ms": counting_ms(many, arguments.repeats),
            "made_up": asyncio.run(measure(many, arguments.repeats)),
            "shipped": asyncio.run(
                measure(Catalogue(None, today=TODAY, calculator=Threshold()), arguments.repeats)
            ),
            "peak_resident_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "bars_ms": BARS_MS,
        }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    arguments.out.with_suffix(".md").write_text(table(record))
    print(json.dumps(record))


def table(record: dict[str, object]) -> str:
    made_up, shipped = record["made_up"], record["shipped"]
    assert isinstance(made_up, dict)
    assert isinstance(shipped, dict)
    lines = [
        f"# Catalogue pages, server time ({record['recipes']:,} made-up recipes)",
        "",
        f"{record['cores']} cores, Python {record['python']}, commit {record['commit']}, median of "
        f"{record['repeats']}; load average at the start {record['load_average']}.",
        f"Counting every facet alone: {record['counting_alone_ms']} ms. Store: {record['store_mib']} MiB, "
        f"{record['store']}, index loaded in {record['index_loaded_s']} s, "
        f"{record['peak_resident_mib']} MiB resident at the peak.",
        "Processor time is what a page costs where other programs share the cores; the load average tells.",
        "",
        "| page | made-up: ms | processor ms | KiB | shipped: ms | processor ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in made_up.items():
        few = shipped[name]
        lines.append(
            f"| {name} | {row['median_ms']} | {row['cpu_ms']} | {row['kib']} "
            f"| {few['median_ms']} | {few['cpu_ms']} |"
        )
    lines += ["", f"Bars: {BARS_MS['made-up']:.0f} ms made-up, {BARS_MS['shipped']:.0f} ms shipped.", ""]
    return "\n".join(lines)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
