"""The bodies that the API takes and gives, as OpenAPI describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Words = list[str]


class StudyRequest(BaseModel):
    """A study to queue: the fields of ``autotune tune``.

    Fields that would let a client run programs or read files on this host (a command, extra
    environment, space files, a cluster address) are the command line's alone.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=200, examples=["llama-7b"])
    task: Literal["train", "serve"] = "train"
    runner: Literal["torch", "vllm", "toy"] = "torch"
    goal: Literal["throughput", "latency", "memory", "energy", "cost", "balanced"] = "throughput"
    objectives: Words = Field(default=[], max_length=5)
    limits: Words = Field(default=[], max_length=20)
    budget: str | None = Field(default=None, max_length=40, examples=["10m"])
    trials: int | None = Field(default=None, ge=1, le=100_000)
    trial_timeout: str | None = Field(default=None, max_length=40)
    settings: Words = Field(default=[], max_length=500, description="KNOB=VALUE")
    only: Words = Field(default=[], max_length=500)
    exclude: Words = Field(default=[], max_length=500)
    strategy: Literal["auto", "tpe", "random", "nsga2", "nsga3", "gp", "qmc", "cmaes"] = "auto"
    study: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][\w.-]{0,79}$")
    workers: int | None = Field(default=None, ge=1, le=64)
    gpus_per_trial: int | None = Field(default=None, ge=0, le=64)
    price: float | None = Field(default=None, gt=0, lt=1e6)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    workload: Words = Field(default=[], max_length=50, description="KEY=VALUE")
    faults: Words = Field(default=[], max_length=50, description="runner toy only")
    options: Words = Field(default=[], max_length=50, description="KEY=VALUE")


class StudyRow(BaseModel):
    """A study in a list."""

    name: str
    state: str
    trials: int
    created_at: str


class Created(BaseModel):
    """The name of a study that was queued, and what a person should know of it."""

    name: str
    notices: list[str]


class Done(BaseModel):
    """The state of a study after a command."""

    name: str
    state: str


class Problem(BaseModel):
    """Why a request was not carried out, in one line."""

    detail: str


class StudyPage(BaseModel):
    """Where a study stands: the summary that ``autotune show --json`` prints."""

    model_config = ConfigDict(extra="allow")

    study: str
    state: str
    trials: int
    counts: dict[str, int]
    best: dict[str, float | None]


class Knobs(BaseModel):
    """The catalogue, filtered."""

    count: int
    knobs: list[dict[str, Any]]


class Health(BaseModel):
    """The service is up; ``running`` names the study that holds the devices, if any."""

    status: Literal["ok"]
    running: list[str]
    queued: list[str]
