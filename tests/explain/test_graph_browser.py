"""The page of a computation graph in a browser."""

import pytest

from polyseme.explain.graph import Graph
from polyseme.explain.graph.page import graph_page
from tests.support.browser import open_page, overflow


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    page = tmp_path_factory.mktemp("graph") / "graph.html"
    graph = Graph.from_expression("(x+y)*x*y**2", x=1, y=2)
    page.write_text(graph_page(graph, "(x+y)*x*y**2"), encoding="utf-8")
    return page


def test_steps_appear_one_by_one(path):
    with open_page(path) as page:
        num_hidden = "document.querySelectorAll('.hidden').length"
        before = page.evaluate(num_hidden)
        page.get_by_role("button", name="Next").click()
        assert page.evaluate(num_hidden) < before and "forward" in page.text_content("#step")
        page.get_by_role("slider", name="Step").press("End")
        assert page.evaluate(num_hidden) == 0 and page.text_content("#step").endswith("= 16")
        page.set_viewport_size({"width": 400, "height": 800})
        assert overflow(page) <= 0


def test_a_problem_of_a_page_is_noticed(tmp_path):
    (tmp_path / "page.html").write_text("<script>console.log(1); fetch('http://localhost:9/x').catch(() => 1)</script>")
    problems = r"(?s)console log: 1.*request: http://localhost:9/x"
    with pytest.raises(AssertionError, match=problems), open_page(tmp_path / "page.html") as page:
        page.wait_for_timeout(100)
