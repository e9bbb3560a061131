"""The tensor that is not finite is named; whole checkpoints and codes are left alone."""

import pytest
import torch
from safetensors.torch import save_file

from tandem.loader.finite import damaged_weights
from tandem.loader.safetensors import SafetensorsSource


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_the_tensor_is_named(tmp_path, dtype, value):
    tensors = {
        "codes": torch.full((3, 5), -1, dtype=torch.int16),
        "whole": torch.randn(7, 63).to(dtype),
        "damaged": torch.randn(500).to(dtype),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert damaged_weights(SafetensorsSource.open(tmp_path)) is None
    tensors["damaged"][[17, 499]] = value
    save_file(tensors, tmp_path / "model.safetensors")
    error = damaged_weights(SafetensorsSource.open(tmp_path))
    assert error is not None
    assert error.exit_code == 2
    assert "tensor damaged; found: 2 of 500 are NaN or inf; try: download it again" in str(error)
