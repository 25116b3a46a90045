"""Pages of Markdown lead somewhere: each relative link, its anchor, and each page that code names."""

import re

import pytest
from tests.programs import ROOT

PAGES = [
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *(ROOT / "config").glob("*.md"), *(ROOT / "docs").rglob("*.md"))
]
FOLDERS = ("src", "workflow", "performance", "tests", "config", "profiles", "envs")
KINDS = (".py", ".smk", ".yaml", ".sh", ".def", ".lock", ".md")


def anchors(text):
    """Return the anchors that GitHub gives a page's headings, and those that it states."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings} | {
        *re.findall(r'<a id="(.+?)">', text)
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        target, _, anchor = "".join(link).partition("#")
        if re.match(r"https?:|\.\./\.\./actions/", target):
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), (page, link)
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), (page, link)


def test_pages_that_code_names_exist():
    inside = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in KINDS]
    for file in (*inside, *ROOT.glob("*.*"), ROOT / "Makefile", ROOT / "Snakefile"):
        if file.is_file():
            for name in re.findall(r"(?<![\w/])docs/[\w/.-]+\.md", file.read_text(encoding="utf-8")):
                assert (ROOT / name).is_file(), (file, name)
