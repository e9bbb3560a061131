import sys
from pathlib import Path

# The tiny checkpoints of the models' tests.
sys.path.append(str(Path(__file__).parent.parent / "models"))
