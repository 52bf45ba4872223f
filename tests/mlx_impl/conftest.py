"""SmolLM2, loaded once for all tests that need a real model."""

import pytest


@pytest.fixture(scope="session")
def smollm2_file():
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")
    from mlx_impl import smollm2
    from reference.errors import MissingExtra

    try:
        return smollm2.find()
    except MissingExtra as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def smollm2(smollm2_file):
    from mlx_impl import load

    return load(smollm2_file)
