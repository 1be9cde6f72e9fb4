"""Walks every knob of the catalogue: what it claims about the installed libraries is true here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from autotune import space_file, yaml_lines
from autotune.presets import presets_of
from autotune.rooms import child_environ, rooms_root
from autotune.selection import select
from autotune.space import Choices, Floats, Integers, Knob, members

CATALOGUE = space_file.load_catalogue()
KNOBS = {knob.name: knob for knob in CATALOGUE.knobs}
BY_ATTRIBUTE = [k for k in CATALOGUE.knobs if "torch" in k.apply]
TORCH = float(".".join(version("torch").split(".")[:2]))
# What torch itself writes for the same meaning.
SPELT = {("dynamo.optimize_ddp", True): "ddp_optimizer"}

# Prints, for every attribute, what it holds and which values it gives back as they were set.
PROBE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch, torch._dynamo, torch._inductor.config, torch._functorch.config
from trials.apply import _owner, plain
found = {}
for name, path, values in json.load(sys.stdin):
    try:
        owner, attribute = _owner(path, name)
    except Exception as error:
        found[name] = {"error": str(error)}
        continue
    live = getattr(owner, attribute)
    refused = []
    for value in values:
        try:
            setattr(owner, attribute, plain(value))
            if getattr(owner, attribute) != plain(value):
                refused.append([value, repr(getattr(owner, attribute))])
        except Exception as error:
            refused.append([value, str(error)])
    setattr(owner, attribute, live)
    found[name] = {"live": live if isinstance(live, (bool, int, float, str)) else None,
                   "refused": refused}
print(json.dumps(found))
"""


def some_values(knob: Knob) -> list[Any]:
    """All of a short domain, the ends of a long one; "unset" leaves torch alone."""
    match knob.domain:
        case Floats(low=low, high=high):
            return [low, high]
        case Integers() as domain:
            whole = domain.values()
            return list(whole if len(whole) < 20 else (whole[0], whole[-1]))
        case Choices(values=values):
            return [v for v in values if v != "unset"]


