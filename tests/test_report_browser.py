"""The report in a real browser, from file://, with the network forbidden."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.trial import to_json
from reports import compare_page, page
from reports.numbers.study import parse
from tests import report_studies as studies

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright for Python")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 390, "height": 844}
DRAWN = "html[data-charts=drawn]"
_ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-quic"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every page that the tests look at, built once."""
    made = tmp_path_factory.mktemp("pages")
    built = {
        "finished": studies.finished(120),
        "unfinished": studies.unfinished(),
        "hostile": studies.hostile(),
        "hopeless": studies.hopeless(),
        "audited": studies.audited(),
        "empty": studies.unfinished(0, 20),
    }
    for name, study in built.items():
        (made / f"{name}.html").write_text(page.render(parse(to_json(study))), "utf-8")
    bad = page.render(parse(studies.with_bad_numbers()))
    (made / "bad.html").write_text(bad, "utf-8")
    both = [parse(to_json(built[name])) for name in ("finished", "hostile")]
    (made / "compare.html").write_text(compare_page.render(*both), "utf-8")
    return made


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[..., Any]]:
    with playwright.sync_playwright() as driver:
        opened = []

        def start(*more: str) -> Any:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*_ARGUMENTS, *more])
            opened.append(browser)
            return browser

        yield start
        for browser in opened:
            browser.close()


@pytest.fixture(scope="module")
def browser(launch: Callable[..., Any]) -> Any:
    return launch()


