"""Models by date: when each published size first appeared, and a chart of their numbers of parameters."""

from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

from polyseme.errors import ConfigError
from polyseme.families import FAMILIES
from polyseme.families.summary import summarize_families
from polyseme.report.timeline import TimelinePoint, timeline_chart

# Month in which the paper, or the release if there was none before it, was first public: family -> size -> month.
RELEASES: Mapping[str, Mapping[str, str]] = {
    "transformer": {"base": "2017-06", "big": "2017-06"},
    "ulmfit": {"paper": "2018-01"},
    "elmo": {"original": "2018-02"},
    "gpt": {"base": "2018-06"},
    "flair": {"paper": "2018-08"},
    "bert": {"base": "2018-10", "large": "2018-10", "multilingual": "2018-11"},
    "transformer_xl": {"base": "2019-01", "large": "2019-01"},
    "gpt2": {
        **dict.fromkeys(("small", "medium", "large", "xl"), "2019-02"),
        **dict.fromkeys(("gpt3-13b", "gpt3-175b"), "2020-05"),
    },
    "xlnet": {"base": "2019-06", "large": "2019-06"},
    "roberta": {"base": "2019-07", "large": "2019-07"},
    "spanbert": {"base": "2019-07", "large": "2019-07"},
    "albert": dict.fromkeys(("base", "large", "xlarge", "xxlarge"), "2019-09"),
    "distilbert": {"base": "2019-10"},
    "t5": dict.fromkeys(("small", "base", "large", "3b", "11b"), "2019-10"),
    "camembert": {"base": "2019-11"},
    "xlm_roberta": {"base": "2019-11", "large": "2019-11"},
    "modernbert": {"base": "2024-12", "large": "2024-12"},
}


class Release(NamedTuple):
    """A published size, its month (the first of it), and its number of parameters without heads.

    `is_published` says whether the count is one that the paper or the release gives; else it is only ours.
    """

    name: str
    month: date
    num_params: int
    is_published: bool


def list_releases(first_year: int = 2018, last_year: int = 2019) -> list[Release]:
    """Return the published sizes of these years, in the order of their months."""
    if last_year < first_year:
        raise ConfigError(f"the years {first_year}-{last_year} are not in order")
    releases = []
    for summary in summarize_families():
        month = RELEASES.get(summary.family, {}).get(summary.size)
        if month and first_year <= int(month[:4]) <= last_year:
            is_published = summary.size in FAMILIES[summary.family].num_params
            name = summary.size if summary.size.startswith("gpt3") else f"{summary.family}-{summary.size}"
            day = date.fromisoformat(f"{month}-01")
            releases.append(Release(name, day, summary.num_params, is_published))
    if not releases:
        years = sorted(month[:4] for sizes in RELEASES.values() for month in sizes.values())
        raise ConfigError(
            f"no family was published in {first_year}-{last_year}; there are some in {years[0]}-{years[-1]}"
        )
    return sorted(releases, key=lambda release: (release.month, release.num_params))


def release_chart(releases: list[Release]) -> str:
    """Draw the numbers of parameters by month, on a logarithmic axis."""
    points = [TimelinePoint(each.name, each.month, each.num_params) for each in releases]
    return timeline_chart(points, "parameters without heads")