@pytest.fixture(scope="module")
def torch_says() -> dict[str, dict[str, Any]]:
    """Live values of every attribute, and what happened when each value was set."""
    asked = [
        (k.name, k.apply["torch"], some_values(k))
        for k in BY_ATTRIBUTE
        if all(not n.startswith("torch>=") or float(n[7:]) <= TORCH for n in k.needs)
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=child_environ({"OMP_NUM_THREADS": "1"}),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def test_the_catalogue_lists_at_least_400_knobs_beside_those_of_the_toy() -> None:
    assert len([k for k in CATALOGUE.knobs if k.scope != ("toy",)]) >= 400


def test_every_attribute_exists_in_the_installed_torch(
    torch_says: dict[str, dict[str, Any]],
) -> None:
    assert {n: f["error"] for n, f in torch_says.items() if "error" in f} == {}
    assert len(torch_says) > 100


def test_every_upstream_default_is_what_the_installed_torch_holds(
    torch_says: dict[str, dict[str, Any]],
) -> None:
    wrong = {}
    for name, found in torch_says.items():
        knob, live = KNOBS[name], found["live"]
        default = next(
            (
                value
                for need, value in knob.default_by.items()
                if need.startswith("torch<") and float(need[6:]) > TORCH
            ),
            knob.default,
        )
        live = SPELT.get((name, live), live)
        matches = default in ("unset", "none", "default") or live == default
        if not matches or (default == "none" and live not in (None, "none")):
            wrong[name] = (default, live)
    assert wrong == {}


def test_every_value_of_an_attribute_knob_can_be_set_and_reads_back(
    torch_says: dict[str, dict[str, Any]],
) -> None:
    assert {n: f["refused"] for n, f in torch_says.items() if f["refused"]} == {}


@pytest.mark.parametrize("knob", CATALOGUE.knobs, ids=lambda k: k.name)
def test_a_knob_is_whole(knob: Knob) -> None:
    values = members(knob.domain)
    assert knob.summary.endswith("."), "one line that says what it does"
    assert knob.accepts(knob.default)
    assert knob.scope == ("toy",) or (knob.source and knob.affects)
    assert all(knob.accepts(value) for value in list(values or ())[:5000])
    assert all(value in knob.domain for value in knob.prior)
    assert knob.default not in knob.prior, "the default is tried anyway"
    assert "quality" not in knob.affects or knob.risk != "none" or knob.workload
    assert all(knob.apply.values()), "says how it is applied"
    assert not {"cuda", "cpu"} <= set(knob.needs)


def test_values_that_a_boolean_knob_writes_are_the_two_truth_values() -> None:
    mixed = [
        k.name
        for k in CATALOGUE.knobs
        if isinstance(k.domain, Choices)
        and any(isinstance(v, bool) for v in k.domain.values)
        and not all(isinstance(v, bool) for v in k.domain.values)
    ]
    assert mixed == []


def sources(room: str) -> str:
    """All Python of a room, as one text."""
    return "\n".join(p.read_text() for p in sorted((rooms_root() / room).rglob("*.py")))


def names_in(text: str) -> re.Pattern[str]:
    """Every dotted name that a program writes, those with a part filled in later included."""
    whole = re.findall(r'"([a-z]\w*(?:\.\w+)+)"', text)
    partly = re.findall(r'f"([a-z]\w*(?:\.[\w{}]+)+)"', text)
    filled = [re.sub(r"\\{.*?\\}", r"\\w+", re.escape(p)) for p in partly if "{" in p]
    return re.compile("|".join([*map(re.escape, whole), *filled]))


def test_every_argument_knob_is_read_by_a_program_and_every_pending_one_is_not() -> None:
    written = names_in(sources("trials"))
    arguments = [k for k in CATALOGUE.knobs if "argument" in k.apply and k.scope != ("toy",)]
    read = {k.name for k in arguments if written.fullmatch(k.name)}
    unread = {k.name for k in arguments if "pending" not in k.needs} - read
    woken = {k.name for k in arguments if "pending" in k.needs} & read
    assert unread == set(), "no program takes these: they would have no effect"
    assert woken == set(), "these are read now: delete the need 'pending'"


def test_every_variable_is_spelt_like_one() -> None:
    names = [k.apply["env"] for k in CATALOGUE.knobs if "env" in k.apply]
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*(\[\w+\])?", name) for name in names)
    plain = [name for name in names if "[" not in name and name != "LD_PRELOAD"]
    assert len(set(plain)) == len(plain), "two knobs would write the same variable"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_defaults_are_legal_together(device: str) -> None:
    space = chosen("train", device)
    assert space.broken_rule(space.default()) is None


def chosen(task: str, device: str, **facts: Any) -> Any:
    """The space of a task on an imagined host that has everything."""
    context = {
        "device": device, "sm": 90 if device == "cuda" else 0, "torch": TORCH, "world_size": 1,
        "nodes": 1, "engine": "own", "export": "", "host.exclusive": False, "cores": 8,
        "memory_bytes": 10**11, "task": task, "has.torchao": True, "has.liger_kernel": True,
        "has.jemalloc": False, "has.tcmalloc": False, "has.numactl": False, **facts,
    }  # fmt: skip
    return select(
        CATALOGUE,
        task=task,
        runner="vllm" if context["engine"] == "vllm" else "torch",
        context=context,
        settings={},
        only=[],
        exclude=[],
        workload=space_file.load_workload(task, device),
    )


def test_the_live_knobs_of_one_device_are_230_or_more() -> None:
    live = {
        knob.name
        for device in ("cpu", "cuda")
        for task in ("train", "serve")
        for knob in chosen(task, device).knobs
    }
    assert len(live) >= 230


def test_without_an_exclusive_host_the_dangerous_knobs_are_not_there() -> None:
    shared = chosen("train", "cuda", world_size=8, **{"has.nvswitch": True})
    alone = chosen("train", "cuda", world_size=8, **{"has.nvswitch": True, "host.exclusive": True})
    dangerous = {"nccl.nvls_enable"}
    assert dangerous.isdisjoint(k.name for k in shared.knobs)
    assert dangerous <= {k.name for k in alone.knobs}


@pytest.mark.parametrize(
    "path",
    sorted((rooms_root() / "search_spaces" / "presets").glob("*.yaml")),
    ids=lambda p: p.stem,
)
def test_presets_name_known_knobs_with_legal_values(path: Path) -> None:
    for preset in presets_of(yaml_lines.load(path), str(path)):
        for name, value in preset["configuration"].items():
            knob = CATALOGUE.knob(name)
            assert knob.accepts(value), f"{preset['name']}: {name}={value!r}"
            assert preset["task"] in knob.scope
        assert preset["summary"].endswith(".")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_presets_are_whole_where_they_apply(device: str) -> None:
    presets = space_file.load_presets(chosen("train", device), "train")
    assert presets[0]["name"] == "common_practice"
    assert {p["name"]: p["dropped"] for p in presets if p["dropped"]} == {}
