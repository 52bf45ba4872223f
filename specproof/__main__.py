"""`python -m specproof`: the command line."""

from specproof.cli import main

main()
