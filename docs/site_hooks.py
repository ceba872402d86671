"""What `mkdocs.yml` does not say: the same links work on the site and where the repository is read.

Pages link to files of the repository by relative paths. Here README.md becomes the first page,
docs/README.md the list of all pages, and a file of the code that a page links to a page that shows it.
The API reference has a page for each room of the package, made from its `__all__` and its docstrings.

Rule: a link that leads nowhere is a warning, and with `strict` warnings are errors.
"""

from __future__ import annotations

import ast
import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ROOMS = (
    *("", "agent", "approvals", "audit"),
    *("bridges.langchain", "bridges.litellm", "bridges.mcp", "bridges.openapi"),
    *("chat", "clients", "durable", "errors", "hydration", "kit", "lint"),
    *("pick", "policies", "runner", "schema", "testing", "tools", "wire"),
)
NAMED = {"README.md": "index.md", "docs/README.md": "pages.md"}
SHIM = "https://unpkg.com/iframe-worker/shim"
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_log = logging.getLogger("mkdocs.plugins.site_hooks")
_sources: dict[str, str] = {}  # from the place of a made page in the site to its file


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made: README, the list of pages, the linked code, the reference."""
    waiting = ["README.md", "docs/README.md"]
    waiting += [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen: set[str] = set()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        if files.get_file_from_path(place_of(source)) is None:
            files.append(File.generated(config, place_of(source), content=_shown(source)))
            _sources[place_of(source)] = source
        if source.endswith(".md"):
            text = FENCE.sub("", (ROOT / source).read_text(encoding="utf-8"))
            waiting += [to for link in LINK.findall(text) if (to := _target(source, link[0]))]
    for room in ROOMS:
        place = f"reference/{room or 'toolcrib'}.md"
        files.append(File.generated(config, place, content=reference(room)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let relative links lead to where a file's page is in the site."""
    here = page.file.src_uri
    source = _sources.get(here, f"docs/{here}")
    if here.startswith(("reference/", "code/")) and not source.endswith(".md"):
        return markdown

    def led(found: re.Match[str]) -> str:
        target = _target(source, found[1])
        if target is None:
            return found[0]
        return posixpath.relpath(place_of(target), posixpath.dirname(here)) + (found[2] or "")

    parts = re.split(f"({FENCE.pattern})", markdown, flags=FENCE.flags)
    return "".join(part if at % 2 else LINK.sub(led, part) for at, part in enumerate(parts))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Put our own script where the theme would fetch one, for pages that are opened as files."""
    here = posixpath.relpath("worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace(SHIM, here)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Do the same for the page that says that there is none."""
    return (
        output_content.replace(SHIM, "/worker.js")
        if template_name == "404.html"
        else output_content
    )


def place_of(source: str) -> str:
    """Return where a file of the repository is in the site."""
    if source in NAMED or source.startswith("docs/"):
        return NAMED.get(source, source.removeprefix("docs/"))
    return f"code/{source.removesuffix('.md')}.md"


def _target(source: str, link: str) -> str | None:
    """Return the file of the repository that a link leads to; None for an address."""
    if "://" in link or link.startswith("mailto:"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / target).is_dir():
        target += "/__init__.py"
    if not (ROOT / target).is_file():
        _log.warning("%s links to %s, which is not there", source, link)
        return None
    return target


def _shown(source: str) -> str:
    """Return the page of a file; only pages of docs/ are searched."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if source in NAMED:
        return text
    if source.endswith(".md"):
        return f"{NOT_SEARCHED}{text}"
    return f"{NOT_SEARCHED}# {posixpath.basename(source)}\n\n`{source}`\n\n````python\n{text}````\n"


def reference(room: str) -> str:
    """Return the page of a room: what its `__all__` names, each with its docstring."""
    package = ROOT.joinpath("src", "toolcrib", *room.split("."))
    file = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    module = f"toolcrib.{room}".rstrip(".")
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    told = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    blocks = "".join(f"\n::: {module}.{name}\n" for name in names)
    return f"# {module}\n\n{told}\n{blocks}"


def on_post_build(config: Any, **_: Any) -> None:
    """Check that nothing on the site is fetched from elsewhere."""
    fetched = re.compile(
        r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)="?(https?://[^"\s>]+)"""
    )
    for folder, _folders, names in os.walk(config.site_dir):
        for name in names:
            if name.endswith(".html"):
                page = Path(folder, name)
                for address in fetched.findall(page.read_text(encoding="utf-8")):
                    _log.warning("%s fetches %s", page.relative_to(config.site_dir), address)
