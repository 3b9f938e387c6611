"""Every contract and operation has named cases, and the README says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from pagebind.ops import OPERATIONS

from pagebind_conformance.reporting import coverage

README = Path(__file__).parents[1] / "README.md"


def test_every_contract_operation_behaviour_and_public_fault_has_a_case():
    told = coverage.render(list(OPERATIONS))
    assert set(coverage.CONTRACTS) == {*"12345678", "counters", "checks", "errors"}
    for name in (*coverage.CONTRACTS, *(f"`{name}`" for name in OPERATIONS)):
        assert f"| {name} |" in told
    assert set(coverage.PUBLIC_FAULTS) == set(range(1, 23))


def test_the_readme_shows_the_tables_as_they_are():
    assert coverage.main([str(README)]) == 0


def test_cases_are_the_functions_that_pytest_collects():
    found = coverage.cases()
    assert found["unbind.py::test_awkward_sizes"] == "unbind"
    assert found["span.py::test_two_ends_meet_to_the_last_byte"] is None
    assert len(found) > 300


def test_a_contract_that_names_no_case_is_told(monkeypatch):
    monkeypatch.setitem(coverage.CONTRACTS, "3", coverage.Held("nothing", ("graphs.py::no_such_*",)))
    with pytest.raises(coverage.CoverageError, match=r"contract 3 is held by 'graphs.py::no_such_\*'"):
        coverage.render(list(OPERATIONS))


def test_an_operation_or_a_public_fault_without_a_case_is_told():
    known = coverage.cases()
    with pytest.raises(coverage.CoverageError, match="operation 'defragment' has no case"):
        coverage.render([*OPERATIONS, "defragment"])
    without = {case: about for case, about in known.items() if "test_case_06_" not in case}
    with pytest.raises(coverage.CoverageError, match="case 6 "):
        coverage.render(list(OPERATIONS), without)
    with pytest.raises(coverage.CoverageError, match=r"faults \[99\]"):
        coverage.render(list(OPERATIONS), known | {"bind.py::test_case_99_of_nobody": "bind"})


def test_a_stale_page_is_told_and_written_anew(tmp_path, capsys):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{coverage.BEGIN}\nold\n{coverage.END}\nbehind\n")
    assert coverage.main([str(page)]) == 1
    assert "is stale" in capsys.readouterr().err
    assert coverage.main(["--write", str(page)]) == 0
    assert coverage.main([str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("behind\n")
    assert "\nold\n" not in text
    page.write_text("no markers")
    assert coverage.main([str(page)]) == 1


@pytest.mark.parametrize(
    "page", ["", "{0}", "{1}{0}", "{0}{1}{0}{1}", "{0}{1}{1}"], ids=["none", "one", "turned", "twice", "ends"]
)
def test_a_page_without_a_place_for_the_tables_is_refused_and_left_alone(tmp_path, capsys, page):
    path = tmp_path / "README.md"
    path.write_text(page.format(coverage.BEGIN, coverage.END))
    assert coverage.main(["--write", str(path)]) == 1
    assert f"{path} has no place for what is rendered" in capsys.readouterr().err
    assert path.read_text() == page.format(coverage.BEGIN, coverage.END)
