"""A catalogue of made-up recipes, and one of the shipped ones, both on a fixed day."""

from __future__ import annotations

import pytest
from recipes_brute import TODAY, made_up_files

from tandem.recipes.build import rebuild_store
from tandem.recipes.catalogue import Catalogue
from tandem.recipes.store import Store


@pytest.fixture(scope="session")
def made_up():
    """A catalogue of ``made_up_files``."""
    files, models = made_up_files()
    store = Store(None)
    rebuild_store(store, files, models, (), TODAY.toordinal(), "fixed")
    return Catalogue(None, store=store, today=TODAY)


@pytest.fixture(scope="session")
def shipped():
    """The recipes that come with the package, and nothing else."""
    return Catalogue(None, today=TODAY)
