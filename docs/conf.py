"""Sphinx reads this file: `make docs` builds the site into ``site/``, and nothing in it needs a network."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "docs"))

import hcal  # noqa: E402

project = "hcal"
author = "the hcal maintainers"
copyright = author
version = release = hcal.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
templates_path = ["_templates"]

# -- markdown ---------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4

# -- the pages of the public names -------------------------------------------------------------------

autosummary_generate = True
autosummary_imported_members = False
autodoc_typehints = "none"  # numpydoc's tables of parameters say the types in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True

# -- the gallery ------------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "gallery_style.by_lesson",
    "image_scrapers": ("gallery_style.as_svg",),
    "reset_modules": ("gallery_style.use_style",),
    "backreferences_dir": "api/backreferences",
    "doc_module": ("hcal",),
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "download_all_examples": False,
    "plot_gallery": "True",
    "only_warn_on_example_error": False,
    "abort_on_example_error": False,
}

# -- how the pages look -------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "hcal"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_favicon = "assets/mark.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = (
    False  # the summary of a result would be fetched, and a page from the disk must not
)
html_context = {"default_mode": "auto"}
html_sidebars = {"index": [], "tutorial": []}
html_theme_options = {
    "logo": {"image_light": "assets/mark.svg", "image_dark": "assets/mark.svg", "text": "hcal"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


#: Attributes that whoever writes a method declares; the page of hcal.methods.Calibrator explains them.
FOR_WRITERS = {
    "device_head", "floored", "grouped", "map_types", "n_classes_", "probs_of", "promises",
    "remember_source", "rows_like", "segments_of", "types_of_maps", "variants", "weighted",
}  # fmt: skip


def leave_out(
    app: object, what: str, name: str, member: object, skip: bool, options: object
) -> bool:
    """Leave out what scikit-learn adds to every estimator, and what only writers of methods need."""
    if skip or name == "get_metadata_routing":
        return True
    if name.startswith("set_") and name.endswith("_request"):
        return True
    page = app.env.docname  # type: ignore[attr-defined]
    return name in FOR_WRITERS and page != "api/hcal.methods.Calibrator"


def escape_bars(
    app: object, what: str, name: str, member: object, options: object, lines: list[str]
) -> None:
    """Keep |x| in prose what it is: docutils would look for a text to put in its place."""
    in_example = False
    for i, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example:
            parts = line.split("``")
            parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
            lines[i] = "``".join(parts)


def mark_columns(app: object, doctree: nodes.document) -> None:
    """Mark outputs whose columns stand below each other: they scroll where sentences wrap."""
    for block in doctree.findall(nodes.literal_block):
        is_output = block.get("language", "none") in ("text", "none")
        has_columns = re.search(r"\S {2,}\S|[│┃]|^ {2,}\S", block.astext(), re.MULTILINE)
        if is_output and has_columns:
            is_wide = max(map(len, block.astext().splitlines())) > 100
            block["classes"] += ["columns", "wide"] if is_wide else ["columns"]


def setup(app: object) -> None:
    """Connect what stands in this file with Sphinx."""
    warnings.filterwarnings("ignore", module="sphinx_gallery")
    app.connect("autodoc-skip-member", leave_out)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", escape_bars, 100)  # type: ignore[attr-defined]
    app.connect("doctree-read", mark_columns)  # type: ignore[attr-defined]
