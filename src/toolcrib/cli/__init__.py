"""The command line: where the parts are put together for a terminal."""

from toolcrib.cli.app import run

__all__ = ["run"]
