"""Entry point of the script and of ``python -m langgraph_ephemeral_checkpointer``."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_INTERRUPTED = 130


def run() -> None:
    """Run the command line on ``sys.argv`` and exit the process."""
    try:
        import signal  # it takes a moment to load, too

        # Loading LangGraph takes a second. Nothing is to be cleaned up yet, and a library that is
        # interrupted while it is loaded may make another error of it.
        usual = signal.getsignal(signal.SIGINT)
        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)
        from langgraph_ephemeral_checkpointer.cli.main import main

        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, usual)
        status = main()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    sys.exit(status)


def _leave(*_: object) -> NoReturn:
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
