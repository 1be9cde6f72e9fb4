"""``python -m reports STUDY_JSON -o report.html``: one self-contained page from a study."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from reports.numbers import playbook
from reports.numbers.study import BadStudy, load


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on stderr."""
    asked = _parser().parse_args(arguments)
    if asked.playbook is not None and asked.studies:
        return _refuse("--playbook takes no study.json beside it")
    if asked.playbook is None and asked.compare and len(asked.studies) != 2:
        return _refuse("--compare takes two study.json files")
    if asked.playbook is None and not asked.compare and len(asked.studies) != 1:
        return _refuse("expected one study.json, or --compare with two")
    try:
        page = _page(asked)
    except BadStudy as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"cannot read {error.filename}: {error.strerror}")
    try:
        _write(asked.output, page)
    except OSError as error:
        return _refuse(f"cannot write {asked.output}: {error.strerror}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    parser.add_argument("studies", metavar="STUDY_JSON", nargs="*", type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="HTML")
    parser.add_argument(
        "--strict", action="store_true", help="leave out points over a limit altogether"
    )
    parser.add_argument(
        "--best-yaml", type=Path, metavar="FILE", help="the export to hand over, word for word"
    )
    parser.add_argument("--compare", action="store_true", help="put two studies side by side")
    parser.add_argument(
        "--playbook", type=Path, metavar="PLAYBOOK_JSON", help="the page of a playbook instead"
    )
    return parser


def _page(asked: argparse.Namespace) -> str:
    if asked.playbook is not None:
        found = playbook.load(asked.playbook)
        from reports import playbook_page

        return playbook_page.render(found)
    studies = [load(path) for path in asked.studies]
    # After the input was found good: the charts take a second to load.
    from reports import compare_page, page

    if asked.compare:
        return compare_page.render(studies[0], studies[1])
    export = asked.best_yaml.read_text(encoding="utf-8") if asked.best_yaml else None
    return page.render(studies[0], strict=asked.strict, best_yaml=export)


def _write(path: Path, page: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # "replace": a name may hold half a surrogate pair, which JSON allows and UTF-8 does not.
        partial.write_bytes(page.encode("utf-8", "replace"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _refuse(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    gc.disable()  # a short life with millions of small objects: collecting cost a sixth of it
    sys.exit(main())
