import pytest
from plotly import graph_objects

from apportion.errors import InvalidArgument
from apportion.reporting.drawing import write_page


def test_a_page_holds_all_that_it_needs(tmp_path):
    page = write_page(graph_objects.Figure(), tmp_path / "drawn.html", "html")
    assert page.stat().st_size > 1_000_000, "plotly itself is not in it"


def test_a_place_that_cannot_be_written_is_named_as_the_person_called_it():
    with pytest.raises(InvalidArgument, match=r"^figure='/dev/null/x\.html': it cannot be written"):
        write_page(graph_objects.Figure(), "/dev/null/x.html", "figure")
