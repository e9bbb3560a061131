"""GLM-5.3-Flash at full size with random weights behind the engine of one card: what a server adds to a step.

    python benchmarks/glm_engine.py [--scale small]

Prints the record as JSON: steps from submission to result, bytes by term, planned and measured.
"""

from __future__ import annotations

import argparse
import json
import logging

from tandem.api.load import free_card_bytes
from tandem.api.rehearse_engine import RELEASED_SIZES, SMALL_SIZES, rehearse_engine
from tandem.core.cards import parse_cards, resolve_cards
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS, SMALL, SMALL_BITS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", choices=("full", "small"), default="full")
    parser.add_argument("--cards", default="cuda:1")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    small = arguments.scale == "small"
    requests = parse_cards(arguments.cards)
    record = rehearse_engine(
        SMALL if small else RELEASED,
        SMALL_BITS if small else RELEASED_BITS,
        SMALL_SIZES if small else RELEASED_SIZES,
        requests,
        resolve_cards(requests, free_card_bytes),
    )
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
