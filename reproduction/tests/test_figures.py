"""Pictures of invented results."""

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from made_up_results import invented_results, invented_search, invented_study

from apportion.errors import InvalidArgument
from reproduction.figures import FIGURES, Results, draw_all
from reproduction.figures import chart as charts
from reproduction.figures.chart import Panel, Series, line_chart, spread_labels
from reproduction.figures.choosing import choosing_table
from reproduction.figures.dots import Group, Row, dot_chart
from reproduction.figures.lin_figures import MIDDLE, joint_threshold
from reproduction.figures.scale import Scale, format_number
from reproduction.figures.svg import width_of
from reproduction.figures.tables import study_table
from reproduction.study import open_study

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    return invented_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def results(invented):
    return Results.read(invented)


def parsed(picture):
    return ElementTree.fromstring(picture)


def texts(tree):
    return [node.text for node in tree.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_inside_its_card(results, name):
    tree = parsed(FIGURES[name].drawn(results))
    assert tree.find(f"{SVG}title").text
    assert len(tree.find(f"{SVG}desc").text) > 40
    width, height = float(tree.get("width")), float(tree.get("height"))
    upright = {id(node) for group in tree.iter(f"{SVG}g") for node in group}
    for node in (node for node in tree.iter(f"{SVG}text") if id(node) not in upright):
        x, y, wide = float(node.get("x")), float(node.get("y")), width_of(node.text, float(node.get("font-size")))
        start = x - wide * {"start": 0, "middle": 0.5, "end": 1}[node.get("text-anchor")]
        assert 0 < y < height
        assert start > 0
        assert start + wide < width
    for node in tree.iter(f"{SVG}circle"):
        assert 0 < float(node.get("cx")) < width
        assert 0 < float(node.get("cy")) < height


def test_the_same_results_give_the_same_bytes(invented, tmp_path):
    for folder in ("one", "other"):
        draw_all(Results.read(invented), tmp_path / folder)
    assert len(list((tmp_path / "one").iterdir())) == len(FIGURES)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()


def test_a_point_of_a_line_is_where_its_numbers_say():
    lines = (Series("a line", ((0.0, 10.0), (5.0, 30.0), (10.0, 20.0)), dots=True),)
    panel = Panel("panel", "x", "y", lines)
    tree = parsed(line_chart("title", "", [panel]))
    circles = [(float(node.get("cx")), float(node.get("cy"))) for node in tree.iter(f"{SVG}circle")]
    (left, low), (middle, high), (right, between) = circles
    assert middle == pytest.approx((left + right) / 2, abs=0.1)
    assert between == pytest.approx((low + high) / 2, abs=0.1)
    assert high < low  # up is where numbers are larger
    ticks = {
        node.text: float(node.get("y")) - 4 for node in tree.iter(f"{SVG}text") if node.get("text-anchor") == "end"
    }
    assert ticks["20"] == pytest.approx(between, abs=0.1)
    assert right - left == pytest.approx(charts.WIDTH / 1.06, abs=0.2)


def test_logarithmic_axes_give_every_factor_the_same_length():
    scale = Scale.around([0.01, 1.0], logarithmic=True, margin=0.0)
    assert scale.share(0.1) == pytest.approx(0.5)
    assert scale.ticks(4) == pytest.approx([0.01, 0.1, 1.0])
    assert Scale.around([1.0, 5.0], logarithmic=True).ticks(6) == [1.0, 2.0, 5.0]
    assert 0 < Scale.around([1e-300, 100.0], logarithmic=True).share(100.0) < 1


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (94.1, 98.2, [95, 96, 97, 98]),
        (0.0, 4700.0, [0, 1000, 2000, 3000, 4000]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert Scale(low, high).ticks(6) == pytest.approx(ticks)


def test_one_value_alone_has_an_axis():
    for logarithmic in (False, True):
        scale = Scale.around([1.0], logarithmic=logarithmic)
        assert 0 < scale.share(1.0) < 1
        assert scale.ticks(6)


def test_numbers_are_written_as_people_do():
    assert [format_number(value) for value in (0.5, 1200.0, 1e-5, -3.0, 0.0, 2.5e-4)] == [
        "0.5",
        "1,200",
        "1e-5",
        "−3",
        "0",
        "0.00025",
    ]


def test_names_that_would_overlap_are_moved_apart():
    placed = spread_labels([50.0, 50.0, 52.0, 99.0], [15.0] * 4, 0.0, 100.0)
    assert all(after - before >= 15 - 1e-9 for before, after in pairwise(placed))
    assert placed[-1] <= 100 - 7.5


def test_lines_that_end_together_are_named_in_the_order_of_their_courses():
    upper, lower = ((0.0, 5.0), (1.0, 9.0)), ((0.0, 1.0), (1.0, 9.0))
    panel = Panel("panel", "x", "y", (Series("lower", lower), Series("upper", upper)))
    places = {node.text: float(node.get("y")) for node in parsed(line_chart("t", "", [panel])).iter(f"{SVG}text")}
    assert places["upper"] < places["lower"]


def test_a_dot_stands_at_its_value_and_its_number_beside_it():
    rows = (Row("first", 90.0, 0.5, 92.0), Row("second", 94.0))
    tree = parsed(dot_chart("title", "", "accuracy", [Group("group", rows)]))
    places = {
        node.find(f"{SVG}title").text: float(node.get("cx")) for node in tree.iter(f"{SVG}circle") if node.get("cx")
    }
    assert places["first, printed: 92.00"] - places["first, ours: 90.00"] == pytest.approx(
        places["second, ours: 94.00"] - places["first, printed: 92.00"], abs=0.2
    )
    assert {"90.00", "92.0", "94.00"} <= set(texts(tree))


def test_a_method_that_fails_is_drawn_at_the_edge_and_does_not_flatten_the_others():
    rows = tuple(Row(str(value), value) for value in (97.0, 96.5, 96.0, 30.0))
    scale = Group("group", rows).scale()
    assert scale.low > 90
    assert "◂" in texts(parsed(dot_chart("title", "", "accuracy", [Group("group", rows)])))


def test_names_are_escaped_in_pictures_and_pages(tmp_path):
    content = invented_study("lin_table_2", tmp_path)
    text = json.dumps(content).replace('"andrew"', '"<b>&|*\\u0001"')
    (tmp_path / "lin_table_2.json").write_text(text)
    found = Results.read(tmp_path)
    for figure in ("lin_table_2", "lin_thresholds"):  # of cells, and of runs
        assert "<b>&|*" in map(str.strip, texts(parsed(FIGURES[figure].drawn(found))))
    assert r"| \<b>&\|\* | " in study_table(found.studies["lin_table_2"]).replace("  |", " |")


def test_thresholds_of_groups_are_drawn_as_one(results):
    run = next(run for run in results.studies["lin_table_2"].runs if run.recipe == "yu-clip")
    one, other = run.history[0].clip
    assert joint_threshold(run.history[0]) == pytest.approx((one**2 + other**2) ** 0.5)


def test_values_over_seeds_have_a_band_from_the_least_to_the_most(results):
    picture = FIGURES["lin_thresholds"].drawn(results)
    moving = {"andrew", "du-dynamic", "lin-decay"}
    assert moving <= set(texts(parsed(picture)))
    assert len(list(parsed(picture).iter(f"{SVG}polygon"))) >= 2 * len(moving)
    assert "adaclip" not in texts(parsed(picture))


def test_the_middle_budgets_are_those_of_the_packaged_study():
    packaged = open_study("lin_table_2")
    assert set(MIDDLE) <= {one.label for one in packaged.experiments}


def test_true_prices_are_drawn_at_the_true_epsilon(results):
    tree = parsed(FIGURES["du_table_1"].drawn(results))
    notes = [node.text for node in tree.iter(f"{SVG}title")]
    assert any(note.startswith("du-dynamic, CLT: 0.46,") for note in notes)  # of a claimed 0.4, at 1.15 times the price


def test_a_search_is_drawn_when_it_has_ended(tmp_path):
    invented_search(tmp_path, "mnist", "fast", [])
    assert FIGURES["search"].drawn(Results.read(tmp_path)) is None
    invented_search(tmp_path, "mnist", "greedy", [0.5, 0.4])
    assert "greedy: 6 candidates" in texts(parsed(FIGURES["search"].drawn(Results.read(tmp_path))))
    invented_search(tmp_path, "mnist", "fast", [0.6, 0.3])
    assert "fast: 6 candidates" in texts(parsed(FIGURES["search"].drawn(Results.read(tmp_path))))


def test_without_results_nothing_is_drawn(tmp_path):
    written_files, left_out = draw_all(Results.read(tmp_path / "nowhere"), tmp_path / "figures")
    assert not written_files
    assert [figure.name for figure in left_out] == list(FIGURES)
    assert FIGURES["headline"].command == "python -m reproduction run lin_table_2"


def test_a_study_that_has_just_begun_is_no_error(tmp_path):
    for name in {figure.study for figure in FIGURES.values()} - {None}:
        every = {cell.choice.shown for cell in open_study(name).cells}
        invented_study(name, tmp_path, without=every)
    found = Results.read(tmp_path)
    assert all(figure.drawn(found) is None for figure in FIGURES.values())
    assert "not run yet" in study_table(found.studies["ramp_up"])
    assert choosing_table(found) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"runs": 3}',
        '{"runs": [{}], "title": "", "source": "", "note": "", "not_run": [], "cells": []}',
        '{"runs": [{"recipe": "r", "history": [{}]}], "title": "", "source": "", "note": "", "not_run": [], "cells": []}',
        '{"trace": [], "thresholds": ["a"], "settings": {"data": "d", "rule": {"name": "n"}}}',
        '{"trace": [], "thresholds": [NaN], "settings": {"data": "d", "rule": {"name": "n"}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "ramp_up.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"ramp_up\.json.*no file of results.*python -m reproduction run ramp_up"):
        Results.read(tmp_path)


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "notes.json").write_text('["a list"]')
    assert Results.read(tmp_path).unknown == ("notes.json",)
