// Vectors of texts, and of one word in several sentences: a matrix of cosines and a plot of two principal components.

import { download, element, note, svgElement, withShare } from "../dom.js";
import { decodeFloats, project, similarities } from "../vectors.js";

const MAX_SHOWN = 50, WIDTH = 360, HEIGHT = 260, MARGIN = 18;

// labels: functions that return nodes; rows of the matrix are numbered as the points of the plot.
function matrix(rows, labels, name) {
  const values = similarities(rows);
  const low = Math.min(1, ...values.flatMap((row, i) => row.filter((_, j) => i !== j)));
  const share = (value) => (low < 1 ? (value - low) / (1 - low) : 1);
  const numbers = rows.map((_, i) => element("th", { scope: "col", class: "n" }, String(i + 1)));
  const body = values.map((row, i) => element("tr", {},
    element("th", { scope: "row", dir: "auto" }, element("b", {}, `${i + 1} `), ...labels[i]()),
    ...row.map((value) => withShare(element("td", { class: "heat n" }, value.toFixed(2)), share(value)))));
  const grid = element("table", { class: "matrix" }, element("caption", { class: "hidden" }, name),
    element("thead", {}, element("tr", {}, element("td"), ...numbers)), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, grid);
}

// The points of both axes have the same scale, and the middle of the drawing is the origin.
function plot(rows, names) {
  const { points, shares } = project(rows);
  const ends = [0, 1].map((axis) => points.map((point) => point[axis]))
    .map((values) => [Math.min(...values), Math.max(...values)]);
  const scale = Math.min(...ends.map(([low, high], i) => ([WIDTH, HEIGHT][i] - 2 * MARGIN) / (high - low || 1e-9)));
  const middle = ends.map(([low, high]) => (low + high) / 2);
  const marks = points.map(([x, y], i) => {
    const place = [scale * (x - middle[0]), -scale * (y - middle[1])].map((value) => value.toFixed(1)).join(" ");
    return svgElement("g", { transform: `translate(${place})` }, svgElement("title", {}, names[i]),
      svgElement("circle", { r: 10 }), svgElement("text", { "text-anchor": "middle", dy: "0.35em" }, String(i + 1)));
  });
  const viewBox = `${-WIDTH / 2} ${-HEIGHT / 2} ${WIDTH} ${HEIGHT}`;
  const drawing = svgElement("svg", { class: "plot", viewBox, role: "img", "aria-label": "Map of the vectors" }, ...marks);
  const explained = shares.map((share) => `${(100 * share).toFixed(0)}%`).join(" and ");
  const caption = `The first two principal components: ${explained} of the variance.`;
  return element("figure", {}, drawing, element("figcaption", { class: "note" }, caption));
}

export function drawEmbed(results, { body, model }) {
  const vectors = results.map((result) => result.vectors);
  const shown = vectors.slice(0, MAX_SHOWN), texts = body.texts.slice(0, MAX_SHOWN);
  const save = () => download(`${model.name}-vectors.json`, JSON.stringify({ model: model.name, texts: body.texts, vectors }));
  const labels = texts.map((text) => () => [text]);
  const parts = [element("h3", {}, "Cosine similarity"), matrix(shown, labels, "Cosine similarity of the texts")];
  if (vectors.length > MAX_SHOWN) parts.push(note(`The first ${MAX_SHOWN} of ${vectors.length} texts.`));
  if (vectors.length > 2) parts.push(element("h3", {}, "Map"), plot(shown, texts));
  const button = element("button", { type: "button", class: "quiet", click: save }, "Download the vectors");
  const size = element("span", { class: "hint" }, `${vectors.length} × ${vectors[0].length} numbers`);
  return [...parts, element("div", { class: "actions" }, button, size)];
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
    const context = (start, end) => words.slice(Math.max(start, 0), end).join(" ");
    words.forEach((unit, k) => {
      if (plain(unit) !== plain(word)) return;
      const after = ` ${context(k + 1, k + 5)}`.replace(/ (?=[.,;:!?])/g, "");
      const layers = Array.from({ length: numLayers }, (_, layer) => {
        const start = (k * numLayers + layer) * dim;
        return values.subarray(start, start + dim);
      });
      found.push({ label: () => [`${context(k - 4, k)} `, element("mark", {}, unit), after], layers, name: texts[i] });
    });
  });
  return found;
}

export function drawWords(results, { body, values }) {
  const found = occurrences(results, body.texts, values.word).slice(0, MAX_SHOWN);
  if (found.length < 2) {
    const places = found.length ? "in one place" : "not in these sentences";
    return note(`“${values.word}” is ${places}; at least two are needed.`);
  }
  const last = found[0].layers.length - 1, view = element("div"), output = element("output");
  const slider = element("input", { type: "range", min: 0, max: last, value: last, "aria-label": "Layer", input: draw });
  function draw() {
    const rows = found.map((place) => place.layers[+slider.value]);
    output.textContent = +slider.value === 0 ? "embeddings" : `layer ${slider.value} of ${last}`;
    view.replaceChildren(matrix(rows, found.map((place) => place.label), "Cosine similarity of the occurrences"));
    if (similarities(rows).flat().every((value) => value > 1 - 1e-6)) view.append(note("All vectors are the same."));
    else if (found.length > 2) view.append(plot(rows, found.map((place) => place.name)));
  }
  draw();
  return [element("label", { class: "slider" }, "Layer ", slider, output), view];
}
