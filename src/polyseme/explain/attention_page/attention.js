"use strict";
// The views of the attention page: all heads, one head as lines, one word across all heads. Weights are stored as
// uint16 [layers, heads, queries, 2k + 1]: the k largest keys of each row, their weights, and the weight of the rest.
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("attention-data").textContent);
  const ROW_HEIGHT = 24, MAX_PIXELS = 64, MAX_LISTED = 5;
  const panels = data.panels.map((panel, index) => (
    { ...panel, index, key: 0, pinned: panel.pinned ? "queries" : null, active: null }
  ));
  const state = { map: data.map, unit: data.unit, threshold: data.threshold, hideSpecial: false };
  const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // ---------------------------------------------------------------------------------------------- weights

  function currentMap(panel) {
    return panel.maps.find((map) => map.name === state.map) || panel.maps[0];
  }

  function currentView(panel) {
    const { views, ...map } = currentMap(panel);
    const view = views[state.unit] || views.tokens;
    if (!view.values) view.values = decode(byId(view.id).textContent);
    return { ...map, ...view };
  }

  function decode(text) {
    const characters = atob(text), bytes = new Uint8Array(characters.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
    return new Uint16Array(bytes.buffer);
  }

  // Calls visit(key, weight) for the stored weights of a row, largest first; returns the weight of all other keys.
  function readRow(view, layer, head, query, visit) {
    const { values, k } = view, start = ((layer * view.heads + head) * view.queries.length + query) * (2 * k + 1);
    for (let i = start; i < start + k; i++) {
      const key = values[i];
      if (values[i + k] && !(state.hideSpecial && view.specialKeys.includes(key))) visit(key, values[i + k] / 65535);
    }
    return values[start + 2 * k] / 65535;
  }

  // ---------------------------------------------------------------------------------------------- all heads

  function drawGrid(panel) {
    const view = currentView(panel), style = `--heads:${view.heads}`;
    const table = element("table", { class: "heads", role: "presentation", style });
    const header = element("tr", {}, element("th", {}, "head"));
    for (let head = 0; head < view.heads; head++) header.append(element("th", {}, String(head + 1)));
    table.append(header);
    panel.buttons = [];
    for (let layer = 0; layer < view.layers; layer++) {
      const row = element("tr", {}, element("th", {}, `layer ${layer + 1}`));
      for (let head = 0; head < view.heads; head++) {
        const label = `Layer ${layer + 1}, head ${head + 1}: ${view.patterns[layer][head]}`;
        const attributes = { type: "button", "aria-label": label, title: label };
        const button = element("button", attributes, thumbnail(view, layer, head));
        button.addEventListener("click", () => chooseHead(layer, head));
        panel.buttons.push(button);
        row.append(element("td", {}, button));
      }
      table.append(row);
    }
    table.addEventListener("keydown", (event) => moveHead(panel, view, event));
    slot("grid", panel).replaceChildren(element("div", { role: "group", "aria-label": "Heads" }, table));
  }

  function thumbnail(view, layer, head) {
    const [numRows, numColumns] = [view.queries.length, view.keys.length];
    const height = Math.min(numRows, MAX_PIXELS), width = Math.min(numColumns, MAX_PIXELS);
    const canvas = element("canvas", { width, height }), context = canvas.getContext("2d");
    const image = context.createImageData(width, height), pixels = image.data;
    for (let query = 0; query < numRows; query++) {
      const y = Math.floor((query * height) / numRows);
      readRow(view, layer, head, query, (key, weight) => {
        const place = 4 * (y * width + Math.floor((key * width) / numColumns)) + 3;
        pixels[place] = Math.max(pixels[place], 255 * Math.sqrt(weight));
      });
    }
    const color = seriesColor();
    for (let i = 0; i < pixels.length; i += 4) pixels.set(color, i);
    context.putImageData(image, 0, 0);
    return canvas;
  }

  function seriesColor() {
    const value = getComputedStyle(document.documentElement).getPropertyValue("--s1").trim();
    return [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
  }

  function moveHead(panel, view, event) {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const [down, right] = ARROWS[event.key];
    const layer = Math.min(Math.max(panel.layer + down, 0), view.layers - 1);
    const head = Math.min(Math.max(panel.head + right, 0), view.heads - 1);
    chooseHead(layer, head);
    panel.buttons[layer * view.heads + head].focus();
  }

  // The same layer and head in every panel that has them.
  function chooseHead(layer, head) {
    for (const panel of panels) {
      const map = currentMap(panel);
      if (layer < map.layers && head < map.heads) Object.assign(panel, { layer, head });
    }
    showHead();
  }

  function showHead() {
    for (const panel of panels) {
      const { heads } = currentMap(panel);
      panel.buttons.forEach((button, i) => {
        const isChosen = i === panel.layer * heads + panel.head;
        button.setAttribute("aria-pressed", isChosen);
        button.tabIndex = isChosen ? 0 : -1;
      });
      (panel.cells || []).forEach((cell, i) => cell.classList.toggle("chosen", i === panel.layer * heads + panel.head));
      drawLines(panel);
    }
    byId("layer").value = panels[0].layer;
    byId("head").value = panels[0].head;
  }

  // ---------------------------------------------------------------------------------------------- one head

  function buildColumns(panel) {
    const view = currentView(panel);
    const column = (side, name, labels) => {
      const list = element("div", { class: `column ${side}`, role: "group", "aria-label": name });
      panel[side] = labels.map((label, i) => {
        const attributes = { type: "button", dir: "auto", title: label };
        const button = element("button", attributes, element("span", {}, label), element("i"));
        button.tabIndex = i === (side === "queries" ? panel.word : 0) ? 0 : -1;
        button.addEventListener("pointerenter", () => activate(panel, { side, index: i }));
        button.addEventListener("focus", () => activate(panel, { side, index: i }));
        button.addEventListener("click", () => togglePin(panel, side, i));
        list.append(button);
        return button;
      });
      list.addEventListener("keydown", (event) => moveWord(panel, side, event));
      list.addEventListener("scroll", () => drawLines(panel), { passive: true });
      return list;
    };
    panel.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    panel.svg.setAttribute("aria-hidden", "true");
    const queries = column("queries", "Queries", view.queries), keys = column("keys", "Keys", view.keys);
    const box = element("div", { class: "lines" }, queries, panel.svg, keys);
    box.addEventListener("pointerleave", () => activate(panel, null));
    box.addEventListener("focusout", (event) => { if (!box.contains(event.relatedTarget)) activate(panel, null); });
    panel.description = element("p", { class: "note", "aria-live": "polite" });
    slot("lines", panel).replaceChildren(element("h4"), box, panel.description);
    scrollTo(panel, "queries", panel.word);
  }

  function moveWord(panel, side, event) {
    const buttons = panel[side], index = buttons.indexOf(document.activeElement);
    const next = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (event.key === "Escape" && panel.pinned) togglePin(panel, panel.pinned, pinnedWord(panel).index);
    if (next === undefined) return;
    event.preventDefault();
    if (!buttons[next]) return;
    buttons[index].tabIndex = -1;
    buttons[next].tabIndex = 0;
    buttons[next].focus();
  }

  function activate(panel, active) {
    panel.active = active;
    drawLines(panel);
  }

  function pinnedWord(panel) {
    return panel.pinned && { side: panel.pinned, index: panel.pinned === "queries" ? panel.word : panel.key };
  }

  function isPinned(panel, side, index) {
    return panel.pinned === side && pinnedWord(panel).index === index;
  }

  function togglePin(panel, side, index) {
    const pinned = isPinned(panel, side, index) ? null : side;
    if (side === "queries") chooseWord(panel, index, pinned);
    else {
      Object.assign(panel, { key: index, pinned, active: null });
      drawLines(panel);
    }
  }

  // Lines of the active word, else of the pinned one, else of all visible queries above the threshold.
  function drawLines(panel) {
    const view = currentView(panel), { layer, head, svg } = panel;
    const active = panel.active || pinnedWord(panel);
    const [queryTop, keyTop] = [scrollTop(panel, "queries"), scrollTop(panel, "keys")];
    const height = svg.clientHeight, width = svg.clientWidth, weights = { queries: new Map(), keys: new Map() };
    const first = Math.max(0, Math.floor(queryTop / ROW_HEIGHT)), last = Math.ceil((queryTop + height) / ROW_HEIGHT);
    const parts = [];
    const line = (query, key, weight) => {
      const y1 = (query + 0.5) * ROW_HEIGHT - queryTop, y2 = (key + 0.5) * ROW_HEIGHT - keyTop, third = width / 3;
      parts.push(`<path d="M0 ${y1}C${third} ${y1} ${2 * third} ${y2} ${width} ${y2}" `
        + `stroke-width="${(0.6 + 3.4 * weight).toFixed(2)}" stroke-opacity="${Math.max(0.12, Math.sqrt(weight)).toFixed(2)}"/>`);
    };
    let rest = 0;
    if (active && active.side === "queries") {
      rest = readRow(view, layer, head, active.index, (key, weight) => {
        line(active.index, key, weight);
        weights.keys.set(key, weight);
      });
    } else {
      const end = active ? view.queries.length : Math.min(last, view.queries.length);
      for (let query = active ? 0 : first; query < end; query++) {
        readRow(view, layer, head, query, (key, weight) => {
          if (active ? key !== active.index : weight < state.threshold) return;
          line(query, key, weight);
          if (active) weights.queries.set(query, weight);
        });
      }
    }
    svg.innerHTML = parts.join("");
    for (const side of ["queries", "keys"]) markWords(panel, side, weights[side], active);
    describe(panel, view, active, weights, rest);
  }

  function markWords(panel, side, weights, active) {
    panel[side].forEach((button, i) => {
      const weight = weights.get(i);
      button.classList.toggle("active", active !== null && active.side === side && active.index === i);
      button.setAttribute("aria-pressed", isPinned(panel, side, i));
      if (weight === undefined && !button.dataset.weight) return;
      button.dataset.weight = weight === undefined ? "" : formatWeight(weight);
      button.lastChild.textContent = button.dataset.weight;
      button.style.setProperty("--share", `${100 * Math.sqrt(weight || 0)}%`);
    });
  }

  function describe(panel, view, active, weights, rest) {
    const pattern = view.patterns[panel.layer][panel.head];
    slot("lines", panel).firstChild.textContent = `Layer ${panel.layer + 1}, head ${panel.head + 1}: ${pattern}`;
    if (!active) {
      const more = state.threshold > 0 ? ` of weight ${formatWeight(state.threshold)} or more` : "";
      panel.description.textContent = `All lines${more}. Point at a word or move to it with the arrow keys to see its `
        + "weights; a click or Enter pins it.";
      return;
    }
    const isQuery = active.side === "queries";
    const [labels, others] = isQuery ? [view.queries, view.keys] : [view.keys, view.queries];
    const largest = [...(isQuery ? weights.keys : weights.queries)].sort((a, b) => b[1] - a[1]);
    const listed = largest.slice(0, MAX_LISTED).map(([i, weight]) => `${others[i]} ${formatWeight(weight)}`);
    const total = largest.slice(0, MAX_LISTED).reduce((sum, [, weight]) => sum + weight, 0);
    const more = isQuery && others.length > listed.length ? `; all others ${formatWeight(Math.max(0, 1 - total))}` : "";
    const verb = isQuery ? "attends to" : "is attended to by";
    const words = listed.join(", ") || "no shown word";
    panel.description.textContent = `“${labels[active.index]}” (${active.index + 1}) ${verb} ${words}${more}.`
      + (isPinned(panel, active.side, active.index) ? " Pinned: click again or press Escape to release." : "");
  }

  const formatWeight = (weight) => (weight < 0.005 ? "<0.01" : weight.toFixed(2));
  const scroller = (panel, side) => panel[side][0].parentElement;
  const scrollTop = (panel, side) => scroller(panel, side).scrollTop;

  function scrollTo(panel, side, index) {
    const box = scroller(panel, side), top = index * ROW_HEIGHT;
    const isVisible = top >= box.scrollTop && top + ROW_HEIGHT <= box.scrollTop + box.clientHeight;
    if (!isVisible) box.scrollTop = top - box.clientHeight / 2;
  }

  // ---------------------------------------------------------------------------------------------- one word

  function chooseWord(panel, index, pinned = "queries") {
    for (const other of panels) {
      const match = other === panel ? index : matchWord(panel, index, other);
      if (match < 0) continue;
      Object.assign(other, { word: match, pinned, active: null });
      showWord(other);
    }
    byId("word").value = panels[0].word;
  }

  // The same occurrence of the same word in another panel, or -1.
  function matchWord(panel, index, other) {
    const queries = currentView(panel).queries, label = queries[index];
    let count = queries.slice(0, index).filter((query) => query === label).length;
    return currentView(other).queries.findIndex((query) => query === label && count-- === 0);
  }

  function showWord(panel) {
    const view = currentView(panel);
    scrollTo(panel, "queries", panel.word);
    if (panel.pinned === "queries") {
      readRow(view, panel.layer, panel.head, panel.word, once((key) => scrollTo(panel, "keys", key)));
    }
    drawLines(panel);
    drawWordTable(panel, view);
  }

  function once(call) {
    let isDone = false;
    return (...values) => { if (!isDone) call(...values); isDone = true; };
  }

  function drawWordTable(panel, view) {
    const header = element("tr", {}, element("th", {}, "layer"));
    for (let head = 0; head < view.heads; head++) header.append(element("th", {}, `head ${head + 1}`));
    const table = element("table", { class: "word" }, element("thead", {}, header)), body = element("tbody");
    panel.cells = [];
    for (let layer = 0; layer < view.layers; layer++) {
      const row = element("tr", {}, element("th", {}, String(layer + 1)));
      for (let head = 0; head < view.heads; head++) {
        let label = "–", weight = 0;
        readRow(view, layer, head, panel.word, once((key, value) => { label = view.keys[key]; weight = value; }));
        const name = `Layer ${layer + 1}, head ${head + 1}: ${label} ${formatWeight(weight)}`;
        const button = element("button", { type: "button", "aria-label": name, title: name },
          element("span", { dir: "auto" }, label), element("i", {}, formatWeight(weight)));
        button.addEventListener("click", () => chooseHead(layer, head));
        const cell = element("td", { class: "heat", style: `--share:${100 * weight}%` }, button);
        cell.classList.toggle("chosen", layer === panel.layer && head === panel.head);
        panel.cells.push(cell);
        row.append(cell);
      }
      body.append(row);
    }
    table.append(body);
    const caption = `What “${view.queries[panel.word]}” (${panel.word + 1}) attends to most`;
    slot("word", panel).replaceChildren(element("h4", {}, caption), element("div", { class: "scroll" }, table));
  }

  // ---------------------------------------------------------------------------------------------- controls

  function slot(view, panel) {
    return document.querySelector(`[data-view=${view}] [data-panel="${panel.index}"]`);
  }

  function select(id, label, choices, choose) {
    const box = element("select", { id });
    box.addEventListener("change", () => choose(box.value));
    setChoices(box, choices);
    return element("label", {}, label, box);
  }

  function setChoices(box, choices) {
    box.replaceChildren(...choices.map(([value, label]) => element("option", { value }, label)));
  }

  const numbers = (count) => [...Array(count).keys()].map((i) => [i, String(i + 1)]);
  const numWords = () => currentView(panels[0]).queries.map((label, i) => [i, `${i + 1} ${label}`]);
  const largest = (name) => Math.max(...panels.map((panel) => currentMap(panel)[name]));

  function buildControls() {
    const names = [...new Map(panels.flatMap((panel) => panel.maps.map((map) => [map.name, map.label])))];
    const controls = [];
    if (names.length > 1) controls.push(select("map", "Attention", names, (name) => changeView({ map: name })));
    if (panels.some((panel) => panel.maps.some((map) => map.views.words))) {
      controls.push(select("unit", "Unit", [["words", "words"], ["tokens", "tokens"]], (unit) => changeView({ unit })));
    }
    controls.push(select("layer", "Layer", [], (layer) => chooseHead(+layer, panels[0].head)));
    controls.push(select("head", "Head", [], (head) => chooseHead(panels[0].layer, +head)));
    controls.push(select("word", "Word", [], (word) => chooseWord(panels[0], +word)));
    const limits = { min: 0, max: 0.5, step: 0.01, value: state.threshold };
    const range = element("input", { id: "threshold", type: "range", ...limits });
    range.addEventListener("input", () => { state.threshold = +range.value; panels.forEach(drawLines); });
    controls.push(element("label", {}, "Lines from weight", range));
    const box = element("input", { id: "special", type: "checkbox" });
    box.addEventListener("change", () => changeView({ hideSpecial: box.checked }));
    if (panels.some((panel) => panel.maps.some((map) => map.views.tokens.specialKeys.length))) {
      controls.push(element("label", {}, box, "Hide special tokens"));
    }
    byId("controls").append(...controls);
    if (byId("map")) byId("map").value = state.map;
    if (byId("unit")) byId("unit").value = state.unit;
  }

  // Draw everything again for another attention, unit or set of keys; the chosen word stays chosen if it is there.
  function changeView(change) {
    const places = panels.map((panel) => {
      const view = currentView(panel);
      return { label: view.queries[panel.word], token: view.starts[panel.word], map: view.name };
    });
    Object.assign(state, change);
    panels.forEach((panel, i) => {
      const view = currentView(panel), place = places[i];
      panel.layer = Math.min(panel.layer, view.layers - 1);
      panel.head = Math.min(panel.head, view.heads - 1);
      Object.assign(panel, { active: null, pinned: panel.pinned === "queries" ? "queries" : null });
      panel.word = place.map === view.name
        ? view.starts.findLastIndex((start) => start <= place.token)
        : view.queries.indexOf(place.label);
      if (panel.word < 0) Object.assign(panel, { word: view.firstWord, pinned: null });
    });
    drawAll();
  }

  function drawAll() {
    setChoices(byId("layer"), numbers(largest("layers")));
    setChoices(byId("head"), numbers(largest("heads")));
    setChoices(byId("word"), numWords());
    byId("word").value = panels[0].word;
    for (const panel of panels) {
      drawGrid(panel);
      buildColumns(panel);
      showWord(panel);
    }
    showHead();
  }

  document.documentElement.classList.add("js");
  buildControls();
  drawAll();
  addEventListener("resize", () => panels.forEach(drawLines));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
