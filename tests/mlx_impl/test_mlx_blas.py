"""A fast BLAS is loaded where the environment asks for one, and named; a name that leads nowhere is refused."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_impl.blas import VARIABLE, find_library, in_use


def told(program, **environment):
    """What a new process prints, and its error."""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are looked up as Linux does")
def test_without_being_asked_mlx_keeps_its_own():
    out, _ = told("import mlx_impl, mlx_impl.blas; print(mlx_impl.blas.in_use())", **{VARIABLE: ""})
    assert out == in_use()


@pytest.mark.skipif(find_library("openblas") is None, reason="OpenBLAS is not installed (libopenblas0-pthread)")
def test_openblas_is_used_where_it_is_asked_for():
    out, error = told("import mlx_impl, mlx_impl.blas; print(mlx_impl.blas.in_use())", **{VARIABLE: "openblas"})
    assert "openblas" in out, error


@pytest.mark.parametrize(
    ("name", "message"), [("nosuchblas", "no such library is found"), ("/no/such/file.so", "cannot be loaded")]
)
def test_a_library_that_is_not_there_is_refused(name, message):
    _, error = told("import mlx_impl", **{VARIABLE: name})
    assert f"InvalidSetting: {VARIABLE} is '{name}'" in error
    assert message in error


@pytest.mark.skipif(find_library("openblas") is None, reason="OpenBLAS is not installed (libopenblas0-pthread)")
def test_asking_for_it_when_mlx_is_loaded_already_is_refused():
    _, error = told("import mlx.core, mlx_impl", **{VARIABLE: "openblas"})
    assert "MLX is loaded already and keeps its own; import mlx_impl before mlx.core" in error


@pytest.mark.skipif(find_library("openblas") is None, reason="OpenBLAS is not installed (libopenblas0-pthread)")
def test_the_command_line_loads_it_before_anything_else_loads_mlx():
    program = "import specproof.adapters.mlx_impl, mlx_impl.blas; print(mlx_impl.blas.in_use())"
    out, error = told(program, **{VARIABLE: "openblas"})
    assert "openblas" in out, error
