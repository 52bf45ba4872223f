"""Which BLAS multiplies MLX's float32 matrices on a CPU, and how to have a fast one.

On Linux, MLX's CPU wheel brings the reference BLAS: bit-equal for blocks of any size, and slow. A library of the same
functions that was loaded before, for everybody, is used in its place. OpenBLAS (Debian: `libopenblas0-pthread`) is many
times faster, and a verify pass of a few tokens costs little more than one of a single token, without which speculation
does not pay on a CPU. Its sums are of another order for other block sizes: exact tests are for the stock library.

`SPECPROOF_BLAS=/path/to/libopenblas.so.0` in the environment loads one before MLX; `openblas` finds it by name.
This module must be imported before `mlx.core`, and imports nothing of MLX.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes.util import find_library
from pathlib import Path

from reference.errors import InvalidSetting

VARIABLE = "SPECPROOF_BLAS"
"""The environment variable that names a library."""

FAST = ("openblas", "mkl_rt", "blis", "armpl")
"""What the files of fast libraries are called."""


def load_if_asked() -> None:
    """Load the library that the environment names. Does nothing where it names none.

    Raises:
        InvalidSetting: it cannot be loaded, or MLX was loaded before.
    """
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return
    path = wanted if "/" in wanted else find_library(wanted)
    if path is None:
        raise InvalidSetting(
            f"{VARIABLE} is {wanted!r}, and no such library is found; install it (Debian: libopenblas0-pthread), or "
            "give the path of its file"
        )
    if "mlx.core" in sys.modules and not _same_file(path):
        raise InvalidSetting(
            f"{VARIABLE} is {wanted!r}, but MLX is loaded already and keeps its own; import mlx_impl before mlx.core"
        )
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise InvalidSetting(f"{VARIABLE} is {wanted!r}, which cannot be loaded ({error}); give another") from error


def in_use() -> str:
    """The name of the BLAS that MLX has, or will have: a library's file name, `Accelerate`, or `reference BLAS`.

    It goes by what is loaded. A fast library that somebody else loads *after* MLX is named, though MLX keeps its own;
    `load_if_asked` refuses to come that late.
    """
    if sys.platform == "darwin":
        return "Accelerate"
    names = [Path(path).name for path in _mapped()]
    fast = next((name for name in names if any(part in name for part in FAST)), None)
    return fast or "reference BLAS (of MLX's wheel)"


def _same_file(path: str) -> bool:
    return any(Path(mapped).name == Path(path).name for mapped in _mapped())


def _mapped() -> list[str]:
    """Libraries of this process, in the order of their addresses; nothing where the system does not tell.

    NumPy and SciPy bring libraries of their own, whose functions have other names and which do not count.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return [path for path in paths if not any(part in path for part in ("numpy", "scipy"))]
