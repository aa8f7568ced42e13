"""How `make docs` builds the site; every warning is an error there."""

import gc
import re
from importlib.metadata import version as installed_version
from typing import Any

# What the pages are made of stays until the end: the collector would take four tenths of the build's time.
gc.disable()

project = "hybridstore"
author = copyright = "the hybridstore developers"
version = release = installed_version("hybridstore")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "hybridstore"
html_static_path = ["static"]
html_css_files = ["site.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Sphinx would look for them in the source, where Python 3.13 looks in the file of the module that a class names.
autodoc_use_type_comments = False
# The formats of code that the lexers do not know: dumps of bytes in format.md.
suppress_warnings = ["misc.highlighting_failure"]


_LAID_OUT = re.compile(r"^ {2,}\S", re.MULTILINE)
_ITEM = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")
_CODE = re.compile(r"`([^`]+)`")
# A parameter that begins with an underscore is for the tests.
_HIDDEN = re.compile(r", _\w+: .*?(?=\) ->|\)$)")


def _docstring(_app: object, _what: str, name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Make reStructuredText of a docstring: paragraphs, tables of two columns, programs, examples."""
    out: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        part = paragraph.strip("\n").split("\n")
        if part[0].startswith(">>> "):
            out += part
        elif _ITEM.fullmatch(part[0]) and all(_ITEM.fullmatch(line) or line.startswith("  ") for line in part):
            for line in part:
                item = _ITEM.fullmatch(line)
                out.append(f"* **{item[1]}**: {_escaped(item[2])}" if item else f"  {_escaped(line.strip())}")
        elif _LAID_OUT.search(paragraph):
            raise ValueError(f"{name}: found {part[0]!r}, expected each line as `name  meaning`, with two spaces")
        else:
            out += map(_escaped, part)
        out.append("")
    lines[:] = out


def _escaped(line: str) -> str:
    pieces = _CODE.split(line)
    pieces[::2] = [piece.replace("*", "\\*").replace("|", "\\|") for piece in pieces[::2]]
    pieces[1::2] = [f"``{piece}``" for piece in pieces[1::2]]
    return "".join(pieces)


def _signature(
    _app: object, what: str, _name: str, obj: object, _options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Leave out what a caller does not give."""
    if what == "class" and "Made by" in (obj.__doc__ or ""):
        return "", None
    # a mode of files is octal in the source, and no other default is
    return (_HIDDEN.sub("", signature).replace("= 420", "= 0o644") if signature else signature), returned


def setup(app: Any) -> None:
    """Take docstrings as the plain text that they are."""
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-process-signature", _signature)
