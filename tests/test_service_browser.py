"""The service as a person uses it: Chromium, a real service, real studies of the toy runner."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services import Service, running, until
from tests.test_cli import environ

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright for Python")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]
_ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-quic"]
_PATIENCE_MS = 180_000
_FRONT = "['x', 'y'].map(k => document.querySelector('#front').data[1][k])"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("service") / "runs") as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, service: Service) -> Iterator[Any]:
    """A page whose console must stay clean and which may ask nobody but the service."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    opened = context.new_page()
    opened.set_default_timeout(_PATIENCE_MS)
    complaints: list[str] = []
    asked: list[str] = []
    # Chromium itself logs every answer above 399; the page says those to the person.
    opened.on("console", lambda m: complaints.append(m.text) if "409" not in m.text else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    context.close()
    assert complaints == []
    assert [u for u in asked if not u.startswith((service.address, "blob:", "data:"))] == []


def start(page: Any, service: Service, name: str, **fields: str) -> None:
    """Fill in the form and send it off."""
    page.goto(f"{service.address}/new")
    page.locator("[name=model]").select_option("tiny")
    page.locator("[name=runner]").select_option("toy")
    page.locator("[name=study]").fill(name)
    page.locator("summary", has_text="More").click()
    for field, text in fields.items():
        place = page.locator(f"[name={field}]")
        (place.select_option if field in ("strategy", "goal") else place.fill)(text)
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(f"**/studies/{name}")


def expect_state(page: Any, state: str) -> None:
    playwright.expect(page.locator("#state")).to_have_text(state, timeout=_PATIENCE_MS)


@pytest.mark.slow
def test_a_study_from_the_form_to_its_best_yaml(
    page: Any, service: Service, tmp_path: Path
) -> None:
    faults = "oom if batch>128\nsleep 0.2"
    start(page, service, "first", trials="24", strategy="random", faults=faults)
    expect_state(page, "running")
    until(lambda: int(page.locator("#done").inner_text()) >= 3)
    drawn = "document.querySelector('#history').data?.[0].x.length ?? 0"
    until(lambda: page.evaluate(drawn) > 0)
    early = page.evaluate(drawn)
    expect_state(page, "finished")
    playwright.expect(page.locator("#done")).to_have_text("24")
    playwright.expect(page.locator("#failed")).to_contain_text("OUT_OF_MEMORY")
    until(lambda: page.evaluate(drawn) > early)
    assert page.locator("#progress").evaluate("p => p.value") == 1
    points = page.evaluate("document.querySelector('#front').data[0].x.length")
    complete = 24 - int(page.locator("#failed").inner_text().split()[0])
    assert points == complete
    least, most = page.evaluate(_FRONT)
    assert least == sorted(least)
    assert most == sorted(most)
    assert most[-1] == page.evaluate("Math.max(...document.querySelector('#front').data[0].y)")
    with page.expect_download() as caught:
        page.locator("#best").click()
    saved = Path(caught.value.path()).read_text("utf-8")
    target = tmp_path / "cli.yaml"
    command = [sys.executable, "-m", "autotune", "export", "first", "--out", service.out.name]
    done = subprocess.run(
        [*command, "--format", "yaml", "-o", str(target)],
        cwd=service.out.parent,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(saved) == yaml.safe_load(target.read_text())
    # The report: choose a point of the front, see what it is; filter the table.
    page.goto(f"{service.address}/studies/first")
    page.get_by_role("link", name="Report").click()
    page.wait_for_selector("html[data-charts=drawn]", timeout=_PATIENCE_MS)
    rows = page.locator("#trials-table tbody tr")
    page.locator("#filter-status").select_option("OUT_OF_MEMORY")
    failed = 24 - complete
    playwright.expect(page.locator("#page-words")).to_contain_text(f"of {failed} (24 in all)")
    shown = rows.all_inner_texts()
    assert len(shown) == failed
    assert all("OUT_OF_MEMORY" in text for text in shown)
    page.locator("#filter-status").select_option("")
    chosen = page.evaluate(
        """() => {
          const chart = document.querySelector('[data-figure=trade]');
          const trace = chart.data.find((t) => t.meta === 'front');
          const number = trace.customdata[0];
          chart.emit('plotly_click', { points: [{ customdata: number, data: trace }] });
          return String(Array.isArray(number) ? number[0] : number);
        }"""
    )
    playwright.expect(page.locator("#selection")).to_contain_text(f"rial {chosen}")


@pytest.mark.slow
def test_a_study_is_stopped_and_resumed_from_its_page(page: Any, service: Service) -> None:
    start(page, service, "second", trials="12", strategy="random", faults="sleep 1")
    until(lambda: int(page.locator("#done").inner_text()) >= 2)
    page.locator("#stop").click()
    expect_state(page, "interrupted")
    kept = int(page.locator("#done").inner_text())
    assert kept < 12
    page.locator("#resume").click()
    playwright.expect(page.locator("#problem")).to_be_hidden()
    expect_state(page, "finished")
    playwright.expect(page.locator("#done")).to_have_text("12")


def test_a_mistake_in_the_form_is_said_and_starts_nothing(page: Any, service: Service) -> None:
    page.goto(f"{service.address}/new")
    page.locator("[name=runner]").select_option("toy")
    page.locator("[name=limits]").fill("tokens_per_secnd>=1")
    with page.expect_response("**/api/studies") as answer:
        page.get_by_role("button", name="Start").click()
    assert answer.value.status == 409
    playwright.expect(page.locator("#problem")).to_contain_text("tokens_per_second")


@pytest.mark.slow
def test_two_studies_are_compared_from_the_list(page: Any, service: Service) -> None:
    for name in ("third", "fourth"):
        start(page, service, name, trials="4", strategy="random")
        expect_state(page, "finished")
    page.goto(service.address)
    for name in ("third", "fourth"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare two").click()
    page.wait_for_selector("html[data-charts=drawn]", timeout=_PATIENCE_MS)
    assert "third" in page.locator("h1").inner_text()
    assert "fourth" in page.locator("h1").inner_text()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "dark")])
def test_pages_fit_a_phone_and_the_dark(
    browser: Any, service: Service, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    opened = context.new_page()
    for path in ("/", "/new"):
        opened.goto(service.address + path)
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
        paper, ink = opened.evaluate(
            "['backgroundColor', 'color'].map(k => getComputedStyle(document.body)[k])"
        )
        bright = [sum(map(int, c[c.index("(") + 1 : -1].split(",")[:3])) for c in (paper, ink)]
        assert (bright[0] < bright[1]) == (scheme == "dark")
    context.close()
