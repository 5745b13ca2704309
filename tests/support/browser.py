"""Pages in a real browser: Debian's chromium, driven by playwright; tests are skipped where either is absent."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")


@contextmanager
def open_page(path: str | Path, width: int = 1200, dark: bool = False, script: bool = True) -> Iterator[Any]:
    """Open a page from a local file as a playwright `Page`; at the end it must have logged and requested nothing.

    `width` is the width of the window in pixels; 400 is a phone. Without `script` the browser runs none.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    url = Path(path).resolve().as_uri()
    problems: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
        )
        page.on("console", lambda message: problems.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: None if request.url == url else problems.append(f"request: {request.url}"))
        page.goto(url)
        yield page
        browser.close()
    assert not problems, "\n".join(problems)


def overflow(page: Any) -> int:
    """Return by how many pixels the content of a page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
