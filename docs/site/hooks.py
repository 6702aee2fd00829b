"""For mkdocs: the pages of the site that are no files of its folder, and links between all of them.

Pages come from docs, from the top of the repository, from the examples (a page each, with its source) and from the names that the
package exports (a page for each part of the package). A link to a file of the repository becomes a link to its page; names of the
API and of examples in code spans become links to them. The build fails if a page would fetch anything from another host.
"""

import ast
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "kv_cache_manager_v2"
TOP_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CLAUDE.md": "working.md",
}
PARTS = {
    "manager": "Manager and sequences",
    "config": "Configuration",
    "models": "Models",
    "kernels": "Page tables for kernels",
    "layout": "Layout of pools and slots",
    "stats": "Statistics",
    "metrics": "Metrics and logs",
    "events": "Events",
    "publishing": "Events over ZeroMQ",
    "device": "Devices",
    "reuse": "Scopes and block hashes",
    "sequence": "What calls on sequences take and return",
    "storage": "What storage reports",
    "base": "Ids, levels, errors",
}
"""Folders of the package in the order of their pages; others that export names follow under their own names."""
MODULES = {
    "testing": ("Test tools", [f"{PACKAGE}.testing"]),
    "integrations": ("torch and transformers", [f"{PACKAGE}.integrations.torch", f"{PACKAGE}.integrations.transformers"]),
    "transfers": (
        "Transfers between processes",
        [f"{PACKAGE}.integrations.{name}" for name in ("transfer_agent", "transfer", "nixl")],
    ),
}
GROUPS = {
    "To serve requests": ["manager", "config", "sequence", "reuse", "kernels", "base"],
    "To plan and place memory": ["models", "layout", "device", "storage"],
    "To watch": ["stats", "metrics", "events", "publishing"],
    "To connect and to test": ["integrations", "transfers", "testing"],
}
"""Of the reference: each part is in one; parts that are in none follow under `REST`."""
REST = "What is left"
FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|audio|video|source|embed)\b[^>]*?\bsrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b[^>]*?\brel=["']?(?:stylesheet|preload|preconnect|icon)\b[^>]*?\bhref=["']?(?:https?:)?//[^>]*>"""
    r"""|url\(["']?(?:https?:)?//[^)]*\)|@import\s+["'](?:https?:)?//[^"']*["']""",
    re.IGNORECASE,
)
CODE = re.compile(r"(<a\b.*?</a>|<h\d\b.*?</h\d>|<pre\b.*?</pre>)|<code>([A-Za-z_][\w./]*)(\(\))?</code>", re.DOTALL)


def exported() -> dict[str, str]:
    """Each public name, and the folder of the package that it comes from."""
    tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    public: list[str] = []
    folders: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is not None:
            folders |= {alias.asname or alias.name: node.module.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            public = ast.literal_eval(node.value)
    return {name: folders[name] for name in public if name in folders}


NAMES = exported()
PARTS |= {folder: folder.capitalize() for folder in sorted(set(NAMES.values()) - PARTS.keys())}


def example_pages() -> dict[str, str]:
    """The site's page for each example."""
    return {f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))}


def page_of_file() -> dict[str, str]:
    """For each file of the repository that has a page (or is an image of one), its place in the site."""
    docs = [path for folder in (ROOT / "docs", ROOT / "docs" / "images") for path in folder.glob("*") if path.suffix in (".md", ".png")]
    return {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in docs} | TOP_PAGES | example_pages()


PAGES = page_of_file()
FILES = {page: name for name, page in PAGES.items()}


def title_of_example(text: str) -> tuple[str, str]:
    """The first sentence of its docstring, and the rest."""
    doc = ast.get_docstring(ast.parse(text)) or ""
    title, _, rest = re.sub(r"``", "`", doc).partition("\n\n")
    return " ".join(title.split()), rest


