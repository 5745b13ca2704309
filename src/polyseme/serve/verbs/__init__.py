"""What each verb computes.

Plans with the same key, also those of different requests, are computed at once. No result depends on the rest of its
batch.
"""

from collections.abc import Callable
from typing import Any

from polyseme.serve.api import requests, responses
from polyseme.serve.registry import ServedModel
from polyseme.serve.verbs import language, task_models, vectors
from polyseme.serve.verbs.plan import Plan

PLANS: dict[str, tuple[type[requests.ModelRequest], type, Callable[[ServedModel, Any], Plan]]] = {
    "fill": (requests.FillRequest, responses.FillResponse, language.plan_fill),
    "embed": (requests.EmbedRequest, responses.EmbedResponse, vectors.plan_embed),
    "score": (requests.ScoreRequest, responses.ScoreResponse, language.plan_score),
    "classify": (requests.ClassifyRequest, responses.ClassifyResponse, task_models.plan_classify),
    "tag": (requests.TagRequest, responses.TagResponse, task_models.plan_tag),
    "answer": (requests.AnswerRequest, responses.AnswerResponse, task_models.plan_answer),
    "choose": (requests.ChooseRequest, responses.ChooseResponse, language.plan_choose),
    "rerank": (requests.RerankRequest, responses.RerankResponse, vectors.plan_rerank),
    "translate": (requests.TranslateRequest, responses.TranslateResponse, language.plan_translate),
    "neighbors": (requests.NeighborsRequest, responses.NeighborsResponse, vectors.plan_neighbors),
    "predict": (requests.PredictRequest, responses.PredictResponse, task_models.plan_predict),
    "attention": (requests.AttentionRequest, responses.AttentionResponse, vectors.plan_attention),
    "encode": (requests.EncodeRequest, responses.EncodeResponse, language.plan_encode),
    "next_sentence": (requests.NextSentenceRequest, responses.NextSentenceResponse, language.plan_next_sentence),
}
