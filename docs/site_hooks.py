"""What the site needs beyond mkdocs: pages of other folders, equations, signatures.

The pages read as well on a code host, where links lead out of ``docs/``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import griffe
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


# Pages of wide tables do without the list of their sections.
HIDDEN = {
    "index.md": ["navigation", "toc"],
    "scores.md": ["toc"],
    "algorithms/index.md": ["toc"],
    "default_settings.md": ["toc"],
    "method_contract.md": ["toc"],
    "reliability.md": ["toc"],
}


class Constructors(griffe.Extension):
    """Shows constructors as Python knows them: with what is inherited, and numbers."""

    def on_package(
        self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any
    ) -> None:
        """Replaces the parameters and the docstrings that are in the source."""
        modules = [pkg]
        for module in modules:  # grows meanwhile
            for member in module.members.values():
                if isinstance(member, griffe.Module):
                    modules.append(member)
                elif isinstance(member, griffe.Class):
                    found = getattr(importlib.import_module(module.path), member.name)
                    if "__init__" in member.members:
                        _complete(member["__init__"], vars(found)["__init__"], loader)
                    elif dataclasses.is_dataclass(found):
                        _show_defaults(member, found)


def _show_defaults(cls: griffe.Class, found: type) -> None:
    """Of the fields of a dataclass: the numbers, without their ranges."""
    for field in dataclasses.fields(found):
        has_default = field.default is not dataclasses.MISSING
        if has_default and field.name in cls.members:
            cls[field.name].value = repr(field.default)


def _complete(
    function: griffe.Function, constructor: Any, loader: griffe.GriffeLoader
) -> None:
    parameters = []
    for name, parameter in inspect.signature(constructor).parameters.items():
        default = parameter.default
        shown = getattr(default, "__name__", repr(default))
        parameters.append(
            griffe.Parameter(
                name,
                annotation=_none_if_empty(parameter.annotation),
                kind=griffe.ParameterKind[parameter.kind.name.lower()],
                default=None if default is parameter.empty else shown,
            )
        )
    function.parameters = griffe.Parameters(*parameters)
    if constructor.__doc__:
        text = inspect.cleandoc(constructor.__doc__)
        text = re.sub(r" Default: .*\.$", "", text, flags=re.MULTILINE)  # shown anyway
        function.docstring = griffe.Docstring(
            text,
            parent=function,
            parser=loader.docstring_parser,
            parser_options=loader.docstring_options,
        )


def _none_if_empty(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    return annotation if isinstance(annotation, str) else repr(annotation)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Equations become MathML, which browsers draw without a script."""
    source = (ROOT / "alf_lite/__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    config.copyright = f"alf_lite {version[1] if version else ''}, Apache-2.0"
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
    page.meta.setdefault("hide", HIDDEN.get(page.file.src_uri, []))
    if page.file.src_uri in OTHERS.values():
        return markdown
    return _with_links(f"docs/{page.file.src_uri}", markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Names for roles of docstrings, as ``:meth:`x```, and tables for small screens."""
    role = r":(?:meth|func|class|attr|mod|data):<code>~?(?:[\w.]+\.)?(\w+)</code>"
    html = re.sub(role, r"<code>\1</code>", html)
    return re.sub(r"<table>.*?</table>", _labelled, html, flags=re.DOTALL)


def _labelled(match: re.Match[str]) -> str:
    """A table whose cells know their column: a phone shows each row as a card."""
    head, _, body = match[0].partition("<tbody>")
    labels = [
        re.sub(r"<[^>]+>", "", th) for th in re.findall(r"<th.*?>(.*?)</th>", head)
    ]
    head = head.replace("<table>", f'<table data-columns="{len(labels)}">')
    rows = [_with_labels(row, labels) for row in body.split("<tr>")]
    return f"{head}<tbody>{'<tr>'.join(rows)}"


def _with_labels(row: str, labels: list[str]) -> str:
    names = iter(labels)
    row = re.sub("<td", lambda _: f'<td data-label="{next(names, "")}"', row)
    # A number with its interval stays on one line.
    return re.sub(
        r"(-?[\d.,]+) (\[-?[\d.,]+, -?[\d.,]+\])",
        r'<span class="interval">\1 <small>\2</small></span>',
        row,
    )


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
