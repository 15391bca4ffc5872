"""Tables and pages of invented results, and the committed pages of the committed results."""

import pytest
from made_up_results import invented_results

from apportion.errors import InvalidArgument
from reproduction.figures import FIGURES, Results, draw_all
from reproduction.figures.choosing import as_good, choosing_table
from reproduction.figures.default_table import format_table
from reproduction.figures.judged_part import Verdict, judge, judged_part
from reproduction.figures.pages import fill
from reproduction.figures.tables import rank_agreement, study_table
from reproduction.folders import HERE, PAGES, PICTURES, RESULTS, TABLE
from reproduction.judged import judged_tables
from reproduction.study import study_names


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return Results.read(invented_results(tmp_path_factory.mktemp("results")))


def test_a_table_shows_ours_beside_the_printed_figure(results):
    found = results.studies["lin_table_2"]
    cell = next(cell for cell in found.of("MNIST, ε = 2.93") if cell.recipe == "lin-decay")
    control = next(cell for cell in found.of("MNIST, ε = 2.93") if cell.control_of == "lin-decay")
    lines = study_table(found).splitlines()
    start = lines.index("**MNIST, ε = 2.93**")
    row = next(index for index in range(start, len(lines)) if lines[index].startswith("| lin-decay "))
    assert f"{100 * cell.test_accuracy:.2f} ± {100 * cell.test_accuracy_std:.2f} (2 seeds)" in lines[row]
    assert "97.70 ± 0.10" in lines[row]
    assert ("✓" if cell.difference >= -0.003 else "✗") in lines[row]
    assert lines[row + 1].startswith("| ↳ control of lin-decay: fixed clip, rate as lin-decay |")
    gain = f"{100 * (cell.test_accuracy - control.test_accuracy):+.2f}".replace("-", "−")
    assert f"recipe − control: {gain}" in lines[row + 1]


def test_a_price_beyond_its_claim_is_bold(results):
    table = study_table(results.studies["du_bounds"])
    assert "| ρ = 10 | **0.460** | 0.4 |" in table
    assert "ours" not in table  # columns that would be empty are left out


def test_what_was_not_run_is_listed_once_for_each_reason(results):
    table = study_table(results.studies["lin_table_2"])
    assert table.count("only the middle budget is run with all methods") == 1
    assert "MNIST, ε = 1.2; MNIST, ε = 4.5; Fashion-MNIST, ε = 1.5" in table


def cells_like(results, *pairs):
    """Cells with (our, printed) accuracies."""
    one = results.studies["lin_table_2"].cells[0]
    return [
        one.model_copy(update={"recipe": f"r{number}", "test_accuracy": ours, "paper_accuracy": printed})
        for number, (ours, printed) in enumerate(pairs)
    ]


def test_rank_agreement_is_kendalls(results):
    assert rank_agreement(cells_like(results, (0.9, 0.8), (0.8, 0.7), (0.7, 0.6))) == pytest.approx(1.0)
    assert rank_agreement(cells_like(results, (0.7, 0.8), (0.8, 0.7), (0.9, 0.6))) == pytest.approx(-1.0)
    assert rank_agreement(cells_like(results, (0.9, 0.8), (0.7, 0.7), (0.8, 0.6))) == pytest.approx(1 / 3)
    assert rank_agreement(cells_like(results, (0.9, 0.8), (0.8, None))) is None
    assert rank_agreement(cells_like(results, (0.9, 0.8), (0.9, 0.8))) is None  # no order at all


def test_as_good_is_what_lies_within_three_tenths_or_the_standard_error(results):
    best, near, far = cells_like(results, (0.95, None), (0.9471, None), (0.9465, None))
    assert as_good(best, [best, near, far]) == [near]
    unsure = best.model_copy(update={"test_accuracy_std": 0.008, "seeds": [1, 2, 3, 4]})
    assert as_good(unsure, [unsure, far, near]) == [near, far]


