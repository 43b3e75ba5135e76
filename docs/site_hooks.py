"""What the site needs beyond mkdocs: pages of other folders, and equations.

The pages read as well on a code host, where links lead out of ``docs/``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Documents that live elsewhere, and the names of their pages.
OTHERS = {
    "confs/README.md": "scores.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Equations become MathML, which browsers draw without a script."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "math", "format": _equation}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents of other folders."""
    for path, page in OTHERS.items():
        text = _with_links(path, (ROOT / path).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Has links that lead out of ``docs/`` lead to the site's pages, or to text."""
    if page.file.src_uri in OTHERS.values():
        return markdown
    return _with_links(f"docs/{page.file.src_uri}", markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Roles of docstrings, as ``:meth:`x```, become the name that they mark."""
    role = r":(?:meth|func|class|attr|mod|data):<code>~?(?:[\w.]+\.)?(\w+)</code>"
    return re.sub(role, r"<code>\1</code>", html)


def _with_links(document: str, text: str) -> str:
    """``text`` of a document, its links as seen from its page."""
    folder = (ROOT / document).parent
    is_other = document in OTHERS
    depth = 0 if is_other else document.count("/") - 1

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match["label"], match["target"], match["anchor"] or ""
        if re.match(r"\w+:", target):
            return match[0]
        place = (folder / target).resolve()
        name = place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else ""
        if name in OTHERS:
            page = OTHERS[name]
        elif name == "README.md":
            page = "index.md"
        elif name.startswith("docs/"):
            page = name.removeprefix("docs/")
        else:  # a source file: no page
            return label
        return f"[{label}]({'../' * depth}{page}{anchor})"

    return re.sub(
        r"(?<!!)\[(?P<label>[^\]]+)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)",
        link,
        text,
    )


def _equation(source: str, *args: Any, **kwargs: Any) -> str:
    lines = (convert(line, display="block") for line in source.split(r"\\"))
    return f'<div class="math">{"".join(lines)}</div>'
