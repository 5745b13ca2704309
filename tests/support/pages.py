"""Checks of HTML pages: structure, no external asset, no script, colors of the page's style, text inside its chart."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from polyseme.report.svg import text_width

SVG = "{http://www.w3.org/2000/svg}"
VOID_TAGS = {"meta", "br"}


class PageParser(HTMLParser):
    """Collects tags and text, and checks that every open tag is closed."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse_page(page: str, has_script: bool = False) -> PageParser:
    """Parse a page and check what every page promises; only an interactive one may have a script."""
    parsed = PageParser(page)
    assert not parsed.open
    page.encode()  # no lone surrogates
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page)
    names = {tag for tag, _ in parsed.seen}
    assert not names & {"link", "img", "iframe"} and ("script" in names) == has_script
    urls = [v for _, attrs in parsed.seen for k, v in attrs.items() if k in ("src", "href")]
    assert not [url for url in urls if not str(url).startswith("#")], "an external URL"
    assert "url(" not in page and "@import" not in page
    for tag, attrs in parsed.seen:
        if tag == "svg":
            assert (attrs.get("role") == "img" and attrs.get("aria-label")) or attrs.get("aria-hidden")
    num_figures, num_captions = (sum(tag == name for tag, _ in parsed.seen) for name in ("figure", "figcaption"))
    assert num_figures == num_captions
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        check_svg(svg)
    return parsed


def check_svg(svg: str) -> ElementTree.Element:
    """Check that the colors of a chart are variables, and that its labels are inside of it."""
    assert not re.search(r"(fill|stroke)[:=]\s*\"?(#|rgb)", svg), "a fixed color does not follow the dark mode"
    root = ElementTree.fromstring(svg)
    if root.get("viewBox"):
        width, height = map(float, root.get("viewBox", "").split()[2:])
        _check_texts(root, width, height, 0.0)
    return root


def _check_texts(element: ElementTree.Element, width: float, height: float, top: float) -> None:
    """Check the extents of all texts, estimated from below, in a chart of this size."""
    if match := re.match(r"translate\(0 (\d+)\)", element.get("transform", "")):
        top += float(match[1])
    for child in element:
        if child.tag == f"{SVG}text":
            x, y = float(child.get("x", 0)), float(child.get("y", 0)) + top
            length = 0.75 * text_width(child.text or "")
            if "rotate" in child.get("transform", ""):
                assert y - length >= 0 and y <= height, child.text
            else:
                start = {"end": x - length, "middle": x - length / 2}.get(child.get("text-anchor", ""), x)
                assert start >= -1 and start + length <= width + 1, f"{child.text} is clipped"
                assert 8 <= y <= height, f"{child.text} is clipped"
        _check_texts(child, width, height, top)
