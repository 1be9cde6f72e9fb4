"""The playbook: declared claims, arms in turn, verdicts from intervals, and its page."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import claims, metric, space_file
from autotune.claims import Claim, Claimed
from autotune.playbook import Rounds
from autotune.playbook_verdict import Entry, judge
from autotune.rooms import rooms_root
from autotune.space import SpaceError
from autotune.trial import Failure, Measurement, Status, TrialRecord
from reports import playbook_page
from reports.numbers import playbook as playbook_numbers
from tests.test_cli import environ
from tests.toy_trials import toy

ARMS = {"plain": {"batch": 1}, "tuned": {"batch": 2}}


def claim_of(**changes: object) -> Claim:
    fields: dict[str, object] = {
        "id": "C99",
        "technique": "t",
        "says": "s",
        "claimed": Claimed(text="1.5 x", low=1.5),
        "metric": "tokens_per_second",
        "arms": ARMS,
        "judged": "tuned",
    }
    return Claim(**(fields | changes))  # type: ignore[arg-type]


def records(**arms: list[float]) -> list[TrialRecord]:
    found = []
    for label, values in arms.items():
        for value in values:
            spec = dataclasses.replace(toy(), label=label, configuration=ARMS[label])
            measurement = Measurement(metrics={"tokens_per_second": value})
            found.append(
                TrialRecord(
                    spec=spec,
                    status=Status.COMPLETE,
                    measurement=measurement,
                    failure=None,
                    started_at="",
                    wall_seconds=1.0,
                    host="h",
                    folder="f",
                )
            )
    return found


def judged(claim: Claim, **arms: list[float]) -> Entry:
    return judge(claim, claim.arms, records(**arms), study="s")


@pytest.mark.parametrize(
    ("tuned", "verdict"),
    [
        ([201.0, 200.0, 199.0], "holds"),
        ([120.0, 121.0, 119.0], "partly"),
        ([80.0, 81.0, 82.0], "does not hold here"),
        ([90.0, 160.0, 110.0], "partly"),
        ([101.0, 99.0, 100.0], "does not hold here"),
        ([200.0], "not measured"),
        ([], "not measured"),
    ],
)
def test_a_verdict_rests_on_the_whole_interval(tuned: list[float], verdict: str) -> None:
    assert judged(claim_of(), plain=[100.0, 101.0, 99.0], tuned=tuned).verdict == verdict


@pytest.mark.parametrize(
    ("tuned", "verdict"),
    [([100.1, 100.0, 99.9], "holds"), ([90.0, 90.1, 89.9], "does not hold here")],
)
def test_a_claim_of_equality_is_judged_by_its_margin(tuned: list[float], verdict: str) -> None:
    equal = claim_of(claimed=Claimed(text="equal", equal_within=0.01))
    assert judged(equal, plain=[100.0, 100.1, 99.9], tuned=tuned).verdict == verdict


def test_each_step_of_a_ladder_is_held_against_the_one_before() -> None:
    found = judged(claim_of(ladder=True), plain=[100.0, 100.0], tuned=[150.0, 150.0])
    assert [a.over_previous for a in found.arms] == [None, pytest.approx(1.5)]


def test_a_failed_arm_says_why() -> None:
    (record,) = records(tuned=[1.0])
    failure = Failure(reason="no memory")
    failed = dataclasses.replace(
        record, status=Status.OUT_OF_MEMORY, measurement=None, failure=failure
    )
    found = judge(claim_of(), ARMS, [*records(plain=[1.0, 1.0]), failed], study="s")
    assert found.verdict == "not measured"
    assert "no memory" in found.reason


def test_arms_take_turns_and_a_second_session_goes_on() -> None:
    rounds = Rounds(ARMS, 3, profile=True)
    order = []
    while (proposal := rounds.ask()) is not None:
        order.append(proposal.label)
    assert order == ["plain", "tuned"] * 3
    again = Rounds(ARMS, 3, profile=True)
    again.replay(records(plain=[1.0, 1.0], tuned=[1.0]))
    left = []
    while (proposal := again.ask()) is not None:
        left.append(proposal.label)
    assert sorted(left) == ["plain", "tuned", "tuned"]


def test_an_arm_that_cannot_run_here_is_not_tried_again() -> None:
    rounds = Rounds(ARMS, 3, profile=False)
    rounds.ask(), rounds.ask()
    (record,) = records(tuned=[1.0])
    rounds.tell(dataclasses.replace(record, status=Status.UNSUPPORTED, measurement=None))
    labels = []
    while (proposal := rounds.ask()) is not None:
        labels.append(proposal.label)
    assert labels == ["plain", "plain"]


def test_all_28_claims_are_declared_with_known_knobs_and_metrics() -> None:
    declared = claims.load()
    assert {f"C{n:02d}" for n in range(1, 29)} <= {c.id for c in declared}
    micro = rooms_root() / claims.FOLDER / "micro.yaml"
    known = {knob.name: knob for knob in space_file.load_catalogue([micro]).knobs}
    for claim in declared:
        for name in (claim.metric, *claim.also):
            rate = claim.micro and name in ("bytes_per_second", "flops_per_second")
            assert rate or metric.find(name), f"{claim.id}: {name}"
        for label, changes in claim.arms.items():
            for knob, value in changes.items():
                assert knob in known, f"{claim.id}, {label}: {knob}"
                assert known[knob].accepts(value), f"{claim.id}, {label}: {knob}={value}"


def test_an_unknown_claim_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpaceError, match="C04"):
        claims.choose(claims.load(), ("C044",))


def test_a_claim_is_measured_from_the_command_line_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "playbook", "tiny", "--only", "C09,C19"]
    command += ["--repeats", "2", "--json"]

    def run() -> tuple[list[dict[str, object]], str]:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    entries, _ = run()
    by_id = {e["id"]: e for e in entries}
    arms = by_id["C09"]["arms"]
    assert isinstance(arms, list)
    assert [a["repeats"] for a in arms] == [2, 2]
    assert all(a["median"] > 1e6 for a in arms)
    assert by_id["C19"]["verdict"] == "not measured"
    again, told = run()
    assert again == entries
    assert "COMPLETE" not in told  # nothing was run twice
    page = (tmp_path / "runs" / "playbook-tiny" / "playbook.html").read_text()
    assert "C09" in page
    assert "http://" not in page.split("plotly-source")[0]


def test_hostile_words_are_text_on_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    entry = judged(claim_of(says=evil, technique=evil), plain=[100.0, 101.0], tuned=[150.0, 151.0])
    data = {"model": evil, "date": "", "command": "", "host": {}, "entries": []}
    path = tmp_path / "playbook.json"
    path.write_text(json.dumps(data | {"entries": [dataclasses.asdict(entry)]}))
    page = playbook_page.render(playbook_numbers.load(path))
    assert evil not in page
    assert "&lt;script&gt;" in page
