"""The page in a real browser: what people see and press, and that nothing in the data runs.

All of Playwright runs in one thread apart. It switches between stacks, on which Python 3.11 cannot parse the source of
a test that fails; pytest, which does so to show it, would end the whole run with an internal error.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.diagnostics.view.conftest import served
from wdsdist.shards.manifest import Manifest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LOADED = "Promise.allSettled([...document.images].map((image) => image.decode()))"
"""Ends once each image of the page is there, or has failed."""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: install one, as by `apt-get install chromium`"),
    pytest.mark.timeout(400),  # a browser starts slowly on a busy machine
]


_THREAD = ThreadPoolExecutor(1)


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in the thread of Playwright."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        _THREAD.submit(test, **fixtures).result()

    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    started = _THREAD.submit(playwright.sync_playwright().start).result()
    options = {"executable_path": CHROMIUM, "headless": True, "args": FLAGS, "timeout": 0}
    found = _THREAD.submit(started.chromium.launch, **options).result()
    yield found
    _THREAD.submit(found.close).result()
    _THREAD.submit(started.stop).result()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    found = _THREAD.submit(new_page, browser).result()
    yield found
    _THREAD.submit(found.context.close).result()


def new_page(browser: Any) -> Any:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(60_000)
    found = context.new_page()
    found.problems = []
    found.on("pageerror", lambda error: found.problems.append(str(error)))
    found.on("dialog", lambda dialog: found.problems.append("a dialog"))
    return found


def browser_error() -> type[Exception]:
    from playwright.sync_api import Error

    return Error


@apart
def test_people_look_search_choose_and_step(page: Any, data: Manifest) -> None:
    url = served(data)
    page.goto(url)
    page.wait_for_selector(".tile")
    assert page.locator(".tile").count() == 12
    page.wait_for_selector("text=damaged or cut short")
    page.evaluate(LOADED)
    assert page.evaluate("[...document.images].slice(0, 3).every((image) => image.naturalWidth > 0)")
    page.locator(".tile .head a").nth(1).click()  # the page of a sample, and its neighbours by key
    page.wait_for_selector("#sample-key >> text=0001")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#sample-key >> text=0002")
    page.keyboard.press("Escape")
    page.wait_for_selector(".tile")
    page.keyboard.press("/")
    page.keyboard.type("0007")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=1 to 1 of 1 sample, of 12 in all")
    page.goto(url)
    page.fill("#where", '"json.width" >= 108')
    page.press("#where", "Enter")
    page.wait_for_selector("text=1 to 4 of 4 samples, of 12 in all")
    page.wait_for_selector("""text=wdsdist select shards VIEW --where '"json.width" >= 108'""")
    page.goto(f"{url}#/sample/7")
    page.wait_for_selector("dl >> text=json.width")
    page.goto(f"{url}#/columns")
    page.click(".card .bars >> text=2")
    page.wait_for_selector("text=1 to 4 of 4 samples, of 12 in all")
    page.goto(f"{url}#/problems")
    page.wait_for_selector("text=no problem")
    assert page.problems == []


@apart
def test_an_epoch_is_hovered(page: Any, data: Manifest) -> None:
    page.goto(f"{served(data)}#/epoch?ranks=2&batch_size=3")
    page.wait_for_selector(".plan canvas")
    page.hover(".plan canvas", position={"x": 200, "y": 10})
    page.wait_for_selector("#tip >> text=rank 0, batch 0")
    assert page.locator(".legend span").all_inner_texts() == [f"shard-00000{number}.tar" for number in range(3)]
    assert page.problems == []


@apart
def test_a_bar_of_a_histogram_filters(page: Any, tmp_path: Path) -> None:
    made = ({"json": {"x": n / 7}} for n in range(64))
    page.goto(f"{served(wdsdist.pack(made, tmp_path / 'shards').add_columns(fields=['json.x']))}#/columns")
    page.locator(".card svg a").first.click()
    page.wait_for_selector("text=1 to 2 of 2 samples, of 64 in all")


@apart
def test_every_failure_stands_in_the_same_place(page: Any, data: Manifest) -> None:
    url = served(data)
    for part, message in (
        ("nowhere", "there is no page #/nowhere"),
        ("sample/12", "there is no sample 12"),
        ("samples?start=24", "there is no sample 24"),
        ("samples?where=nonsense", "where is 'nonsense'"),
        ("columns?where=nonsense", "/^where is 'nonsense'/"),
        ("epoch?ranks=64", "no rank gets a batch"),
    ):
        page.goto("about:blank")
        page.goto(f"{url}#/{part}")
        page.wait_for_selector(f"#status.bad >> text={message}")
    assert page.problems == []


@apart
def test_nothing_in_hostile_data_runs_or_leaves(page: Any, hostile: Manifest) -> None:
    url = served(hostile)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for part in (
        "#/samples",
        "#/sample/0",
        "#/columns",
        "#/problems",
        "#/samples?key=script",
        "#/epoch?ranks=1&batch_size=2",
    ):
        page.goto("about:blank")
        page.goto(url + part)
        page.wait_for_selector("body:not([aria-busy])")
        page.evaluate(LOADED)
        assert "ran" not in page.title().split()
        assert page.locator("main script, main svg[onload], main img[onerror], main iframe, main object").count() == 0
    page.goto(f"{url}#/sample/0")
    page.wait_for_selector(".sample section")
    assert "<script>document.title='ran'</script>" in page.inner_text("main")
    # Members opened as documents of their own, as somebody might who is sent the URL.
    other = page.context.new_page()
    for number in range(page.locator(".sample section").count()):
        with contextlib.suppress(browser_error()):  # it is saved, not shown
            other.goto(f"{url}member/0/{number}")
        assert other.title() != "ran"
    other.close()
    assert {one for one in asked if not one.startswith((url, "data:", "about:"))} == set()
    assert page.problems == []


@pytest.mark.slow
@apart
def test_the_page_fits_a_phone(page: Any, data: Manifest) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    url = served(data)
    for part in ("samples", "sample/1", "columns", "epoch"):
        page.goto("about:blank")
        page.goto(f"{url}#/{part}")
        page.wait_for_selector("main > *")
        page.wait_for_selector("body:not([aria-busy])")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, part