class Visits:
    """Opens pages and remembers what they complain about and ask for."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.contexts: list[Any] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __call__(
        self, name: str, *, size: dict[str, int] = WIDE, using: Any = None, **options: Any
    ) -> Any:
        context = (using or self.browser).new_context(viewport=size, **options)
        self.contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: self.complaints.append(message.text))
        opened.on("pageerror", lambda error: self.complaints.append(str(error)))
        opened.on("request", lambda request: self.requests.append(request.url))
        opened.goto((self.folder / f"{name}.html").as_uri())
        opened.wait_for_selector(DRAWN, timeout=60_000)
        return opened

    def end(self) -> None:
        """The consoles must be clean, and nothing but the pages themselves asked for."""
        for context in self.contexts:
            context.close()
        ours = (self.folder.as_uri(), "blob:file")
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(ours)] == []


@pytest.fixture
def visit(browser: Any, folder: Path) -> Iterator[Visits]:
    visits = Visits(browser, folder)
    yield visits
    visits.end()


@pytest.fixture(scope="module")
def report(browser: Any, folder: Path) -> Iterator[Any]:
    """The finished study, wide and light, for tests that leave no trace on each other."""
    visits = Visits(browser, folder)
    yield visits("finished", color_scheme="light")
    visits.end()


_TOO_WIDE = """() => [...document.querySelectorAll('.chart')]
  .filter((c) => c.querySelector('.main-svg').getBoundingClientRect().width > c.clientWidth + 1)
  .map((c) => c.dataset.figure)"""
_TITLES = """() => {
  const boxes = [...document.querySelectorAll('[data-figure=coordinates] .annotation-text')]
    .map((n) => n.getBoundingClientRect()).filter((b) => b.width);
  const top = Math.min(...boxes.map((b) => b.top));
  const titles = boxes.filter((b) => b.top < top + 4).sort((a, b) => a.left - b.left);
  return [titles.length, titles.slice(1).filter((b, i) => b.left < titles[i].right).length];
}"""
_TICKS = """() => [...document.querySelectorAll('.chart')].map((chart) => {
  const boxes = [...chart.querySelectorAll('.xtick text')].map((n) => n.getBoundingClientRect())
    .sort((a, b) => a.left - b.left);
  return boxes.slice(1).filter((b, i) => b.left < boxes[i].right - 1).length;
}).reduce((a, b) => a + b, 0)"""


def eventually(opened: Any, script: str, wanted: object) -> None:
    """Charts follow a new width a moment later."""
    for _ in range(50):
        if (found := opened.evaluate(script)) == wanted:
            return
        opened.wait_for_timeout(100)
    assert found == wanted


@pytest.mark.parametrize("name", ["finished", "hostile", "bad", "hopeless", "unfinished"])
def test_all_charts_draw_within_the_width_in_both_themes(visit: Visits, name: str) -> None:
    opened = visit(name, size=NARROW, color_scheme="dark")
    assert opened.evaluate("document.documentElement.dataset.theme") == "dark"
    for size in (NARROW, WIDE):
        opened.set_viewport_size(size)
        places = opened.locator(".chart").count()
        assert places > 3
        assert opened.locator(".chart .main-svg").count() >= places
        eventually(opened, "document.documentElement.scrollWidth", size["width"])
        eventually(opened, _TOO_WIDE, [])
    opened.emulate_media(color_scheme="light")
    playwright.expect(opened.locator("html")).to_have_attribute("data-theme", "light")
    assert opened.evaluate("window.hacked") is None


def test_hostile_text_is_read_as_text(visit: Visits) -> None:
    opened = visit("hostile")
    assert studies.HOSTILE[1] in opened.locator("h1").inner_text()
    opened.locator("#all-columns").check()
    opened.locator("#filter").fill("onerror")
    playwright.expect(opened.locator("#page-words")).to_contain_text("in all")
    assert studies.HOSTILE[1] in opened.locator("#trials-table").inner_text()
    assert opened.evaluate("window.hacked") is None


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_labels_do_not_run_into_each_other(visit: Visits, size: dict[str, int]) -> None:
    opened = visit("finished", size=size)
    titles, overlapping = opened.evaluate(_TITLES)
    assert titles >= 6
    assert overlapping == 0
    assert opened.evaluate(_TICKS) == 0


_PLACE_OF_FRONT = """() => {
  const chart = document.querySelector('[data-figure=trade]');
  const trace = chart.data.find((t) => t.meta === 'front');
  const { xaxis, yaxis } = chart._fullLayout, box = chart.getBoundingClientRect();
  return [box.left + xaxis._offset + xaxis.l2p(trace.x[1]),
          box.top + yaxis._offset + yaxis.l2p(trace.y[1]), trace.customdata[1]];
}"""


def test_a_click_on_a_point_shows_its_difference_command_and_samples(report: Any) -> None:
    report.locator("[data-figure=trade]").scroll_into_view_if_needed()
    x, y, number = report.evaluate(_PLACE_OF_FRONT)
    report.mouse.move(x, y)
    report.mouse.click(x, y)
    panel = report.locator("#selection")
    playwright.expect(panel.locator("h3")).to_have_text(f"Trial {number}")
    assert f"autotune replay llama-7b-train {number}" in panel.inner_text()
    assert panel.locator("circle.sample").count() == 7
    assert panel.locator("li code.new").count() > 0
    assert "Trial" in report.locator("[data-figure=trade] .hoverlayer").text_content()


def test_a_choice_by_keyboard_is_marked_in_every_chart(report: Any) -> None:
    report.locator("#choose").focus()
    report.keyboard.press("ArrowDown")
    chosen = report.locator("#choose").input_value()
    playwright.expect(report.locator("#selection h3")).to_have_text(f"Trial {chosen}")
    marked = report.evaluate(
        """() => [...document.querySelectorAll('.chart')]
             .map((c) => c.data.find((t) => t.meta === 'selected'))
             .filter(Boolean).map((t) => t.x.length)"""
    )
    assert len(marked) == 4
    assert all(marked)


def test_the_table_sorts_and_filters(report: Any) -> None:
    rows = report.locator("#trials-table tbody tr")
    assert rows.count() == 25
    report.locator("#filter").fill("compile.scope=block tokens_per_second>12000")
    playwright.expect(report.locator("#page-words")).to_contain_text("in all")
    cells = rows.locator("td:nth-child(4)").all_inner_texts()
    assert cells
    assert all(float(cell.replace(",", "")) > 12000 for cell in cells)
    head = report.locator("#trials-table th button", has_text="Throughput")
    head.focus()
    report.keyboard.press("Enter")
    order = [float(c.replace(",", "")) for c in rows.locator("td:nth-child(4)").all_inner_texts()]
    assert order == sorted(order)
    assert report.locator("th[aria-sort=ascending]").count() == 1
    report.locator("#filter").fill("no such word anywhere")
    playwright.expect(report.locator("#page-words")).to_have_text("no trial matches")
    report.locator("#filter").fill("")
    playwright.expect(rows.first).to_be_visible()


def test_the_csv_file_holds_what_is_shown_and_no_formula(visit: Visits) -> None:
    opened = visit("hostile")
    opened.locator("#filter-status").select_option("COMPLETE")
    with opened.expect_download() as caught:
        opened.locator("#csv").click()
    rows = list(csv.DictReader(io.StringIO(Path(caught.value.path()).read_text("utf-8"))))
    assert rows
    assert {row["status"] for row in rows} == {"COMPLETE"}
    assert any(row["hostile.knob"] == "'" + studies.HOSTILE[2] for row in rows)
    assert all(not value.startswith("=") for row in rows for value in row.values())
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)


def test_best_yaml_can_be_saved(report: Any) -> None:
    import yaml

    with report.expect_download() as caught:
        report.get_by_role("button", name="Save best.yaml").click()
    saved = yaml.safe_load(Path(caught.value.path()).read_text("utf-8"))
    assert saved["model"] == "llama-7b"
    assert saved["configuration"]


def test_copy_buttons_copy_also_where_the_clipboard_interface_is_missing(report: Any) -> None:
    report.evaluate(
        """() => { Object.defineProperty(navigator, 'clipboard', { value: undefined });
           document.execCommand = (what) => {
             window.copied = [what, document.activeElement.value]; }; }"""
    )
    report.get_by_role("button", name="Copy the changes").click()
    playwright.expect(report.get_by_role("button", name="Copied")).to_be_visible()
    what, text = report.evaluate("window.copied")
    assert what == "copy"
    assert "float8.enabled: true" in text


def test_the_theme_switch_redraws_the_charts(report: Any) -> None:
    colour = "document.querySelector('[data-figure=trade]').layout.font.color"
    light = report.evaluate(colour)
    report.locator("#theme").click()
    assert report.evaluate("document.documentElement.dataset.theme") == "dark"
    assert report.evaluate(colour) != light
    report.locator("#theme").click()
    assert report.evaluate(colour) == light


def test_other_axes_and_hidden_kinds_keep_the_points(report: Any) -> None:
    report.locator("#axis-x").select_option("energy_joules_per_token")
    title = "document.querySelector('[data-figure=trade]')._fullLayout.xaxis.title.text"
    assert "Energy" in report.evaluate(title)
    report.locator("[data-trace=failed]").click()
    shown = """document.querySelector('[data-figure=trade]').data
               .filter((t) => t.visible !== false && t.customdata).map((t) => t.meta)"""
    assert "failed" not in report.evaluate(shown)
    assert "front" in report.evaluate(shown)
    assert report.locator("[data-trace=failed]").get_attribute("aria-pressed") == "false"


def test_a_brush_over_an_axis_filters_lines_and_table(report: Any) -> None:
    chart = report.locator("[data-figure=coordinates]")
    chart.scroll_into_view_if_needed()
    left, top, bottom = report.evaluate(
        """() => {
          const chart = document.querySelector('[data-figure=coordinates]');
          const { xaxis, yaxis } = chart._fullLayout, box = chart.getBoundingClientRect();
          const down = (y) => box.top + yaxis._offset + yaxis.l2p(y);
          const last = chart.layout.shapes.length - 1;
          return [box.left + xaxis._offset + xaxis.l2p(last), down(1.04), down(0.8)];
        }"""
    )
    report.mouse.move(left + 2, top)
    report.mouse.down()
    report.mouse.move(left + 2, bottom, steps=6)
    report.mouse.up()
    playwright.expect(report.locator("#page-words")).to_contain_text("in all")
    values = report.locator("#trials-table tbody td:nth-child(4)").all_inner_texts()
    assert values
    known = [float(v.replace(",", "")) for v in values if v != "–"]
    assert min(known) > 14_000


def test_charts_draw_where_the_browser_has_no_webgl(
    visit: Visits, launch: Callable[..., Any]
) -> None:
    opened = visit("finished", using=launch("--disable-3d-apis"))
    assert "WebGL is not supported" not in opened.locator("body").inner_text()
    assert opened.locator(".chart .main-svg").count() >= 8


def test_print_is_light_and_complete(visit: Visits, tmp_path: Path) -> None:
    opened = visit("finished", color_scheme="dark")
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.evaluate("document.documentElement.dataset.theme") == "light"
    widths = "[...document.querySelectorAll('.chart')].map((c) => c._fullLayout.width)"
    assert set(opened.evaluate(widths)) == {660, 1060}
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.evaluate("document.documentElement.dataset.theme") == "dark"
    opened.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000


def test_without_scripts_the_answer_and_the_failures_are_readable(
    browser: Any, folder: Path
) -> None:
    context = browser.new_context(viewport=WIDE, java_script_enabled=False)
    opened = context.new_page()
    opened.goto((folder / "finished.html").as_uri())
    text = opened.locator("main").inner_text()
    context.close()
    assert "the throughput of common practice" in text
    assert "OUT_OF_MEMORY" in text


@pytest.mark.parametrize("name", ["audited", "empty"])
def test_a_study_without_a_search_shows_what_it_has(visit: Visits, name: str) -> None:
    opened = visit(name, size=NARROW)
    text = opened.locator("main").inner_text()
    if name == "audited":
        assert "8 of 10 knobs proven" in text
        opened.locator("#trials-table [data-select]").first.click()
        playwright.expect(opened.locator("#selection h3")).to_contain_text("Trial")
    else:
        assert "0 of 20 trials." in text
    assert opened.evaluate("document.documentElement.scrollWidth") == NARROW["width"]


def test_the_comparison_draws_both_studies(visit: Visits) -> None:
    opened = visit("compare", size=NARROW, color_scheme="dark")
    assert opened.locator(".chart .main-svg").count() >= 2
    assert opened.evaluate("document.documentElement.scrollWidth") == NARROW["width"]


@pytest.mark.slow
def test_five_thousand_trials_open_and_pan(visit: Visits, folder: Path) -> None:
    study = studies.finished(5000, extra=28)
    (folder / "large.html").write_text(page.render(parse(to_json(study))), "utf-8")
    opened = visit("large")
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    charts = "performance.getEntriesByName('charts-begin')[0].startTime"
    assert opened.evaluate(paint) < opened.evaluate(charts)
    before = opened.evaluate("document.querySelector('[data-figure=trade]').layout.xaxis.range")
    opened.evaluate(
        "Plotly.relayout(document.querySelector('[data-figure=trade]'), {'xaxis.range': [60, 90]})"
    )
    after = opened.evaluate("document.querySelector('[data-figure=trade]').layout.xaxis.range")
    assert after == [60, 90] != before
    assert "5,015" in opened.locator("#page-words").inner_text()
