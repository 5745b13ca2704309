// What each tab asks and how it draws the answer. A tab has the name of a verb, or its own with the `verb` it sends.

import { drawAttention } from "./views/attention.js";
import { drawEmbed, drawWords } from "./views/embed.js";
import { drawFill, insertMask } from "./views/fill.js";
import { GenerateView } from "./views/generate.js";
import { drawChoose, drawClassify, drawNeighbors, drawNextSentence, drawRerank, drawScore } from "./views/lists.js";
import { drawAnswer, drawEncode, drawPredict, drawTag, drawTranslate } from "./views/texts.js";

const text = (label, more = {}) => ({ name: "text", label, kind: "text", isRequired: true, ...more });
const word = (name, label, more = {}) => ({ name, label, kind: "word", isRequired: true, ...more });
const lines = (name, label, more = {}) => (
  { name, label, kind: "lines", isRequired: true, rows: 4, help: "One per line.", ...more }
);
const number = (name, label, more = {}) => ({ name, label, kind: "number", isOption: true, ...more });
const select = (name, label, choices, more = {}) => ({ name, label, kind: "select", isOption: true, choices, ...more });
const MORE_TEXTS = ["The film was a delight.", "I liked the movie.", "The street is wet.", "It rained all day."];
const moreTexts = (verb) => (model) => (model.examples[verb]?.texts ? {} : { texts: MORE_TEXTS });
const same = (name) => [name, name];
const LAYERS = ["last", "second_to_last", "sum_last_4", "concat_last_4", "sum_all", "embeddings"].map(same);
const METRICS = [["", "default"], ...["original", "within_word_l2r"].map(same)];
const NORMALIZATIONS = [["none", "log-probability"], ["length", "mean per token"], ["unconditional", "gain over no text"]];
const hasLayers = (model) => model.kind === "NeuralLM" || model.kind === "ElmoModel";

const maxNewTokens = number("max_new_tokens", "Most new tokens", { min: 0, max: 4096, placeholder: "model's" });
const numBeams = number("num_beams", "Beams", { min: 0, max: 64, placeholder: "none" });
const DECODING = [
  maxNewTokens,
  number("temperature", "Temperature", { min: 0, max: 100, step: "any", placeholder: "greedy" }),
  number("top_p", "Top p", { min: 0, max: 1, step: "any", placeholder: "1" }),
  number("top_k", "Top k", { min: 0, placeholder: "all" }),
  number("seed", "Seed", { placeholder: "0" }),
  number("num_return_sequences", "Texts", { min: 1, max: 64, placeholder: "1" }),
  number("repetition_penalty", "Repetition penalty", { min: 0, max: 100, step: "any", placeholder: "1" }),
  numBeams,
];
const WORD = "bank";
const WORD_TEXTS = [
  "She sat on the bank of the river.", "He opened an account at the bank.", "The bank lends money to small firms.",
  "They walked along the muddy bank.", "The bank raised its rates.", "Trees grow on the bank of the stream.",
];

