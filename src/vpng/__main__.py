"""`vpng` and `python -m vpng`: the command line, or one line on what it needs."""

import sys

from vpng.extras import MissingExtraError


def main() -> None:
    """Run the command line; without the extra `paper`, say how to install it."""
    try:
        from vpng.paper.cli.app import main as run
    except MissingExtraError as error:
        sys.exit(f"vpng: {error}")
    run()


if __name__ == "__main__":
    main()
