"""One token of a row of logits: edits, filters and the draw, in integers that no order of sums can change."""
