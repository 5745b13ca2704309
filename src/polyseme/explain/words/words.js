// Words in context: the layer sliders, the choice of groups, and the occurrence that is looked at.
(() => {
  const data = JSON.parse(document.getElementById("words-data").textContent);
  const byId = (id) => document.getElementById(id);
  const panels = [...document.querySelectorAll(".word-panel")];
  const picker = byId("occurrence");
  const colorOf = (group) => `var(--s${(group % 8) + 1})`;
  const shapeOf = (group) => data.shapes[group % data.shapes.length];
  let pinned = 0;

  const layerOf = (i) => data.models[i].layers[+panels[i].querySelector("input").value];
  const usesSenses = () => byId("by-sense") !== null && byId("by-sense").checked;

  function element(name, text, parent) {
    const created = document.createElement(name);
    created.textContent = text;
    parent.append(created);
    return created;
  }

  function writeContext(parent, occurrence, contexts) {
    const [left, word, right] = contexts[occurrence];
    parent.append(left);
    element("mark", word, parent);
    parent.append(right);
    if (data.senses.length) parent.append(` (${data.senses[data.sense[occurrence]]})`);
  }

  function writeLegend(list, labels) {
    list.replaceChildren();
    labels.forEach((label, group) => {
      const entry = element("li", label, list);
      const sample = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      sample.setAttribute("width", 14);
      sample.setAttribute("height", 14);
      sample.setAttribute("viewBox", "-7 -7 14 14");
      sample.setAttribute("aria-hidden", "true");
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", shapeOf(group));
      path.style.fill = colorOf(group);
      sample.append(path);
      entry.prepend(sample);
    });
  }

  function drawLayer(i) {
    const layer = layerOf(i);
    const groups = usesSenses() ? data.sense : layer.cluster;
    for (const mark of panels[i].querySelectorAll("[data-i]")) {
      const k = +mark.dataset.i;
      mark.setAttribute("transform", `translate(${layer.x[k]} ${layer.y[k]})`);
      mark.setAttribute("d", shapeOf(groups[k]));
      mark.style.fill = colorOf(groups[k]);
    }
    panels[i].querySelector("output").textContent = layer.title;
    const labels = usesSenses() ? data.senses : layer.labels;
    writeLegend(panels[i].querySelector(".legend"), labels);
    for (const table of document.querySelectorAll(`[data-clusters="${i}"]`)) {
      table.hidden = +table.dataset.layer !== layer.layer;
    }
    writeNeighbors(i, +picker.value - 1);
  }

  function writeNeighbors(i, occurrence) {
    const layer = layerOf(i);
    const list = panels[i].querySelector("ol");
    list.replaceChildren();
    layer.near[occurrence].forEach((neighbor, k) => {
      const entry = element("li", `${layer.cosines[occurrence][k].toFixed(3)} `, list);
      writeContext(entry, neighbor, data.snippets);
    });
    for (const mark of panels[i].querySelectorAll("[data-i]")) {
      const k = +mark.dataset.i;
      mark.classList.toggle("selected", k === occurrence);
      mark.classList.toggle("near", layer.near[occurrence].includes(k));
    }
  }

  function select(occurrence) {
    picker.value = occurrence + 1;
    const place = byId("context");
    place.replaceChildren();
    element("b", `${occurrence + 1} of ${data.contexts.length}: `, place);
    writeContext(place, occurrence, data.contexts);
    panels.forEach((_, i) => writeNeighbors(i, occurrence));
  }

  panels.forEach((panel, i) => {
    panel.querySelector("input").addEventListener("input", () => drawLayer(i));
    const plot = panel.querySelector("svg.chart");
    plot.addEventListener("mouseover", (event) => {
      const mark = event.target.closest("[data-i]");
      if (mark) select(+mark.dataset.i);
    });
    plot.addEventListener("mouseleave", () => select(pinned));
    plot.addEventListener("click", (event) => {
      const mark = event.target.closest("[data-i]");
      if (mark) select((pinned = +mark.dataset.i));
    });
  });
  picker.addEventListener("input", () => {
    const last = data.contexts.length;
    if (picker.value !== "") select((pinned = Math.min(Math.max(Math.round(+picker.value), 1), last) - 1));
  });
  for (const id of ["by-sense", "by-cluster"]) {
    if (byId(id)) byId(id).addEventListener("change", () => panels.forEach((_, i) => drawLayer(i)));
  }
  panels.forEach((_, i) => drawLayer(i));
  select(0);
})();
