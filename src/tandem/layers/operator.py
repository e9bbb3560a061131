"""What layers are put together from: a function of rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

Operator = Callable[[torch.Tensor], torch.Tensor]
"""[R, in] → [R, out], float32. A row's bits do not depend on how many rows a call has, nor on the others."""
