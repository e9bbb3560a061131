"""Test modules have names of their own: pytest imports them by file name alone."""

from collections import Counter
from pathlib import Path


def test_no_two_test_files_share_a_name() -> None:
    tests = Path(__file__).parent.parent
    packages = {path.parent for path in tests.rglob("__init__.py")}
    names = Counter(path.name for path in tests.rglob("test_*.py") if path.parent not in packages)
    assert not [name for name, count in names.items() if count > 1]