def test_the_choice_is_among_runs_that_keep_to_their_budget(results):
    table = choosing_table(results)
    assert "| mnist, papernot-cnn | 2.93 | " in table
    assert "CLT" not in table
    assert "non-private" not in table
    found = [cell for cell in results.studies["du_table_1"].of("MNIST, ε = 1.2") if "CLT" not in cell.recipe]
    best = max(found, key=lambda cell: cell.test_accuracy)
    assert f"| mnist, du-cnn | 1.2 | {best.recipe} | {100 * best.test_accuracy:.2f} |" in table


def test_what_is_judged_is_counted_whether_it_was_run_or_not(results):
    page, cells = judged_part(results), [cell for table in judged_tables() for cell in table.cells]
    run = [one for table in judged_tables() for one in judge(table, results) if one.met is not None]
    assert 0 < len(run) < len(cells)
    assert f"| all | {len(cells)} | {len(run)} | {sum(one.met for one in run)} | {len(cells) - len(run)} |" in page
    assert "MNIST, without privacy" in page.partition("Without a run:")[0]
    assert "Imagenette, ε = 11" in page.partition("Without a run:")[2]
    nothing = judged_part(Results())
    assert f"| all | {len(cells)} | 0 | 0 | {len(cells)} |" in nothing


def test_a_cell_of_the_limit_theorem_is_judged_with_its_true_price_beside_it(results):
    [cell] = cells_like(results, (0.9071, None))
    dear = cell.model_copy(update={"epsilon": 1.5, "paper_epsilon": 1.2, "met": None})
    assert Verdict("e", "r", 91.0, dear).met is True  # at most 0.3 points below
    assert Verdict("e", "r", 91.1, dear).met is False
    assert Verdict("e", "r", 91.0, None).met is None
    assert Verdict("e", "r", 91.0, dear).in_words() == "90.71 (91) ✓"


def test_parts_of_a_page_are_made_anew_and_the_rest_stays(results):
    page = "before\n<!-- results: du_bounds -->\nold\n<!-- end -->\nbetween\n<!-- figure: du_bounds -->\n<!-- end -->\nafter\n"
    filled = fill(page, results, HERE)
    assert "old" not in filled
    assert filled.startswith("before\n<!-- results: du_bounds -->\n\n")
    assert filled.endswith("\n\n<!-- end -->\nafter\n")
    assert "](pictures/du_bounds.svg)" in filled
    assert fill(filled, results, HERE) == filled
    empty = fill(filled, Results(), HERE)
    assert "not run yet: `python -m reproduction run du_bounds`" in empty
    assert "svg" not in empty


@pytest.mark.parametrize(
    "page",
    [
        "<!-- results: du_bounds -->\n",
        "<!-- end -->\n<!-- results: du_bounds -->\n",
        "<!-- reslts: du_bounds -->\n<!-- end -->\n",
        "<!-- results: du_bouns -->\n<!-- end -->\n",
        "<!-- figure: du_bouns -->\n<!-- end -->\n",
    ],
)
def test_a_wrong_part_is_refused(page):
    with pytest.raises(InvalidArgument):
        fill(page, Results(), HERE)


def test_every_study_and_every_figure_has_its_place_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in study_names() if f"<!-- results: {name} -->" not in text] == []
    assert [name for name in FIGURES if f"<!-- figure: {name} -->" not in text] == []


def test_the_committed_pages_and_figures_are_those_of_the_committed_results(tmp_path):
    found = Results.read(RESULTS)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == fill(text, found, page.parent), (
            f"{page.name} is old: run `python -m reproduction figures --pages`"
        )
    assert TABLE.read_text(encoding="utf-8") == format_table(found), "run `python -m reproduction figures --pages`"
    drawn, _ = draw_all(found, tmp_path)
    committed = {file.name: file.read_bytes() for file in PICTURES.glob("*.svg")}
    assert committed == {file.name: file.read_bytes() for file in drawn}, "run `python -m reproduction figures`"
