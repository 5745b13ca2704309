// Vectors of texts, and of one word in several sentences: a matrix of cosines and a plot of two principal components.

import { download, element, formatNumber, note, svgElement, withShare } from "../dom.js";
import { decodeFloats, project, similarities } from "../vectors.js";

// labels: strings or arrays of nodes; rows of the matrix are numbered as the points of the plot.
function matrix(rows, labels, name) {
  const values = similarities(rows), numbers = rows.map((_, i) => element("th", { scope: "col", class: "n" }, String(i + 1)));
  const off = values.flatMap((row, i) => row.filter((_, j) => i !== j)), low = Math.min(...off, 1);
  const body = values.map((row, i) => element("tr", {}, element("th", { scope: "row", dir: "auto" }, element("b", {}, `${i + 1}`), " ", ...[labels[i]].flat()),
    ...row.map((value) => withShare(element("td", { class: "heat n" }, value.toFixed(2)), low < 1 ? (value - low) / (1 - low) : 1))));
  const grid = element("table", { class: "matrix" }, element("caption", { class: "hidden" }, name),
    element("thead", {}, element("tr", {}, element("td"), ...numbers)), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, grid);
}

const MAX_SHOWN = 50, WIDTH = 360, HEIGHT = 260, MARGIN = 18;

function plot(rows, names) {
  const { points, shares } = project(rows);
  const range = [0, 1].map((axis) => points.map((point) => point[axis])).map((values) => [Math.min(...values), Math.max(...values)]);
  const scale = Math.min(...range.map(([low, high], axis) => ([WIDTH, HEIGHT][axis] - 2 * MARGIN) / (high - low || 1e-9))); // equal for both axes
  const place = (point) => point.map((value, axis) => (axis ? -1 : 1) * scale * (value - (range[axis][0] + range[axis][1]) / 2));
  const marks = points.map((point, i) => svgElement("g", { transform: `translate(${place(point).map((value) => value.toFixed(1)).join(" ")})` },
    svgElement("title", {}, names[i]), svgElement("circle", { r: 10 }), svgElement("text", { "text-anchor": "middle", dy: "0.35em" }, String(i + 1))));
  const percent = shares.map((share) => `${(100 * share).toFixed(0)}%`).join(" and ");
  return element("figure", {}, svgElement("svg", { class: "plot", viewBox: `${-WIDTH / 2} ${-HEIGHT / 2} ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Map of the vectors" }, ...marks),
    element("figcaption", { class: "note" }, `The first two principal components: ${percent} of the variance.`));
}

export function drawEmbed(results, { body, model }) {
  const rows = results.map((result) => result.vectors), shown = rows.slice(0, MAX_SHOWN), texts = body.texts.slice(0, MAX_SHOWN);
  const save = () => download(`${model.name}-vectors.json`, JSON.stringify({ model: model.name, texts: body.texts, vectors: rows }));
  const parts = [element("h3", {}, "Cosine similarity"), matrix(shown, texts, "Cosine similarity of the texts")];
  if (rows.length > MAX_SHOWN) parts.push(note(`The first ${MAX_SHOWN} of ${rows.length} texts.`));
  if (rows.length > 2) parts.push(element("h3", {}, "Map"), plot(shown, texts));
  parts.push(element("div", { class: "actions" }, element("button", { type: "button", class: "quiet", click: save }, "Download the vectors"),
    element("span", { class: "hint" }, `${rows.length} × ${rows[0].length} numbers`)));
  return parts;
}

// ---------------------------------------------------------------------------------------------- words in context

const plain = (word) => word.toLowerCase().replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, "");

// The words of a text as they are written there, if the model reads as many; its tokenizer may have changed them.
function writtenWords(text, units) {
  const written = [text.split(/\s+/), text.match(/[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]/gu) || []];
  return written.find((words) => words.length === units.length) || units;
}

// The vectors of the word in every layer: {label, name, layers: [vector, …]} for each place.
function occurrences(results, texts, word) {
  const found = [];
  results.forEach((result, i) => {
    const [numUnits, numLayers, dim] = result.shape, values = decodeFloats(result.vectors);
    const words = writtenWords(texts[i], result.units).slice(0, numUnits);
    words.forEach((unit, k) => {
      if (plain(unit) !== plain(word)) return;
      const context = (from, to) => words.slice(Math.max(from, 0), to).join(" ");
      const label = [`${context(k - 4, k)} `, element("mark", {}, unit), ` ${context(k + 1, k + 5)}`.replace(/ (?=[.,;:!?])/g, "")];
      const layers = Array.from({ length: numLayers }, (_, layer) => values.subarray((k * numLayers + layer) * dim, (k * numLayers + layer + 1) * dim));
      found.push({ label, layers, name: texts[i] });
    });
  });
  return found;
}

export function drawWords(results, { body, values }) {
  const found = occurrences(results, body.texts, values.word).slice(0, MAX_SHOWN);
  if (found.length < 2) return note(`“${values.word}” is in ${found.length ? "one place" : "none"} of these sentences; at least two are needed.`);
  const last = found[0].layers.length - 1, view = element("div");
  const output = element("output", { for: "words-layer" });
  const slider = element("input", { type: "range", min: 0, max: last, value: last, "aria-label": "Layer" });
  const draw = () => {
    const rows = found.map((place) => place.layers[+slider.value]);
    output.textContent = +slider.value === 0 ? "embeddings" : `layer ${slider.value} of ${last}`;
    const isSame = similarities(rows).flat().every((value) => value > 1 - 1e-6);
    view.replaceChildren(matrix(rows, found.map((place) => [...place.label].map((part) => (part.cloneNode ? part.cloneNode(true) : part))), "Cosine similarity of the occurrences"),
      isSame ? note("All vectors are the same: no context is in them.") : found.length > 2 ? plot(rows, found.map((place) => place.name)) : note(""));
  };
  slider.addEventListener("input", draw);
  draw();
  return [element("label", { class: "slider" }, "Layer ", slider, output), view];
}
