"""The page as text: strict data blocks, one plotly.js, nothing external, nothing breaks out."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from autotune.study import Study
from autotune.trial import to_json
from reports import compare_page, page
from reports.embed import data_block
from reports.numbers.study import parse
from tests import report_studies as studies

_EMPTY = ("meta", "input", "br", "link")
_MEGABYTE = 2**20


class Outline(HTMLParser):
    """Scripts with their attributes, every other text, and addresses that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.text = ""
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in _EMPTY:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((given, ""))
        self.loads += [v for n, v in given.items() if n in ("src", "href", "srcset", "action")]
        assert not [name for name in given if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        else:
            self.text += data


def outline(study: Study | Mapping[str, Any], *, strict: bool = False) -> Outline:
    data = to_json(study) if isinstance(study, Study) else study
    return Outline(page.render(parse(data), strict=strict))


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def blocks(found: Outline) -> dict[str, Any]:
    """Every data block, parsed by a strict parser."""
    return {
        attributes["id"]: json.loads(text, parse_constant=_no_constant)
        for attributes, text in found.scripts
        if attributes.get("type") == "application/json"
    }


@pytest.fixture(scope="module")
def finished() -> Outline:
    return outline(studies.finished(200))


STUDIES: dict[str, Callable[[], Study | dict[str, Any]]] = {
    "finished": lambda: studies.finished(60),
    "unfinished": lambda: studies.unfinished(),
    "empty": lambda: studies.unfinished(0),
    "one trial": lambda: studies.unfinished(1),
    "hopeless": studies.hopeless,
    "hostile": studies.hostile,
    "bad numbers": studies.with_bad_numbers,
    "audited": studies.audited,
}


@pytest.mark.parametrize("kind", STUDIES)
def test_every_kind_of_study_gives_a_whole_page_with_strict_data(kind: str) -> None:
    found = outline(STUDIES[kind]())
    assert found.open == []
    assert {"trials-data", "view-data"} <= blocks(found).keys()
    assert ("figure-trade" in blocks(found)) is (kind != "audited")


def test_plotly_is_there_once_and_the_page_is_small(finished: Outline) -> None:
    sources = [text for attributes, text in finished.scripts if "plotly.js v" in text[:400]]
    assert len(sources) == 1
    assert sum(len(text) for _, text in finished.scripts) < 7 * _MEGABYTE


def test_at_least_eight_charts_are_drawn(finished: Outline) -> None:
    charts = [name for name in blocks(finished) if name.startswith("figure-")]
    assert len(charts) >= 8


def test_nothing_is_loaded_from_anywhere(finished: Outline) -> None:
    assert [address for address in finished.loads if not address.startswith("#")] == []
    ours = [text for attributes, text in finished.scripts if "plotly.js v" not in text[:400]]
    assert not re.search(r"https?://|url\(|@import|//cdn", "".join(ours) + finished.text)


def test_a_policy_in_the_page_forbids_the_browser_to_load() -> None:
    text = page.render(parse(to_json(studies.unfinished())))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe-eval" not in policy[1]


def test_the_order_begins_with_the_answer() -> None:
    text = page.render(parse(to_json(studies.finished(60))))
    sections = re.findall(r'<section id="([a-z]+)"', text)
    assert sections[:7] == [
        "answer",
        "trade",
        "earned",
        "importance",
        "coordinates",
        "history",
        "timing",
    ]
    assert sections[-3:] == ["failures", "trials", "reproduce"]


def test_hostile_text_is_shown_and_never_becomes_markup() -> None:
    found = outline(studies.hostile())
    allowed = {"application/json", "text/plain", None}
    assert {attributes.get("type") for attributes, _ in found.scripts} <= allowed
    assert sum(attributes.get("type") is None for attributes, _ in found.scripts) == 1
    for text in studies.HOSTILE[:3]:
        assert text in found.text
    values = [v for knob in blocks(found)["trials-data"]["knobs"].values() for v in knob["values"]]
    assert set(studies.HOSTILE) <= set(values)


def test_chart_text_from_outside_holds_no_tag() -> None:
    charts = {n: d for n, d in blocks(outline(studies.hostile())).items() if "figure" in n}
    text = json.dumps(charts)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;img" in text


def test_a_data_block_holds_no_character_that_could_end_it() -> None:
    block = data_block({"</script>": ["<!--", "a&b", "\u2028", "\ud800"]})
    assert not set("<>&\u2028") & set(block)
    assert json.loads(block) == {"</script>": ["<!--", "a&b", "\u2028", "\ud800"]}


def test_a_data_block_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        data_block({"value": float("nan")})


def test_bad_numbers_are_counted_and_listed() -> None:
    found = outline(studies.with_bad_numbers())
    assert "Values that could not be measured" in found.text
    metrics = blocks(found)["trials-data"]["metrics"]["tokens_per_second"]
    complete = blocks(found)["trials-data"]["status"]
    assert metrics.count(None) >= 4
    assert complete["values"]


def test_an_unfinished_study_is_marked_with_how_far_it_got() -> None:
    found = outline(studies.unfinished(7, 20))
    assert "7 of 20 trials." in found.text
    assert "not verified yet" in found.text


def test_extrapolated_figures_say_so() -> None:
    assert "extrapolated" in outline(studies.unfinished(7, 20)).text


def test_nothing_feasible_names_the_nearest_miss() -> None:
    text = outline(studies.hopeless()).text
    assert "Nothing feasible" in text
    assert "Nearest miss" in text


def test_strict_says_how_many_trials_it_left_out() -> None:
    text = outline(studies.hopeless(), strict=True).text
    assert "8 trials left out: strict" in text
    assert "8 more left out as over a limit" in text


def test_the_audit_has_a_section_only_where_there_is_one(finished: Outline) -> None:
    assert "Knob audit" in outline(studies.audited()).text
    assert "Knob audit" not in finished.text


def test_secrets_stay_out_of_the_page() -> None:
    assert "hf_geheim" not in page.render(parse(to_json(studies.hostile())))


@pytest.mark.slow
def test_five_thousand_trials_of_forty_knobs_stay_below_fifteen_megabytes() -> None:
    study = studies.finished(5000, extra=28)
    found = outline(study)
    size = sum(len(text.encode()) for _, text in found.scripts) + len(found.text)
    assert size < 15 * _MEGABYTE
    assert "Thinned for the browser" in found.text
    data = blocks(found)
    assert len(data["trials-data"]["number"]) == len(study.records)
    drawn = {n for t in data["figure-trade"]["data"] for n in t.get("customdata", [])}
    kinds = data["trials-data"]["kind"]
    front = {
        number
        for number, i in zip(data["trials-data"]["number"], kinds["index"], strict=True)
        if kinds["values"][i] == "front"
    }
    assert front & drawn
    assert study.outcome is not None
    assert study.outcome.best in drawn


def test_the_comparison_page_is_as_strict() -> None:
    first, second = parse(to_json(studies.finished(60))), parse(to_json(studies.hostile()))
    found = Outline(compare_page.render(first, second))
    assert blocks(found).keys() >= {"view-data", "figure-race", "figure-fronts"}
    assert [address for address in found.loads if not address.startswith("#")] == []
    assert "The studies asked different things" in found.text


# --- the program ---------------------------------------------------------------------------


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reports", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_program_writes_the_page(tmp_path: Path) -> None:
    study = studies.write(studies.finished(40), tmp_path / "study.json")
    done = run(study, "-o", tmp_path / "new" / "report.html")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "new" / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_half_a_character_in_a_name_does_not_stop_the_page(tmp_path: Path) -> None:
    raw = to_json(studies.unfinished())
    raw["spec"]["name"] = "half \ud800 pair"
    study = studies.write(raw, tmp_path / "study.json")
    done = run(study, "-o", tmp_path / "report.html")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_hands_over_the_export_word_for_word(tmp_path: Path) -> None:
    study = studies.write(studies.finished(40), tmp_path / "study.json")
    export = 'model: llama-7b\n"on": "</button>"\n'
    (tmp_path / "best.yaml").write_text(export, "utf-8")
    target = tmp_path / "report.html"
    done = run(study, "--best-yaml", tmp_path / "best.yaml", "-o", target)
    assert (done.returncode, done.stderr) == (0, "")
    saved = re.findall(r'data-text="([^"]*)"', target.read_text("utf-8"))
    assert [html.unescape(text) for text in saved] == [export]


def test_the_program_compares_two_studies(tmp_path: Path) -> None:
    a = studies.write(studies.finished(40), tmp_path / "a.json")
    b = studies.write(studies.unfinished(), tmp_path / "b.json")
    assert run("--compare", a, b, "-o", tmp_path / "c.html").returncode == 0
    assert "llama-7b-train" in (tmp_path / "c.html").read_text("utf-8")


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '{"spec": {}}', "\udcff"])
def test_bad_input_is_one_line_exit_2_and_no_file(tmp_path: Path, content: str | None) -> None:
    study = tmp_path / "study.json"
    if content is not None:
        study.write_bytes(content.encode("utf-8", "surrogateescape"))
    done = run(study, "-o", tmp_path / "report.html")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"study.json"}


def test_one_study_is_not_enough_to_compare(tmp_path: Path) -> None:
    study = studies.write(studies.unfinished(), tmp_path / "study.json")
    assert run("--compare", study, "-o", tmp_path / "c.html").returncode == 2
