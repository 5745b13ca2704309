// Attention: all heads as small pictures, and one head as lines between words, as on the page of `explain attention`.

import { element, moveFocus, plural, svgElement, withShare } from "../dom.js";
import { decodeFloats } from "../vectors.js";

const ROW_HEIGHT = 24, THRESHOLD = 0.1, MAX_PIXELS = 48, MAX_LISTED = 5;
const NAMES = { self: "self-attention", encoder: "encoder", decoder: "decoder", cross: "decoder to encoder" };
const formatWeight = (weight) => (weight < 0.005 ? "<0.01" : weight.toFixed(2));

export function drawAttention(results) {
  const maps = results.map((map) => ({ ...map, values: decodeFloats(map.weights) }));
  const view = element("div"), show = (map) => view.replaceChildren(new MapView(map).node);
  show(maps[0]);
  if (maps.length === 1) return view;
  const options = maps.map((map, i) => element("option", { value: i }, NAMES[map.name] || map.name));
  const select = element("select", {}, ...options);
  select.addEventListener("change", () => show(maps[+select.value]));
  return [element("label", { class: "slider" }, "Attention ", select), view];
}

class MapView {
  constructor(map) {
    const [layers, heads] = map.shape;
    Object.assign(this, { map, layers, heads, layer: layers - 1, head: 0, active: null });
    this.title = element("h3");
    this.svg = svgElement("svg", { "aria-hidden": "true" });
    this.queries = map.queries.map((label, i) => this.word("queries", label, i));
    this.keys = map.keys.map((label, i) => this.word("keys", label, i));
    this.description = element("p", { class: "note", role: "status" });
    const columns = [this.column("From", this.queries), this.svg, this.column("To", this.keys)];
    this.lines = element("div", { class: "links" }, ...columns);
    this.lines.addEventListener("pointerleave", () => this.activate(null));
    const oneHead = element("div", {}, this.title, this.lines, this.description);
    this.node = element("div", { class: "attention" }, this.grid(), oneHead);
    new ResizeObserver(() => this.draw()).observe(this.svg);
    addEventListener("themechange", () => { if (this.lines.isConnected) this.paint(); });
  }

  weight(query, key, layer = this.layer, head = this.head) {
    const [, , numQueries, numKeys] = this.map.shape;
    return this.map.values[((layer * this.heads + head) * numQueries + query) * numKeys + key];
  }

  // ------------------------------------------------------------------------------------------ all heads

  grid() {
    this.buttons = [];
    const rows = [];
    for (let layer = 0; layer < this.layers; layer++) {
      const cells = [];
      for (let head = 0; head < this.heads; head++) {
        const label = `Layer ${layer + 1}, head ${head + 1}`, canvas = element("canvas");
        const button = element("button", { type: "button", "aria-label": label, title: label }, canvas);
        button.addEventListener("click", () => this.choose(layer, head));
        this.buttons.push(button);
        cells.push(button);
      }
      rows.push(element("div", { class: "heads-row" }, element("span", {}, String(layer + 1)), ...cells));
    }
    const grid = element("div", { class: "heads", role: "group", "aria-label": "Heads, one row per layer" }, ...rows);
    grid.addEventListener("keydown", (event) => this.moveHead(event));
    requestAnimationFrame(() => this.paint());
    const title = `${plural(this.layers, "layer")} × ${plural(this.heads, "head")}`;
    return element("details", { open: true }, element("summary", {}, title), grid);
  }

  paint() {
    const color = getComputedStyle(this.svg).stroke.match(/\d+/g).slice(0, 3).map(Number);
    const [, , numQueries, numKeys] = this.map.shape;
    const height = Math.min(numQueries, MAX_PIXELS), width = Math.min(numKeys, MAX_PIXELS);
    this.buttons.forEach((button, i) => {
      const canvas = button.firstChild, image = new ImageData(width, height);
      const layer = Math.floor(i / this.heads), head = i % this.heads;
      for (let query = 0; query < numQueries; query++) {
        for (let key = 0; key < numKeys; key++) {
          const place = 4 * (Math.floor((query * height) / numQueries) * width + Math.floor((key * width) / numKeys));
          image.data.set(color, place);
          image.data[place + 3] = Math.max(image.data[place + 3], 255 * Math.sqrt(this.weight(query, key, layer, head)));
        }
      }
      Object.assign(canvas, { width, height });
      canvas.getContext("2d").putImageData(image, 0, 0);
    });
  }

