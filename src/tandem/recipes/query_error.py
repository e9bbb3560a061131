"""What can be wrong with a query, and what it may ask for that is not there."""

from __future__ import annotations

from tandem.core.errors import UserError


class QueryError(UserError):
    """A part of a query cannot be used. ``param`` names it; HTTP answers 400, a command exits with 2."""

    def __init__(self, param: str, problem: str, remedy: str | None = None) -> None:
        self.param = param
        self.problem = problem
        super().__init__(f"{param}: {problem}", remedy=remedy)


class UnknownFacetError(UserError):
    """No facet has this key, or none with this grain or without cards to judge by; HTTP answers 404."""

    def __init__(self, key: str, remedy: str = "tandem recipes facets lists them") -> None:
        self.key = key
        super().__init__(f"No facet {key[:80]!r}", remedy=remedy)


class UnknownRecipeError(UserError):
    """No recipe has this id; HTTP answers 404."""

    def __init__(self, recipe_id: str, similar: tuple[str, ...]) -> None:
        self.recipe_id = recipe_id
        self.similar = similar
        super().__init__(f"No recipe {recipe_id!r}", remedy=", ".join(similar) or "tandem recipes ls")
