"""Snippets that open a model folder with `transformers`, by the class that its `config.json` names."""

from collections.abc import Sequence
from typing import Any

from polyseme.report.cards.readme import format_literal

# Values of `model_type` in config.json that `transformers` has.
MODEL_TYPES = frozenset(
    {
        *("albert", "bert", "camembert", "distilbert", "gpt2", "modernbert", "openai-gpt", "roberta", "t5"),
        *("xlm-roberta", "xlnet"),
    }
)
_SHOW_LABEL = "print(model.config.id2label[model(**inputs).logits[0].argmax().item()])"
_SHOW_NUMBER = "print(model(**inputs).logits.item())"
_SHOW_TAGS = "print([model.config.id2label[i] for i in model(**inputs).logits[0].argmax(-1).tolist()])  # one per token"
_SHOW_SPAN = """outputs = model(**inputs)
start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs.input_ids[0, start : end + 1]))"""
_SHOW_CHOICE = """logits = model(**{name: values.unsqueeze(0) for name, values in inputs.items()}).logits
print(choices[logits.argmax().item()])"""
_SHOW_MASK = """position = inputs.input_ids[0].tolist().index(tokenizer.mask_token_id)
print(tokenizer.decode(model(**inputs).logits[0, position].argmax()))"""
_SHOW_TEXT = "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0], skip_special_tokens=True))"
_SHOW_CONTINUATION = """prompt = inputs.input_ids[:, :-1]  # without the token that ends a text
print(tokenizer.decode(model.generate(prompt, max_new_tokens=20)[0], skip_special_tokens=True))"""
_SHOW_STATES = "print(model(**inputs).last_hidden_state.shape)"
_SHOW_ENCODER_STATES = "print(model.get_encoder()(**inputs).last_hidden_state.shape)"
_SHOW_LOGITS = "print(model(**inputs).logits.shape)"


def sentence_transformers_usage(folder: str, texts: Sequence[str]) -> str:
    """Return code that computes the vectors of texts with `sentence-transformers`."""
    return f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer({format_literal(folder)})
print(model.encode({format_literal(list(texts))}).shape)"""


def transformers_usage(hf_config: dict[str, Any], folder: str, example: Any, mask_token: str = "") -> str:
    """Return code that opens a folder with the class that `config.json` names; empty if `transformers` has none.

    `example` is what the task's model reads: a text, a pair of texts, words, or a text with choices.
    """
    architecture = (hf_config.get("architectures") or [None])[0] or ""
    if hf_config.get("model_type") not in MODEL_TYPES or not architecture:
        return ""
    auto_class, inputs, show = _select_snippet(architecture, hf_config, example, mask_token)
    return f"""from transformers import {auto_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({format_literal(folder)})
model = {auto_class}.from_pretrained({format_literal(folder)})
{inputs}
{show}"""


def _select_snippet(
    architecture: str, hf_config: dict[str, Any], example: Any, mask_token: str
) -> tuple[str, str, str]:
    """Return the class to import, the code that encodes the example, and the code that shows the answer."""
    texts = _texts(example)
    if architecture.endswith("ForSequenceClassification"):
        show = _SHOW_NUMBER if hf_config.get("problem_type") == "regression" else _SHOW_LABEL
        return "AutoModelForSequenceClassification", _encode(texts), show
    if architecture.endswith("ForTokenClassification"):
        words = [word for text in texts for word in text.split()]
        return "AutoModelForTokenClassification", _encode([words], "is_split_into_words=True"), _SHOW_TAGS
    if "ForQuestionAnswering" in architecture:
        auto_class = "AutoModelForQuestionAnswering" if architecture.endswith("Answering") else architecture
        return auto_class, _encode(texts[::-1][:2]), _SHOW_SPAN  # the question first
    if architecture.endswith("ForMultipleChoice"):
        encode = 'inputs = tokenizer([text] * len(choices), choices, padding=True, return_tensors="pt")'
        lines = f"text, choices = {format_literal(texts[0])}, {format_literal(texts[1:])}\n{encode}"
        return "AutoModelForMultipleChoice", lines, _SHOW_CHOICE
    if architecture.endswith("ForConditionalGeneration"):
        return "AutoModelForSeq2SeqLM", _encode(texts[:1]), _SHOW_TEXT
    if architecture.endswith(("ForMaskedLM", "ForPreTraining")):
        return "AutoModelForMaskedLM", _encode([f"The {mask_token} is here."]), _SHOW_MASK
    if architecture.endswith("LMHeadModel"):
        show = _SHOW_CONTINUATION if hf_config.get("is_decoder") else _SHOW_LOGITS if mask_token else _SHOW_TEXT
        return "AutoModelForCausalLM", _encode(texts[:1]), show
    if hf_config.get("is_encoder_decoder") and architecture.endswith("Model"):
        return architecture, _encode(texts[:1]), _SHOW_STATES if "Encoder" in architecture else _SHOW_ENCODER_STATES
    return "AutoModel", _encode(texts[:1]), _SHOW_STATES


def _encode(arguments: Sequence[Any], *options: str) -> str:
    values = ", ".join([*map(format_literal, arguments), *options, 'return_tensors="pt"'])
    return f"inputs = tokenizer({values})"


def _texts(example: Any) -> list[str]:
    """Return the texts of an example; words are joined, and the choices of a question follow its text."""
    if isinstance(example, str):
        return [example]
    if not isinstance(example, tuple | list):
        return []
    if example and all(isinstance(part, str) and " " not in part for part in example):
        return [" ".join(example)]
    return [text for part in example for text in _texts(part)]
