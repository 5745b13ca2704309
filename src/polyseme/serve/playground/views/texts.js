// Answers about places in a text. Offsets count characters as Python does, which JavaScript's strings do not.

import { element, formatNumber, note, percent, withShare } from "../dom.js";
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
    const certainty = (span) => Math.min(...result.offsets.flatMap(([start, end], k) => (start >= span.start && end <= span.end ? [result.probabilities[k]] : [])));
    const mark = (span, text) => element("mark", { class: `span ${color(span.label)}`, title: `${span.label}: ${percent(certainty(span))}` },
      text, element("small", {}, span.label));
    return element("p", { class: "tagged", dir: "auto" }, ...markSpans(body.texts[i], result.spans, mark));
  });
  const shown = [...new Set(used)];
  const legend = element("ul", { class: "legend", "aria-label": "Legend" }, ...shown.map((label) => element("li", {},
    element("i", { class: `swatch ${color(label)}`, "aria-hidden": "true" }), `${label} (${used.filter((each) => each === label).length})`)));
  const words = element("details", {}, element("summary", {}, "Every word"), ...results.map((result) => wordTags(result)));
  return [...paragraphs, shown.length ? legend : note("No word has a tag."), words];
}

function wordTags({ words, tags, probabilities }) {
  return element("div", { class: "pieces" }, ...words.map((word, i) => withShare(element("span", { class: "piece" },
    element("b", { dir: "auto" }, word), element("small", {}, tags[i]), element("small", {}, percent(probabilities[i]))), probabilities[i])));
}

export function drawAnswer([answer], { body }) {
  if (!answer.text) return [element("p", { class: "figure" }, "No answer in this text"), note(`Probability ${percent(answer.probability)}`)];
  const mark = (_, text) => element("mark", { class: "answer" }, text);
  const spans = answer.start >= 0 ? [answer] : [];
  return [element("p", { class: "figure", dir: "auto" }, answer.text),
    note(`Probability ${percent(answer.probability)} · score of “no answer” minus that of the answer: ${formatNumber(answer.null_score_diff, 2)}`),
    element("p", { class: "tagged", dir: "auto" }, ...markSpans(body.text, spans, mark))];
}

export function drawTranslate(results, { body }) {
  return results.flatMap((result, i) => [element("h3", { dir: "auto" }, body.texts[i]), element("p", { class: "output", dir: "auto" }, result.text),
    note(`Log-probability ${formatNumber(result.score, 2)}${result.is_finished ? "" : " · cut at the length limit"}`)]);
}

export function drawEncode([{ tokens, input_ids: ids }]) {
  return [note(`${tokens.length} tokens with special ones`), element("div", { class: "pieces" }, ...tokens.map((token, i) => element("span", { class: "piece" },
    element("b", { dir: "auto" }, token), element("small", {}, String(ids[i])))))];
}

export function drawPredict(results) {
  return results.flatMap(({ probabilities, ...rest }, i) => {
    const isByLabel = probabilities && !Array.isArray(probabilities);
    const shown = isByLabel || !probabilities ? rest : { ...rest, probabilities };
    return [element("h3", {}, `Example ${i + 1}`), isByLabel ? prediction({ probabilities, label: rest.label }) : null,
      element("pre", { tabindex: 0 }, JSON.stringify(shown, null, 1))].filter(Boolean);
  });
}
