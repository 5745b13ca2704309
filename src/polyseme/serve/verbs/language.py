"""Verbs of language models: fill, score, choose, translate, encode and next_sentence."""

from collections.abc import Sequence
from functools import partial

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.errors import ConfigError, DataError
from polyseme.generation.config import TRANSLATION, GenerationConfig
from polyseme.inference.results import ChoiceResult, TextScore, finite_or_none
from polyseme.serve.api import requests, responses
from polyseme.serve.registry import ServedModel
from polyseme.serve.verbs.plan import Plan, Results, check_lengths, count_checked, count_usage, plan_examples


def plan_fill(served: ServedModel, request: requests.FillRequest) -> Plan:
    """Predict masked tokens; a text without a mask, or one that is too long, is an error."""
    texts, usage = request.all_texts, count_usage(served, request.all_texts)
    mask = served.model.tokenizer.mask_token
    for text in texts:
        if mask is None or mask not in text:
            raise DataError(f"there is no {mask} in {text[:40]!r}")
    check_lengths(served, texts)

    def respond(results: Results) -> responses.FillResponse:
        return responses.FillResponse(served.name, list(results), usage)

    run = partial(served.model.fill, top_k=request.top_k)
    return Plan(("fill", request.top_k), texts, usage.num_tokens, run, respond)


def plan_score(served: ServedModel, request: requests.ScoreRequest) -> Plan:
    """Compute log-probabilities; a masked model reads one copy of a text per token."""
    texts = request.all_texts
    counts = count_checked(served, texts)
    is_masked = served.model.has_pll_metric or request.pll_metric is not None
    num_tokens = sum(n * n for n in counts) if is_masked else sum(counts)

    def respond(results: Results) -> responses.ScoreResponse:
        return responses.ScoreResponse(
            served.name, [score_result(each) for each in results], responses.Usage(sum(counts))
        )

    def run(inputs: Results) -> Results:
        return served.model.score(list(inputs), request.pll_metric)

    return Plan(("score", request.pll_metric), texts, num_tokens, run, respond)


def score_result(score: TextScore) -> responses.ScoreResult:
    """Convert a score; a perplexity that is too large for a number is left out."""
    counts, perplexity = (score.num_tokens, score.num_characters), finite_or_none(score.perplexity)
    return responses.ScoreResult(score.log_prob, *counts, perplexity, score.bits_per_character)


def plan_choose(served: ServedModel, request: requests.ChooseRequest) -> Plan:
    """Choose with a task model, or by the log-probabilities of a language model."""
    choice_lists = request.spread("choice_list", request.choices, request.choice_lists)
    if None in choice_lists or not all(len(choices) > 1 for choices in choice_lists):
        raise ConfigError("each text needs at least two `choices`")
    usage = count_usage(served, [*request.all_texts, *(choice for each in choice_lists for choice in each)])
    questions = list(zip(request.all_texts, choice_lists))
    if served.task is not None and served.task.verb == "choose":

        def respond_task(results: Results) -> responses.ChooseResponse:
            rows = []
            for prediction, choices in zip(results, choice_lists):
                best, scores = int(prediction.label), list(prediction.probabilities.values())
                rows.append(responses.ChooseResult(best, choices[best], scores))
            return responses.ChooseResponse(served.name, rows, usage)

        return plan_examples(served, questions, usage.num_tokens, request.truncate, respond_task)

    def respond(results: Results) -> responses.ChooseResponse:
        rows = [choose_result(each, choices) for each, choices in zip(results, choice_lists)]
        return responses.ChooseResponse(served.name, rows, usage)

    options = request.normalization, request.context

    def run(inputs: Results) -> Results:
        texts, choices = zip(*inputs)
        ranked: Results = served.model.rank_choices(
            list(texts), list(choices), normalization=options[0], context=options[1]
        )
        return ranked

    return Plan(("choose", *options), questions, usage.num_tokens, run, respond)


def choose_result(ranked: ChoiceResult, choices: Sequence[str]) -> responses.ChooseResult:
    """Convert the ranking of a language model."""
    scores = [score_result(score) for score in ranked.scores]
    return responses.ChooseResult(ranked.best_index, choices[ranked.best_index], list(ranked.normalized_scores), scores)


def plan_translate(served: ServedModel, request: requests.TranslateRequest) -> Plan:
    """Translate by beam search, or as the options say."""
    texts, usage = request.all_texts, count_usage(served, request.all_texts)
    config = request.generation_config(GenerationConfig(max_new_tokens=0) if request.do_sample else TRANSLATION)
    split = (lambda text: split_sentences(text, "")) if request.split_sentences else None

    def run(inputs: Results) -> Results:
        translated: Results = served.model.translate(list(inputs), config, split=split)
        return translated

    def respond(results: Results) -> responses.TranslateResponse:
        rows = [responses.TranslatedResult(each.text, each.score, each.is_finished) for each in results]
        num_tokens = sum(served.count_tokens([each.text for each in results]))
        return responses.TranslateResponse(served.name, rows, responses.Usage(usage.num_tokens, num_tokens))

    key = ("translate", request.split_sentences, config)
    return Plan(key, texts, usage.num_tokens * max(config.num_beams, 1), run, respond)


def plan_encode(served: ServedModel, request: requests.EncodeRequest) -> Plan:
    """Encode texts as the model reads them."""

    def respond(results: Results) -> responses.EncodeResponse:
        encoded = [responses.EncodedResult(**vars(each)) for each in results]
        return responses.EncodeResponse(served.name, encoded, usage)

    usage = count_usage(served, request.all_texts)
    return Plan("encode", request.all_texts, usage.num_tokens, served.model.encode, respond)


def plan_next_sentence(served: ServedModel, request: requests.NextSentenceRequest) -> Plan:
    """Predict whether one text follows another."""
    pairs = request.spread("pair", request.pair, request.pairs)
    if None in pairs:
        raise ConfigError("`pair` is missing")
    usage = count_usage(served, [*request.all_texts, *pairs])

    def run(inputs: Results) -> Results:
        first, second = zip(*inputs)
        return served.model.next_sentence(list(first), list(second))

    def respond(results: Results) -> responses.NextSentenceResponse:
        return responses.NextSentenceResponse(served.name, list(results), usage)

    inputs = list(zip(request.all_texts, pairs))
    return Plan("next_sentence", inputs, usage.num_tokens, run, respond)
