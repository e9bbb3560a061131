"""The command's first line of Python: an interrupt while the rest is imported ends without a traceback."""

from __future__ import annotations

import gc
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    try:
        from tandem.cli.main import run
        from tandem.core.process import settle_process

        settle_process()
        exit_code = run(sys.argv[1:])
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    # What is left ends with the process: looking through it for cycles took a server another 0.7 s.
    gc.freeze()
    sys.exit(exit_code)
