"""The catalog is what the docstrings say, holes included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from components import catalog

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout: one pattern with everything, one with nothing but its code."""
    files = {
        "components/sealed.py": (
            '"""Seals.\n\nPattern: Sealed Box\nProblem: boxes open\non their own.\nAnswer: tape.\n"""\n'
        ),
        "components/bare.py": '"""Bare.\n\nPattern: Bare Hands\nProblem: a | pipe.\n"""\nX = print\n',
        "components/gates/box_is_shut.py": '"""The box is shut.\n\nWhen: always.\n"""\n',
        "tests/test_boxes.py": '"""Boxes."""\nfrom components import sealed\n',
        "case_studies/open_box.py": '"""A box fell open. It was late."""\nPATTERN = "Sealed Box"\n',
        "maturity/criteria/boxes_are_sealed.py": (
            '"""Boxes are sealed.\n\nWhy: dust.\n"""\n'
            'DIMENSION = "DAT"\nLEVEL = 2\nRISK = "high"\nPATTERN = "Sealed Box"\n'
        ),
        "flows/close_box.py": '"""Close it."""\n',
        "README.md": f"# Boxes\n\n{catalog.BEGIN}\nold\n{catalog.END}\n\nThe end.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_pattern_row_names_its_code_test_case_study_and_criterion(checkout: Path) -> None:
    assert (
        "| **Sealed Box** | boxes open on their own. | [sealed](components/sealed.py) "
        "| [test_boxes](tests/test_boxes.py) | [open_box](case_studies/open_box.py) "
        "| [boxes_are_sealed](maturity/criteria/boxes_are_sealed.py) |"
    ) in catalog.render(checkout)


def test_a_hole_is_shown_and_never_invented(checkout: Path) -> None:
    assert "| **Bare Hands** | a \\| pipe. | [bare](components/bare.py) | — | — | — |" in catalog.render(
        checkout
    )


def test_every_kind_of_plug_in_has_its_row(checkout: Path) -> None:
    page = catalog.render(checkout)
    assert "| gate | [box_is_shut](components/gates/box_is_shut.py) | The box is shut |" in page
    assert "| [open_box](case_studies/open_box.py) | A box fell open | Sealed Box |" in page
    assert (
        "| [Boxes are sealed](maturity/criteria/boxes_are_sealed.py) | DAT | L2 | high | Sealed Box |" in page
    )
    assert "| [close_box](flows/close_box.py) | Close it |" in page


def test_check_says_whether_the_page_is_up_to_date_and_changes_nothing(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, root = checkout / "README.md", ["--root", str(checkout)]
    before = page.read_text()
    assert catalog.main([str(page), "--check", *root]) == 1
    assert page.read_text() == before
    assert "make docs" in capsys.readouterr().out
    assert catalog.main([str(page), *root]) == 0
    assert catalog.main([str(page), "--check", *root]) == 0
    assert page.read_text().startswith("# Boxes\n")
    assert page.read_text().endswith("The end.\n")
    assert "old" not in page.read_text()


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="catalog:begin"):
        catalog.replaced("# Boxes", "tables")


def test_the_catalog_of_this_checkout_renders_without_importing_anything_heavy() -> None:
    code = (
        "import sys; from components import catalog; text = catalog.render(catalog.ROOT); "
        "heavy = {'torch', 'prefect', 'pydantic', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy; sys.stdout.write(text)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "**Run Record**" in done.stdout
    assert "### Maturity criteria" in done.stdout


def test_every_pattern_of_this_checkout_says_problem_answer_and_trade_off() -> None:
    for one in catalog.patterns(catalog.collect(ROOT, *catalog.CODE_FOLDERS)):
        assert one.problem != catalog.HOLE, one.code.path
        assert "\nAnswer: " in one.code.doc, one.code.path
        assert "\nTrade-off: " in one.code.doc, one.code.path


def test_every_pattern_that_a_criterion_or_case_study_names_is_there() -> None:
    modules = catalog.collect(ROOT, *catalog.CODE_FOLDERS)
    known = {one.name for one in catalog.patterns(modules)}
    for module in modules:
        study = module.path.startswith("case_studies/") and module.path.count("/") == 1
        if study or module.path.startswith("maturity/criteria/"):
            named = module.constants.get("PATTERN")
            assert named in known, f"{module.path} names {named!r}; there are {', '.join(sorted(known))}"
