"""`python -m vpng`."""

from vpng.cli.app import main

main()
