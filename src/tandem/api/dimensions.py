"""What our engine keeps on CUDA cards for a model of which only dimensions and bit widths are known."""

from __future__ import annotations

from tandem.core.plan import ModelFootprint
from tandem.models.glm5_next.cuda_sizes import (
    GRAPH_BYTES_PER_LAYER,
    workspace_bytes,
    workspace_bytes_per_token,
)
from tandem.models.glm5_next.rehearsal_spec import spec_of
from tandem.planner.engines import tandem_footprint
from tandem.planner.geometry import BitWidths, Geometry


def footprint_of_dimensions(
    geometry: Geometry, bits: BitWidths, *, kv_format: str, chunk_tokens: int
) -> ModelFootprint:
    """As a checkpoint's, except that weights are estimated; for cards whose architecture is not known.

    Raises SettingsError for a cache format the planner does not know.
    """
    spec = spec_of(geometry)
    return tandem_footprint(
        geometry,
        bits,
        kv_format=kv_format,
        workspace_bytes=workspace_bytes(spec, chunk_tokens, in_place=False),
        workspace_bytes_per_token=workspace_bytes_per_token(spec),
        graph_bytes_per_layer=GRAPH_BYTES_PER_LAYER,
    )