export const TABS = {
  fill: {
    label: "Fill",
    about: "Predicts the masked words of a text. Click a candidate to put it in.",
    fields: [text("Text with masks", { extra: insertMask }), number("top_k", "Candidates per mask", { min: 1, max: 1000 })],
    draw: drawFill,
  },
  embed: {
    label: "Embed",
    about: "Turns texts into vectors. The matrix shows the cosine of each pair.",
    example: moreTexts("embed"),
    fields: [lines("texts", "Texts"), select("layers", "Layers", LAYERS, { shown: hasLayers, value: "last" })],
    draw: drawEmbed,
  },
  words: {
    label: "Words in context",
    about: "The vectors of one word in several sentences: uses with the same meaning are close.",
    verb: "embed",
    isSupported: (model) => model.verbs.includes("embed") && hasLayers(model),
    example: () => ({ word: WORD, texts: WORD_TEXTS }),
    fields: [word("word", "Word"), lines("texts", "Sentences with the word", { rows: 7 })],
    body: ({ texts }) => ({ texts, layers: "all", granularity: "word" }),
    hidden: { encoding_format: "base64" },
    draw: drawWords,
  },
  score: {
    label: "Score",
    about: "How likely a text is for the model. Fewer bits per character: less surprising.",
    example: moreTexts("score"),
    fields: [
      lines("texts", "Texts"),
      select("pll_metric", "Masked models", METRICS, { shown: (model) => model.verbs.includes("fill") }),
    ],
    draw: drawScore,
  },
  classify: {
    label: "Classify",
    about: "Predicts the label, or the number, of each text or pair of texts.",
    fields: [
      lines("texts", "Texts"),
      lines("pairs", "Second texts of the pairs", { shown: (model, example) => "pair" in example || "pairs" in example }),
    ],
    draw: drawClassify,
  },
  tag: {
    label: "Tag",
    about: "Predicts a tag for every word. Words are separated by spaces.",
    fields: [
      lines("texts", "Texts"),
      number("predicate", "Predicate (number of its word, from 0)",
        { isOption: false, min: 0, shown: (model, example) => "predicate" in example }),
    ],
    draw: drawTag,
  },
  answer: {
    label: "Answer",
    about: "Finds the answer to a question in a text.",
    fields: [text("Text", { rows: 6 }), word("question", "Question")],
    draw: drawAnswer,
  },
  choose: {
    label: "Choose",
    about: "Ranks what may follow a text, fill its gap, or fit it best.",
    fields: [
      text("Text"), lines("choices", "Choices"),
      select("normalization", "Compare by", NORMALIZATIONS, { shown: (model) => !model.task, value: "none" }),
    ],
    draw: drawChoose,
  },
  rerank: {
    label: "Rerank",
    about: "Orders texts by how well they match a query.",
    fields: [
      word("query", "Query"), lines("texts", "Texts", { rows: 5 }),
      number("top_k", "Best texts only", { min: 1, max: 256, placeholder: "all" }),
    ],
    draw: drawRerank,
  },
  generate: {
    label: "Generate",
    about: "Continues a text. Point at a token to see how likely it was, and what else was.",
    openOptions: true,
    fields: [text("Prompt"), ...DECODING],
    body: (values) => (values.num_beams ? values : { ...values, num_top_tokens: 5, stream: true }),
    View: GenerateView,
  },
  translate: {
    label: "Translate",
    about: "Translates each text, by beam search unless the settings say otherwise.",
    fields: [
      lines("texts", "Texts"), { ...numBeams, placeholder: "5" }, maxNewTokens,
      { name: "split_sentences", label: "Split long texts into sentences", kind: "checkbox", isOption: true },
    ],
    draw: drawTranslate,
  },
  neighbors: {
    label: "Neighbors",
    about: "The words with the most similar vectors. Click one to go on from there.",
    fields: [word("text", "Word"), number("top_k", "Neighbors", { min: 1, max: 1000 })],
    draw: drawNeighbors,
  },
  predict: {
    label: "Predict",
    about: "Predicts examples of the model's task, written as in the Python API.",
    fields: [{ name: "examples", label: "Examples (a list in JSON)", kind: "json", rows: 5, isRequired: true }],
    draw: drawPredict,
  },
  attention: {
    label: "Attention",
    about: "Which words each head of each layer looks at.",
    fields: [
      text("Text"),
      word("pair", "Second text (optional)", { isRequired: false, shown: (model) => model.verbs.includes("next_sentence") }),
      word("target", "Target (optional)", { isRequired: false, shown: (model) => model.verbs.includes("translate") }),
      { name: "merge_words", label: "Merge the tokens of a word", kind: "checkbox", value: true },
    ],
    hidden: { encoding_format: "base64" },
    draw: drawAttention,
  },
  encode: {
    label: "Encode",
    about: "The tokens of a text as the model reads them.",
    fields: [text("Text")],
    draw: drawEncode,
  },
  next_sentence: {
    label: "Next sentence",
    about: "How likely the second text follows the first.",
    fields: [text("First text"), { name: "pair", label: "Second text", kind: "text", isRequired: true }],
    draw: drawNextSentence,
  },
};

export function tabsOf(model) {
  return Object.keys(TABS).filter((name) => TABS[name].isSupported?.(model) ?? model.verbs.includes(name));
}
