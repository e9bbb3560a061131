"""A drilldown query: read from URL parameters, written back as the one canonical URL.

Keys and values are sorted, ids not labels, base units. Unknown keys and values that cannot be are errors that
name the parameter.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from urllib.parse import quote

from tandem.recipes.facets import BY_KEY, GRAINS, VERDICTS, Facet, Grain, facets_of
from tandem.recipes.fit import Hardware, parse_hardware
from tandem.recipes.query_error import QueryError
from tandem.recipes.terms import Term, one_line, parse_term, range_text, sorted_terms

Params = Iterable[tuple[str, str]]
Resolver = Callable[[str, str], str]
"""(facet key, value as written) -> the value's id; how names and aliases of a model become its id."""

DEFAULT_TOP, MAX_TOP = 20, 200
DEFAULT_LIMIT, MAX_LIMIT = 100, 250
MAX_TERMS = 50
MAX_SEARCH_CHARACTERS = 200
PLAIN_KEYS = ("cursor", "grain", "hw", "limit", "possible", "q", "sort", "strict", "top")
_SAFE = "~:/.=,"
FIND = "find."
SORT_KINDS = ("number", "date")
SORTABLE_TERMS = ("model", "engine", "status", "quant", "layout")


@dataclass(frozen=True, slots=True)
class FacetFilter:
    """Values of one facet: any of ``any_of``, all of ``all_of``, none of ``none_of``."""

    any_of: tuple[Term, ...] = ()
    all_of: tuple[Term, ...] = ()
    none_of: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.any_of or self.all_of or self.none_of)

    def parts(self) -> tuple[tuple[str, tuple[Term, ...]], ...]:
        return ("", self.any_of), (".all", self.all_of), (".not", self.none_of)


@dataclass(frozen=True, slots=True)
class Query:
    """``sort`` is a facet key or None for the title. ``aliased``: a value was written under another name."""

    grain: Grain = "recipe"
    search: str = ""
    filters: dict[str, FacetFilter] = field(default_factory=dict)
    hardware: Hardware | None = None
    sort: str | None = None
    descending: bool = False
    top: int = DEFAULT_TOP
    limit: int = DEFAULT_LIMIT
    cursor: str = ""
    possible: bool = False
    strict: bool = False
    find: dict[str, str] = field(default_factory=dict)
    aliased: bool = False

    def filter_of(self, key: str) -> FacetFilter:
        return self.filters.get(key, FacetFilter())

    def uses_other(self, key: str) -> bool:
        return any(term.word == "other" for _, terms in self.filter_of(key).parts() for term in terms)

    def toggled(self, key: str, term: Term) -> Query:
        """With the value chosen, or no longer chosen; back on the first page."""
        held = self.filter_of(key)
        kept = tuple(item for item in held.any_of if item.text != term.text)
        chosen = kept if len(kept) < len(held.any_of) else sorted_terms((*held.any_of, term))
        return self.with_filter(key, replace(held, any_of=chosen))

    def with_filter(self, key: str, changed: FacetFilter) -> Query:
        filters = {name: value for name, value in self.filters.items() if name != key}
        if changed:
            filters[key] = changed
        return replace(self, filters=filters, cursor="")

    def pairs(self) -> list[tuple[str, str]]:
        """The canonical parameters; what is at its default is left out."""
        pairs = [
            (key + suffix, term.text)
            for key, held in self.filters.items()
            for suffix, terms in held.parts()
            for term in terms
        ]
        pairs += [(FIND + key, text) for key, text in self.find.items()]
        sort = ("-" if self.descending else "") + (self.sort or "title")
        plain = {
            "cursor": self.cursor,
            "grain": "" if self.grain == "recipe" else self.grain,
            "hw": "" if self.hardware is None else self.hardware.text(),
            "limit": "" if self.limit == DEFAULT_LIMIT else str(self.limit),
            "possible": "1" if self.possible else "",
            "q": self.search,
            "sort": "" if sort == "title" else sort,
            "strict": "1" if self.strict else "",
            "top": str(self.top)
            if self.top != DEFAULT_TOP or any(map(self.uses_other, self.filters))
            else "",
        }
        return sorted(pairs + [(key, value) for key, value in plain.items() if value])

    def query_string(self) -> str:
        """Canonical, with the leading ``?``; empty for the whole catalogue."""
        pairs = self.pairs()
        return "?" + encode(pairs) if pairs else ""


