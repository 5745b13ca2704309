"""The studies by name: the ablations that papers report, and the lineage on equal terms."""

from polyseme.studies.base import Study
from polyseme.studies.catalog.albert import ALBERT_STUDIES
from polyseme.studies.catalog.bert import BERT_STUDIES
from polyseme.studies.catalog.features import FEATURE_STUDIES
from polyseme.studies.catalog.lineage import LINEAGE_STUDIES
from polyseme.studies.catalog.modern import MODERN_STUDIES
from polyseme.studies.catalog.roberta import ROBERTA_STUDIES

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *LINEAGE_STUDIES,
        *BERT_STUDIES,
        *ALBERT_STUDIES,
        *ROBERTA_STUDIES,
        *FEATURE_STUDIES,
        *MODERN_STUDIES,
    )
}
