"""The catalogue as a page, `docs/defects.md`: `python -m specproof.defects.page > docs/defects.md` writes it anew."""

from __future__ import annotations

from specproof.defects import CATALOGUE, LEFT_OUT, Defect

HEAD = """\
# Known defects

What public engines got wrong, each as one small mutation of a right engine in `specproof/defects/`. Messages name
defects by these ids. "Must see it": checks that have to catch the mutation, so that no hole opens unnoticed; others may
catch it too. `specproof defects` runs them all, and `specproof defects --only D01` one.

An id with `-mlx` behind it is the same defect made once more on MLX, whose caches are written in place; without the
package these have no row in the kill table.

An issue or pull request is where the defect is described or mended; whether it still exists there is not said here.
This page is made from the catalogue (`python -m specproof.defects.page`).

| id | kind | engine | public reference | cause | must see it |
|---|---|---|---|---|---|
"""

LEFT_OUT_HEAD = """
## Left out

| id | why |
|---|---|
"""


def catalogue_page() -> str:
    """The page."""
    rows = "".join(f"{_row(defect)}\n" for defect in CATALOGUE.values())
    left = "".join(f"| {name} | {why} |\n" for name, why in LEFT_OUT.items())
    return f"{HEAD}{rows}{LEFT_OUT_HEAD}{left}"


def _row(defect: Defect) -> str:
    checks = ", ".join(f"`{name}`" for name in sorted(defect.expected))
    cells = (defect.id, defect.kind, defect.engine_found_in, _link(defect.reference), defect.cause, checks)
    return f"| {' | '.join(cells)} |"


def _link(reference: str) -> str:
    """An issue's or pull request's address: GitHub sends one on to the other."""
    repository, hash_, number = reference.partition("#")
    return f"[{reference}](https://github.com/{repository}/issues/{number})" if hash_ else reference


if __name__ == "__main__":
    print(catalogue_page(), end="")
