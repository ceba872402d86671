"""The `toolcrib` command, also available as `python -m toolcrib`."""

from __future__ import annotations

import sys

try:
    from toolcrib.cli import run
except KeyboardInterrupt:
    sys.exit(130)
except ModuleNotFoundError as missing:
    if missing.name not in ("typer", "rich"):
        raise

    from toolcrib.errors import install_hint

    def run(arguments: list[str] | None = None) -> int:
        del arguments
        sys.stderr.write(f"toolcrib: the command needs an extra: {install_hint('cli')}\n")
        return 2


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
