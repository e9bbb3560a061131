"""Plans of recipes, and the peer's verdict beside ours.

A recipe is planned with our engine's model, whatever engine it was written for; dimensions and bit widths are
those of the register.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.api.fit import bit_widths, model_geometry, peer_fit, why_unknown
from tandem.api.plan import PlanAnswer, PlanQuestion, answer_dimensions
from tandem.core.errors import ModelNotFoundError
from tandem.core.settings import Environment
from tandem.planner.engines import PeerProfile
from tandem.planner.fit import FitReport
from tandem.planner.geometry import BitWidths, Geometry
from tandem.recipes.files import load_catalogue
from tandem.recipes.fit import fit_subject
from tandem.recipes.profiles import named_profile

_PEER_MARGIN_BYTES = 128 * 1024**2
"""The smallest margin of the peer's published profiles: it is shown at its best."""
_DRAFTERS = {"none", "dflash2", "mtp"}


def answer_recipe(
    recipe_id: str, profile: str | None, question: PlanQuestion, environment: Environment
) -> PlanAnswer:
    """Plan a profile; what ``question`` leaves None comes from it.

    What cannot be sized is *unknown*, with the reason. Raises ModelNotFoundError or SettingsError.
    """
    loaded = load_catalogue(environment.data_dir)
    held = loaded.recipes.get(recipe_id)
    if held is None:
        raise ModelNotFoundError(
            f"There is no recipe {recipe_id!r}",
            found=", ".join(sorted(loaded.recipes)),
            remedy="tandem recipes ls",
        )
    chosen = named_profile(held.recipe, profile)
    subject = fit_subject(held.recipe, chosen)
    entry = loaded.models.get(subject.model)
    dimensions = entry.geometry if entry else None
    asked = replace(
        question,
        model=f"recipe {recipe_id}, profile {chosen.name}",
        context_tokens=question.context_tokens or subject.request_tokens or subject.cache_tokens,
        # A context of the user's own replaces the profile's pool too.
        pool_tokens=None if question.context_tokens else subject.cache_tokens,
        kv_format=question.kv_format or subject.kv,
        slots=question.slots or subject.slots,
        drafter=question.drafter or (subject.drafter if subject.drafter in _DRAFTERS else None),
        chunk_tokens=question.chunk_tokens or subject.chunk_tokens,
    )
    reason = why_unknown(replace(subject, engine="tandem"), dimensions)
    if reason is not None or dimensions is None:
        context = asked.context_tokens or 0
        report = FitReport("unknown", context, 0, "", (), ())
        return PlanAnswer(report, asked.kv_format or "unstated", "nothing", asked.model, reason=reason)
    model, bits = model_geometry(dimensions), bit_widths(dimensions)
    return with_peer(answer_dimensions(asked, model, bits, "the register's dimensions and bit widths"), asked)


def with_peer(found: PlanAnswer, question: PlanQuestion) -> PlanAnswer:
    """Add what the engine of the source recipe would do with the same question, where it is modelled."""
    if found.dimensions is None or question.split is not None:
        return found
    model, bits = found.dimensions
    return replace(found, peer=_peer_line(found, question, model, bits))


def _peer_line(found: PlanAnswer, question: PlanQuestion, model: Geometry, bits: BitWidths) -> str:
    tokens = max(found.report.context_tokens, question.pool_tokens or 0)
    drafter = question.drafter or "none"
    profile = PeerProfile(
        name="asked",
        cache_tokens=tokens,
        kv_format=found.kv_format,
        drafter="mtp" if drafter == "mtp" else "dflash2" if drafter == "dflash2" else "none",
        margin_bytes=_PEER_MARGIN_BYTES,
        head_on_first_card=True,
    )
    report = peer_fit(model, bits, profile, tuple(card.budget_bytes for card in question.cards))
    return (
        f"ExLlamaV3 1.5.4, layer split, the same {tokens:,} tokens at KV {found.kv_format}: "
        f"{report.verdict}; {report.reason}"
    )
