"""Layers that share an indexer's selection are kept on one card, by the model's own footprint."""

from types import SimpleNamespace

from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.spec import forbidden_cuts


def spec(kinds):
    fields = SimpleNamespace(
        layer_is_mla=tuple(kind != "recurrent" for kind in kinds),
        layer_shares_selection=tuple(kind == "shared" for kind in kinds),
    )
    fields.selection_source = lambda layer: Glm5NextSpec.selection_source(fields, layer)
    return fields


def test_a_full_layer_its_sharers_and_what_lies_between_stay_together():
    kinds = ["recurrent", "full", "recurrent", "shared", "shared", "recurrent", "full", "recurrent"]
    assert forbidden_cuts(spec(kinds)) == (2, 3, 4)


def test_a_model_without_sharing_may_be_cut_anywhere():
    assert forbidden_cuts(spec(["recurrent", "full"] * 4)) == ()
