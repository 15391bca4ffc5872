"""The command line: thin. It parses, calls the library and prints."""

from __future__ import annotations

import sys

from apportion.errors import MissingExtra
from apportion.extras import EXTRAS, require_extra


def run() -> None:
    """The console script. Without the packages of the extra `cli` it prints one sentence and exits with code 2."""
    try:
        require_extra("cli", *EXTRAS["cli"])
    except MissingExtra as missing:
        print("error:", missing, file=sys.stderr)
        sys.exit(2)
    from apportion.cli.main import main

    main()