def write_example(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    title, rest = title_of_example(text)
    return f"# {Path(name).stem}.py\n\n{title}\n\n{rest}\n\n```python\n{text}```\n"


def title_of_part(part: str) -> str:
    return PARTS[part] if part in PARTS else MODULES[part][0]


def groups_of_reference() -> dict[str, list[str]]:
    rest = [part for part in [*PARTS, *MODULES] if not any(part in parts for parts in GROUPS.values())]
    return GROUPS | ({REST: rest} if rest else {})


def write_reference(folder: str) -> str:
    names = sorted((name for name in NAMES if NAMES[name] == folder), key=lambda name: (not name.startswith("KVCache"), name.casefold()))
    doc = ast.get_docstring(ast.parse((ROOT / PACKAGE / folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    entries = "".join(f"::: {PACKAGE}.{name}\n\n" for name in names)
    return f"# {PARTS[folder]}\n\n{doc}\n\nAll names are imported from `{PACKAGE}`.\n\n{entries}"


def write_modules(title: str, modules: list[str]) -> str:
    settings = "    options:\n      show_root_full_path: true\n      show_submodules: false\n\n"
    entries = "".join(f"::: {module}\n{settings}" for module in modules)
    return f"# {title}\n\n{entries}"


def generated_pages() -> dict[str, str]:
    """Pages that are made here, with their text."""
    pages = {page: write_example(name) for name, page in example_pages().items()}
    rows = "".join(f"- [{Path(page).stem}.py]({Path(page).name}): {title_of_example((ROOT / name).read_text(encoding='utf-8'))[0]}\n"
                   for name, page in example_pages().items())  # fmt: skip
    pages["examples/index.md"] = f"# Examples\n\nEach runs as it is, without a GPU, and is a test.\n\n{rows}"
    for folder in PARTS:
        pages[f"reference/{folder}.md"] = write_reference(folder)
    for part, (title, modules) in MODULES.items():
        pages[f"reference/{part}.md"] = write_modules(title, modules)
    index = ""
    for group, parts in groups_of_reference().items():
        index += f"## {group}\n\n"
        for part in parts:
            names = sorted([name for name in NAMES if NAMES[name] == part], key=str.casefold) if part in PARTS else MODULES[part][1]
            index += f"- [{title_of_part(part)}]({part}.md): {', '.join(f'`{name}`' for name in names)}\n"
        index += "\n"
    pages["reference/index.md"] = (
        "# API reference\n\nAll public names, with their signatures. Units are the last word of a name (`_bytes`, `_tokens`, `_blocks`, "
        "`_ms`); the text says which errors a call raises. A wrong type is a `TypeError`, a wrong value a `ValueError`, a call that "
        f"the state does not allow a `LogicError`: each before anything has changed.\n\n{index}"
    )
    return pages


# -- what mkdocs calls ----------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    for entry in config.nav or []:
        if "Examples" in entry:
            entry["Examples"] = ["examples/index.md", *example_pages().values()]
        elif "API reference" in entry:
            groups = groups_of_reference().items()
            entry["API reference"] = [
                "reference/index.md",
                *[{group: [{title_of_part(part): f"reference/{part}.md"} for part in parts]} for group, parts in groups],
            ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in PAGES.items():
        if name.startswith("docs/"):
            files.append(File(page, str(ROOT / "docs"), config.site_dir, config.use_directory_urls))
    for name, page in TOP_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for page, text in generated_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links between files of the repository become links between pages."""
    place = page.file.src_uri
    name = FILES.get(place)
    if name is None:
        return markdown

    def replace(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        if not target or "://" in target:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        linked = "examples/index.md" if file == "examples" else PAGES.get(file)
        if linked is None:
            return match[0]  # mkdocs complains
        return f"]({os.path.relpath(linked, posixpath.dirname(place) or '.')}{'#' + anchor if anchor else ''})"

    return re.sub(r"\]\(([^)\s]+)\)", replace, markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Names in code spans become links: of the API (``optional``: where the reference has no such member), of pages and examples."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1]
        word, call = match[2], match[3] or ""
        if word.partition(".")[0] in NAMES and "/" not in word:
            return f'<autoref identifier="{PACKAGE}.{word}" optional><code>{word}{call}</code></autoref>'
        linked = PAGES.get(word)
        if linked is None or linked == page.file.src_uri:
            return match[0]
        url = os.path.relpath(linked, posixpath.dirname(page.file.src_uri) or ".")
        return f'<a href="{url.removesuffix(".md")}.html"><code>{word}</code></a>'

    return CODE.sub(replace, html)


def on_post_build(config: MkDocsConfig) -> None:
    """The site is read without a network too: nothing that a browser loads by itself may lie on another host."""
    found = []
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(config.site_dir)}: {match[0][:120]}" for match in FROM_ELSEWHERE.finditer(text)]
    if found:
        raise PluginError("pages load from other hosts:\n" + "\n".join(found[:20]))
