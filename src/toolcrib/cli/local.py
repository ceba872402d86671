"""`toolcrib local`: the embedded model's file."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from toolcrib.cli.options import JsonOption
from toolcrib.cli.render import err, out, print_json
from toolcrib.clients.local import Step
from toolcrib.clients.local import install as fetch

app = typer.Typer(no_args_is_help=True, help="The embedded model.")


@app.command("install")
def install(
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Check the file that is there; replace it if damaged.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch the embedded model (93 MB, once) into the user's cache."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as bar:
        steps = _Steps(bar)
        path = fetch(steps, force=force)
    if as_json:
        size = path.stat().st_size
        print_json({"path": str(path), "bytes": size, "fetched": steps.fetched})
    elif steps.fetched:
        out.print(f"Installed the embedded model: {path}")
    else:
        out.print(f"The embedded model is installed: {path}")


class _Steps:
    """Shows the current step as a bar on stderr; without a terminal, a line when a step begins."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._what = ""
        self._task: TaskID | None = None
        self.fetched = False

    def __call__(self, step: Step) -> None:
        self.fetched = self.fetched or step.what == "unpacking"
        if step.what != self._what:
            self._what = step.what
            if self._task is not None:
                self._bar.remove_task(self._task)
            text = f"{step.what} the embedded model"
            self._task = self._bar.add_task(text, total=step.total)
            if not err.is_terminal:
                err.print(f"{text} …")
        if self._task is not None:
            self._bar.update(self._task, completed=step.done)