class Toggles:
    """Query strings with one value of one facet chosen, or no longer, without building each query anew."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._pairs = [pair for pair in query.pairs() if pair[0] != "cursor"]
        self._encoded = [encode([pair]) for pair in self._pairs]

    def toggle(self, key: str, text: str) -> str:
        """What ``query.toggled(key, term).query_string()`` is, for the term's canonical text."""
        if text == "~other":  # decides whether ``top`` is written
            return self._query.toggled(key, Term(text, word="other")).query_string()
        pair = (key, text)
        place = bisect_left(self._pairs, pair)
        if place < len(self._pairs) and self._pairs[place] == pair:
            parts = self._encoded[:place] + self._encoded[place + 1 :]
        else:
            parts = [*self._encoded[:place], encode([pair]), *self._encoded[place:]]
        return "?" + "&".join(parts) if parts else ""


def encode(pairs: Params) -> str:
    return "&".join(f"{_quoted(key)}={_quoted(value)}" for key, value in pairs)


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return quote(text, _SAFE)


def parse_query(params: Params, resolve: Resolver = lambda key, value: value) -> Query:
    """Read URL parameters in any order. Raises QueryError naming the first parameter that cannot be used."""
    pairs = list(params)
    for key, number in Counter(key for key, _ in pairs).items():
        if number > MAX_TERMS:
            raise QueryError(key[:80], f"more than {MAX_TERMS} values")
    plain = _plain(pairs)
    grain = _choice("grain", plain.get("grain", "recipe"), GRAINS)
    allowed = {facet.key: facet for facet in facets_of(grain)}
    gathered: dict[tuple[str, str], list[Term]] = {}
    find: dict[str, str] = {}
    bounds: dict[str, tuple[str, str]] = {}
    aliased = False
    for key, value in pairs:
        if key in PLAIN_KEYS:
            continue
        if key.startswith(FIND):
            facet = _facet(key, key.removeprefix(FIND), allowed)
            if value.strip():
                find[facet.key] = _search(key, value)
            continue
        if key.endswith((".min", ".max")):
            _gather_bound(key, value, allowed, bounds)
            aliased = True
            continue
        facet, suffix = _facet_and_suffix(key, allowed)
        if facet.key == "fits" and value not in VERDICTS and not value.startswith("~") and "hw" not in plain:
            plain["hw"], value, aliased = value, "fits", True
        term = parse_term(facet, value)
        if term.value is not None:
            term = parse_term(facet, _escaped(resolve(facet.key, term.value)))
            aliased = aliased or term.text != value
        gathered.setdefault((facet.key, suffix), []).append(term)
    for key, (low, high) in bounds.items():
        term = parse_term(allowed[key], range_text(low, high, bool(high)))
        gathered.setdefault((key, ""), []).append(term)
    filters = {
        key: FacetFilter(*(sorted_terms(gathered.get((key, suffix), ())) for suffix in ("", ".all", ".not")))
        for key in sorted({key for key, _ in gathered})
    }
    hardware = parse_hardware(plain["hw"]) if plain.get("hw", "").strip() else None
    aliased = aliased or (hardware is not None and hardware.text() != plain["hw"])
    sort, descending = _sort(plain.get("sort", "title"), allowed)
    return Query(
        grain=grain,
        search=_search("q", plain.get("q", "")),
        filters=filters,
        hardware=hardware,
        sort=sort,
        descending=descending,
        top=_integer("top", plain.get("top", str(DEFAULT_TOP)), 1, MAX_TOP),
        limit=_integer("limit", plain.get("limit", str(DEFAULT_LIMIT)), 1, MAX_LIMIT),
        cursor=plain.get("cursor", ""),
        possible=_switch("possible", plain.get("possible", "")),
        strict=_switch("strict", plain.get("strict", "")),
        find=dict(sorted(find.items())),
        aliased=aliased,
    )


