"""Entry point of the script and of ``python -m langgraph_ephemeral_checkpointer``."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line on ``sys.argv`` and exit the process."""
    try:
        # Imported here: Ctrl-C while drivers are loaded must not end in a traceback either.
        from langgraph_ephemeral_checkpointer.cli.main import main

        status = main()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    run()
