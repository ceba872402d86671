"""The command line, which puts the parts of the library together for a terminal."""

from toolcrib.cli.app import run

__all__ = ["run"]