def _gather_bound(
    key: str, value: str, allowed: dict[str, Facet], bounds: dict[str, tuple[str, str]]
) -> None:
    """``cards.min=2&cards.max=4``, as a form without script sends it, is ``cards=2..=4``."""
    facet = _facet(key, key[:-4], allowed)
    if facet.kind == "term":
        raise QueryError(key, "only facets of numbers and dates have bounds", f"{facet.key}=…")
    if value.strip():
        low, high = bounds.get(facet.key, ("", ""))
        bounds[facet.key] = (value.strip(), high) if key.endswith(".min") else (low, value.strip())


def _escaped(value: str) -> str:
    return "~" + value if value.startswith("~") else value


def _plain(pairs: list[tuple[str, str]]) -> dict[str, str]:
    plain: dict[str, str] = {}
    for key, value in pairs:
        if key in PLAIN_KEYS:
            if key in plain and plain[key] != value:
                raise QueryError(key, "given twice")
            plain[key] = value
    return plain


def _facet(param: str, key: str, allowed: dict[str, Facet]) -> Facet:
    if key in allowed:
        return allowed[key]
    if key in BY_KEY:
        raise QueryError(
            param, "only for single measurements", f"grain=measurement, or {_near(key, allowed)}"
        )
    raise QueryError(param, "no such filter", f"{_near(key, allowed)}")


def _near(key: str, allowed: dict[str, Facet]) -> str:
    close = difflib.get_close_matches(key, [*allowed, *PLAIN_KEYS], n=3, cutoff=0.5)
    return ", ".join(close or sorted(allowed))


def _facet_and_suffix(key: str, allowed: dict[str, Facet]) -> tuple[Facet, str]:
    for suffix in (".all", ".not"):
        if key.endswith(suffix):
            facet = _facet(key, key.removesuffix(suffix), allowed)
            if suffix == ".all" and not facet.multi:
                raise QueryError(key, f"a recipe has one {facet.label.lower()} only", f"{facet.key}=…")
            return facet, suffix
    return _facet(key, key, allowed), ""


def _sort(text: str, allowed: dict[str, Facet]) -> tuple[str | None, bool]:
    key = text.removeprefix("-")
    if key == "title":
        return None, text.startswith("-")
    facet = allowed.get(key)
    if facet is None or not (facet.kind in SORT_KINDS or key in SORTABLE_TERMS):
        sortable = sort_keys(allowed.values())
        raise QueryError("sort", f"cannot sort by {key!r}", ", ".join(sortable))
    return key, text.startswith("-")


def sort_keys(facets: Iterable[Facet]) -> tuple[str, ...]:
    """What a listing can be sorted by, besides the title."""
    return tuple(facet.key for facet in facets if facet.kind in SORT_KINDS or facet.key in SORTABLE_TERMS)


def _search(param: str, text: str) -> str:
    if len(text) > MAX_SEARCH_CHARACTERS:
        raise QueryError(param, f"more than {MAX_SEARCH_CHARACTERS} characters")
    return one_line(text)


def _choice(param: str, text: str, choices: tuple[Grain, ...]) -> Grain:
    for choice in choices:
        if choice == text:
            return choice
    raise QueryError(param, f"{text!r} is not one of its values", ", ".join(choices))


def _integer(param: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise QueryError(param, f"{text!r} is no number from {low} to {high}")
    return int(text)


def _switch(param: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise QueryError(param, f"{text!r} is neither 0 nor 1")
    return text == "1"
