from pathlib import Path

import pytest

from mcf.testing.toys import make_toy_model

WINDOW = 512


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy model with a window of 512 tokens."""
    return make_toy_model(tmp_path_factory.mktemp("models") / "toy", max_positions=WINDOW)
