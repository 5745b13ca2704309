// Answers about places in a text. Offsets count characters as Python does, which JavaScript's strings do not.

import { element, formatNumber, note, percent } from "../dom.js";
import { prediction } from "./lists.js";

const NUM_COLORS = 8;

// The text as nodes: `mark(span, text)` makes the node of each span, which are in order and do not overlap.
function markSpans(text, spans, mark) {
  const characters = Array.from(text), cut = (start, end) => characters.slice(start, end).join(""), nodes = [];
  let place = 0;
  for (const span of spans) {
    nodes.push(cut(place, span.start), mark(span, cut(span.start, span.end)));
    place = span.end;
  }
  return [...nodes, cut(place)];
}

export function drawTag(results, { model, body }) {
  const used = results.flatMap((result) => result.spans.map((span) => span.label));
  const known = (model.labels || []).map((label) => label.replace(/^[BIESLUM]-/, ""));
  const labels = [...new Set([...known, ...used])].filter((label) => label !== "O" && label !== "_");
  const color = (label) => `color-${(labels.indexOf(label) % NUM_COLORS) + 1}`;
  const paragraphs = results.map((result, i) => {
    const isIn = (span, k) => result.offsets[k][0] >= span.start && result.offsets[k][1] <= span.end;
    const certainty = (span) => Math.min(...result.probabilities.filter((_, k) => isIn(span, k)));
    const mark = (span, text) => element("mark",
      { class: `span ${color(span.label)}`, title: `${span.label}: ${percent(certainty(span))}` },
      text, element("small", {}, span.label));
    return element("p", { class: "tagged", dir: "auto" }, ...markSpans(body.texts[i], result.spans, mark));
  });
  const shown = [...new Set(used)];
  const legend = element("ul", { class: "legend", "aria-label": "Legend" }, ...shown.map((label) => {
    const swatch = element("i", { class: `swatch ${color(label)}`, "aria-hidden": "true" });
    return element("li", {}, swatch, `${label} (${used.filter((each) => each === label).length})`);
  }));
  const words = element("details", {}, element("summary", {}, "Every word"), ...results.map((result) => wordTags(result)));
  return [...paragraphs, shown.length ? legend : note("No word has a tag."), words];
}

function wordTags({ words, tags, probabilities }) {
  return pieces(words.map((word, i) => [word, tags[i], percent(probabilities[i])]));
}

// Words or tokens, each with small lines below it.
function pieces(rows) {
  return element("div", { class: "pieces" }, ...rows.map(([word, ...below]) => element("span", { class: "piece" },
    element("b", { dir: "auto" }, word), ...below.map((line) => element("small", {}, line)))));
}

export function drawAnswer([answer], { body }) {
  const probability = `Probability ${percent(answer.probability)}`;
  if (!answer.text) return [element("p", { class: "figure" }, "No answer in this text"), note(probability)];
  const mark = (_, text) => element("mark", { class: "answer" }, text);
  const spans = answer.start >= 0 ? [answer] : [];
  return [element("p", { class: "figure", dir: "auto" }, answer.text),
    note(`${probability} · score of “no answer” minus that of the answer: ${formatNumber(answer.null_score_diff, 2)}`),
    element("p", { class: "tagged", dir: "auto" }, ...markSpans(body.text, spans, mark))];
}

export function drawTranslate(results, { body }) {
  return results.flatMap((result, i) => [element("h3", { dir: "auto" }, body.texts[i]),
    element("p", { class: "output", dir: "auto" }, result.text),
    note(`Log-probability ${formatNumber(result.score, 2)}${result.is_finished ? "" : " · cut at the length limit"}`)]);
}

export function drawEncode([{ tokens, input_ids: ids }]) {
  return [note(`${tokens.length} tokens with special ones`), pieces(tokens.map((token, i) => [token, String(ids[i])]))];
}

export function drawPredict(results) {
  return results.flatMap(({ probabilities, ...rest }, i) => {
    const isByLabel = probabilities && !Array.isArray(probabilities);
    const shown = isByLabel || !probabilities ? rest : { ...rest, probabilities };
    return [element("h3", {}, `Example ${i + 1}`), isByLabel ? prediction({ probabilities, label: rest.label }) : null,
      element("pre", { tabindex: 0 }, JSON.stringify(shown, null, 1))].filter(Boolean);
  });
}
