"""Trim reference vectors of EXL3 to what tests/exl3 needs: ``python trim_vectors.py FULL.safetensors``.

The full file was made by the format's own software (exllamav3 1.6.5 on a GPU) from random matrices of 128 ×
256: per codebook and K the tensors ``<codebook>.<K>.{trellis,suh,svh,inner,weight,x,y}``. ``inner`` is kept
as its SHA-256, ``weight`` (the original basis in fp16) is implied by ``x`` and ``y``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

DATA = Path(__file__).parent / "data"


def main(source: Path) -> None:
    tensors = load_file(source)
    names = sorted({key.rsplit(".", 1)[0] for key in tensors})
    kept = {
        f"{n}.{part}": tensors[f"{n}.{part}"] for n in names for part in ("trellis", "suh", "svh", "x", "y")
    }
    hashes = {n: hashlib.sha256(tensors[f"{n}.inner"].numpy().tobytes()).hexdigest() for n in names}
    DATA.mkdir(exist_ok=True)
    save_file(kept, DATA / "exl3_vectors.safetensors")
    (DATA / "exl3_inner_sha256.json").write_text(json.dumps(hashes, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