  moveHead(event) {
    const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key] || [];
    if (down === undefined) return;
    event.preventDefault();
    const clamp = (value, count) => Math.min(Math.max(value, 0), count - 1);
    this.choose(clamp(this.layer + down, this.layers), clamp(this.head + right, this.heads));
    this.buttons[this.layer * this.heads + this.head].focus();
  }

  choose(layer, head) {
    Object.assign(this, { layer, head });
    this.draw();
  }

  // ------------------------------------------------------------------------------------------ one head

  word(side, label, index) {
    const show = () => this.activate({ side, index });
    const attributes = { type: "button", dir: "auto", title: label, tabindex: index ? -1 : 0 };
    const listeners = { pointerenter: show, focus: show, click: show };
    return element("button", { ...attributes, ...listeners }, element("span", {}, label), element("i"));
  }

  column(name, buttons) {
    const column = element("div", { class: `column ${name.toLowerCase()}`, role: "group", "aria-label": name }, ...buttons);
    column.addEventListener("keydown", (event) => moveFocus(event, buttons, { previous: "ArrowUp", next: "ArrowDown" }));
    return column;
  }

  activate(active) {
    this.active = active;
    this.draw();
  }

  // The lines of the active word, or all lines above the threshold.
  draw() {
    const { active, svg } = this, width = svg.clientWidth, shown = { queries: new Map(), keys: new Map() }, paths = [];
    this.queries.forEach((_, query) => this.keys.forEach((__, key) => {
      const weight = this.weight(query, key);
      const isActive = active && (active.side === "queries" ? active.index === query : active.index === key);
      if (active ? !isActive || weight < 0.005 : weight < THRESHOLD) return;
      const [y1, y2] = [query, key].map((place) => (place + 0.5) * ROW_HEIGHT), third = width / 3;
      paths.push(svgElement("path", {
        d: `M0 ${y1}C${third} ${y1} ${2 * third} ${y2} ${width} ${y2}`, "stroke-width": (0.6 + 3.4 * weight).toFixed(2),
        "stroke-opacity": Math.max(0.12, Math.sqrt(weight)).toFixed(2),
      }));
      if (isActive && active.side === "queries") shown.keys.set(key, weight);
      else if (isActive) shown.queries.set(query, weight);
    }));
    svg.style.height = `${ROW_HEIGHT * Math.max(this.queries.length, this.keys.length)}px`;
    svg.replaceChildren(...paths);
    for (const side of ["queries", "keys"]) {
      this[side].forEach((button, i) => {
        button.classList.toggle("active", active !== null && active.side === side && active.index === i);
        button.lastChild.textContent = shown[side].has(i) ? formatWeight(shown[side].get(i)) : "";
        withShare(button, Math.sqrt(shown[side].get(i) || 0));
      });
    }
    this.describe(shown);
  }

  describe(shown) {
    const { active, map } = this;
    this.title.textContent = `Layer ${this.layer + 1}, head ${this.head + 1}`;
    this.buttons.forEach((button, i) => {
      const isChosen = i === this.layer * this.heads + this.head;
      button.setAttribute("aria-pressed", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    });
    if (!active) {
      this.description.textContent = `All lines of weight ${THRESHOLD} or more. Point at a word, or move to it with the `
        + "arrow keys, to see its weights.";
      return;
    }
    const isQuery = active.side === "queries", others = isQuery ? map.keys : map.queries;
    const largest = [...(isQuery ? shown.keys : shown.queries)].sort((a, b) => b[1] - a[1]).slice(0, MAX_LISTED);
    const listed = largest.map(([i, weight]) => `${others[i]} ${formatWeight(weight)}`).join(", ") || "no word";
    const relation = isQuery ? "attends to" : "is attended to by";
    this.description.textContent = `“${map[active.side][active.index]}” ${relation} ${listed}.`;
  }
}
