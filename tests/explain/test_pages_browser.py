"""Pages without a script of their own in a real browser: geometry, Word in Context, probes."""

import polyseme
from polyseme.explain import explain_geometry, explain_wic, probe
from tests.support.browser import open_page, overflow

NOUNS = ("cat", "dog", "river")
TEXTS = [f"{article} {noun} sees the old {other}" for article in ("the", "a") for noun in NOUNS for other in NOUNS]
WIC = [("cat", "T", "0-0", "cat sees the dog", "cat is old"), ("river", "F", "1-1", "the river is old", "a river sees")]


def check(page_path, num_figures):
    for width, dark in ((1200, False), (400, True)):
        with open_page(page_path, width=width, dark=dark) as page:
            assert overflow(page) == 0 and page.locator("figure svg").count() >= num_figures


def test_geometry(tiny_folders, tmp_path):
    explain_geometry([polyseme.load(tiny_folders["bert"], "cpu")], TEXTS).save(tmp_path / "geometry.html")
    check(tmp_path / "geometry.html", 3)


def test_probes(tiny_folders, tmp_path):
    rows = "".join(f"{text}\t{text.split()[0]}\n" for text in TEXTS)
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + rows)
    model = polyseme.load(tiny_folders["bert"], "cpu")
    probe([model], "classification", tmp_path / "train.tsv", seeds=2).save(tmp_path / "probe.html")
    check(tmp_path / "probe.html", 1)


def test_word_in_context(tiny_folders, tmp_path):
    for split in ("train", "dev"):
        rows = [(word, "N", places, a, b) for word, _, places, a, b in WIC * 4]
        (tmp_path / split).mkdir()
        (tmp_path / split / f"{split}.data.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
        (tmp_path / split / f"{split}.gold.txt").write_text("".join(f"{row[1]}\n" for row in WIC * 4))
    explain_wic([polyseme.load(tiny_folders["bert"], "cpu")], tmp_path).save(tmp_path / "wic.html")
    check(tmp_path / "wic.html", 1)
