"""The tables, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Names start with ``autotune_``, so that a team's database may hold other things beside."""


class StudyTable(Base):
    """One row per study; ``next_number`` is the first trial number that nobody has claimed."""

    __tablename__ = "autotune_study"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    state: Mapped[str] = mapped_column(String(20))
    next_number: Mapped[int] = mapped_column(Integer, default=0)
    created_at: Mapped[str] = mapped_column(String(40))


class DocumentTable(Base):
    """What was asked (``spec``) and what was concluded (``outcome``) of a study, as JSON.

    Apart from the study's own row, which changes with every claim, so that it stays where it is.
    """

    __tablename__ = "autotune_document"

    study_id: Mapped[int] = mapped_column(
        ForeignKey("autotune_study.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[str] = mapped_column(String(20), primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    checksum: Mapped[int] = mapped_column(BigInteger)


class TrialTable(Base):
    """A finished trial: the whole record as one JSON document, and what is asked for by column."""

    __tablename__ = "autotune_trial"
    __table_args__ = (Index("autotune_trial_by_status", "study_id", "status"),)

    study_id: Mapped[int] = mapped_column(
        ForeignKey("autotune_study.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    status: Mapped[str] = mapped_column(String(30))
    stage: Mapped[str] = mapped_column(String(30))
    document: Mapped[str] = mapped_column(Text)
    checksum: Mapped[int | None] = mapped_column(BigInteger)


class ClaimTable(Base):
    """A trial number that a driver is working on, or had been when it died."""

    __tablename__ = "autotune_claim"

    study_id: Mapped[int] = mapped_column(
        ForeignKey("autotune_study.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(String(20))  # running | abandoned
    owner: Mapped[str] = mapped_column(String(200))
    host: Mapped[str] = mapped_column(String(200))
    machine: Mapped[str] = mapped_column(String(200))  # boot and process namespace, see owner.py
    pid: Mapped[int] = mapped_column(Integer)
    process_start: Mapped[int] = mapped_column(BigInteger)
    claimed_at: Mapped[float] = mapped_column(Float)  # seconds since 1970
    seen_at: Mapped[float] = mapped_column(Float)
