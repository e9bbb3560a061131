"""Soak: many mixed requests against a running server, ending with nothing lost.

    tandem serve --port 8123 &
    python benchmarks/soak.py --url http://127.0.0.1:8123 --requests 500 --pid $!

Requests are ordinary chats, streams that are cut off at a random moment, long prompts, repeated prefixes,
several choices, constrained outputs and plain mistakes. Afterwards: ``/health`` 200, no page held by anybody,
free + cached = total, and (with ``--pid``) no growth of the server's memory over the second half.
Exit code 0 only if all of it holds. Loopback addresses only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while"),
    *("seven", "wizards", "brew", "tea", "near", "old", "stone", "bridge"),
)
GROWTH_LIMIT_BYTES = 16 * 1024**2
"""Allocators keep a few pages more or less; a leak of 64 KiB a request would show as 16 MiB in 250."""


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def chat(rng: random.Random, words: int, **fields: object) -> dict[str, object]:
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": text(rng, words)}],
        "max_tokens": rng.randint(1, 24),
        "temperature": rng.choice([0, 0, 0.8]),
        "seed": rng.randrange(1000),
    }
    return body | fields


async def complete(client: httpx.AsyncClient, rng: random.Random) -> int:
    return (await client.post("/v1/chat/completions", json=chat(rng, rng.randint(2, 40)))).status_code


async def long_prompt(client: httpx.AsyncClient, rng: random.Random) -> int:
    body = chat(rng, rng.randint(200, 700), max_tokens=rng.randint(1, 8))
    return (await client.post("/v1/chat/completions", json=body)).status_code


async def repeated_prefix(client: httpx.AsyncClient, rng: random.Random) -> int:
    shared = text(random.Random(rng.randrange(3)), 220)
    body = {"prompt": f"{shared} {text(rng, 3)}", "max_tokens": 4, "temperature": 0}
    return (await client.post("/v1/completions", json=body)).status_code


async def choices(client: httpx.AsyncClient, rng: random.Random) -> int:
    body = chat(rng, 8, n=3, temperature=1.0, logprobs=True, top_logprobs=2)
    return (await client.post("/v1/chat/completions", json=body)).status_code


async def structured(client: httpx.AsyncClient, rng: random.Random) -> int:
    body = chat(rng, 6, response_format={"type": "json_object"}, max_tokens=30)
    return (await client.post("/v1/chat/completions", json=body)).status_code


async def stream(client: httpx.AsyncClient, rng: random.Random) -> int:
    body = chat(rng, rng.randint(2, 40), stream=True)
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for _ in response.aiter_lines():
            pass
        return response.status_code


async def cut_off(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Hang up after a random number of lines, or a random time into the prefill."""
    body = chat(rng, rng.choice([4, 30, 500]), stream=True, max_tokens=400)
    limit = rng.choice([0, 1, 3, 10])
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if limit == 0:
            await asyncio.sleep(rng.random())
            return response.status_code
        seen = 0
        async for _ in response.aiter_lines():
            seen += 1
            if seen >= limit:
                break
        return response.status_code


async def mistake(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Anything wrong must be a 4xx; returned as 200 so that the summary counts the unexpected."""
    bodies: list[bytes] = [
        b"{",
        json.dumps(chat(rng, 3, temperature=-1)).encode(),
        json.dumps(chat(rng, 3, model="no-such-model")).encode(),
        json.dumps({"messages": "hello"}).encode(),
        json.dumps(chat(rng, 60_000)).encode(),
        json.dumps(chat(rng, 3, logit_bias={"99999999": 5})).encode(),
    ]
    response = await client.post(
        "/v1/chat/completions", content=rng.choice(bodies), headers={"content-type": "application/json"}
    )
    return 200 if 400 <= response.status_code < 500 else 599


KINDS = {
    complete: 6,
    stream: 4,
    cut_off: 4,
    mistake: 3,
    long_prompt: 2,
    repeated_prefix: 2,
    choices: 1,
    structured: 1,
}


async def fill_cache(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Touch every page once: memory that the pool was promised is no growth."""
    for _ in range(200):
        pages = (await client.get("/health")).json()["pages"]
        if pages["free"] < pages["total"] // 16:
            return
        body = {"prompt": text(rng, 900), "max_tokens": 1}
        await client.post("/v1/completions", json=body)


async def worker(
    queue: asyncio.Queue[int], url: str, seed: int, statuses: Counter[str], rss: list[int], pid: int | None
) -> None:
    """Take requests until none is left."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        while True:
            try:
                number = queue.get_nowait()
            except asyncio.QueueEmpty:
                return
            rng = random.Random(seed * 1_000_003 + number)
            kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
            try:
                status = await kind(client, rng)
            except httpx.HTTPError as error:
                statuses[f"{kind.__name__} {type(error).__name__}"] += 1
                continue
            statuses[f"{kind.__name__} {status}"] += 1
            if pid is not None:
                rss.append(psutil.Process(pid).memory_info().rss)


async def idle_health(client: httpx.AsyncClient) -> tuple[int, dict[str, object]]:
    """``/health`` once nothing runs or waits any more (or after 30 s)."""
    for _ in range(60):
        response = await client.get("/health")
        body = response.json()
        if body["running"] == 0 and body["waiting"] == 0 and body["pages"]["live"] == 0:
            break
        await asyncio.sleep(0.5)
    return response.status_code, body


async def soak(url: str, requests: int, concurrency: int, seed: int, pid: int | None) -> dict[str, object]:
    started = time.perf_counter()
    queue: asyncio.Queue[int] = asyncio.Queue()
    for number in range(requests):
        queue.put_nowait(number)
    statuses: Counter[str] = Counter()
    rss: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        await fill_cache(client, random.Random(seed))
    await asyncio.gather(*(worker(queue, url, seed, statuses, rss, pid) for _ in range(concurrency)))
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        status, health = await idle_health(client)
        alive = await client.post("/v1/chat/completions", json=chat(random.Random(1), 3, max_tokens=1))
    pages = health["pages"]
    assert isinstance(pages, dict)
    middle, quarter = len(rss) // 2, max(len(rss) // 4, 1)
    growth = None
    if rss:
        growth = int(statistics.median(rss[-quarter:]) - statistics.median(rss[middle : middle + quarter]))
    unexpected = {name: n for name, n in statuses.items() if name.split()[-1] not in {"200", "429"}}
    result: dict[str, object] = {
        "requests": requests,
        "seconds": round(time.perf_counter() - started, 1),
        "statuses": dict(sorted(statuses.items())),
        "unexpected": unexpected,
        "health_status": status,
        "alive_status": alive.status_code,
        "pages": pages,
        "lost_pages": pages["total"] - pages["free"] - pages["cached"],
        "rss_growth_second_half_bytes": growth,
        "rss_peak_bytes": max(rss, default=None),
    }
    result["ok"] = (
        not unexpected
        and status == 200
        and alive.status_code == 200
        and result["lost_pages"] == 0
        and (growth is None or growth <= GROWTH_LIMIT_BYTES)
    )
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int, help="process of the server, to watch its memory")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    if urlsplit(options.url).hostname not in {"127.0.0.1", "localhost", "::1"}:
        parser.error("a soak goes to a loopback address only")
    try:
        result = asyncio.run(
            soak(options.url, options.requests, options.concurrency, options.seed, options.pid)
        )
    except httpx.ConnectError:
        parser.error(f"nobody answers at {options.url}: start `tandem serve` there, or name another --url")
    line = json.dumps(result, indent=2)
    if options.out:
        options.out.write_text(line + "\n")
    print(line)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
