// Elements of the page. Strings become text nodes, so nothing that a model returns is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// Attributes that are false, null or undefined are left out; functions are listeners.
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A share is written as a CSS variable, which bars and heat use; the policy of the page allows this from a script only.
export function withShare(node, share) {
  node.style.setProperty("--share", `${(100 * Math.min(Math.max(share || 0, 0), 1)).toFixed(1)}%`);
  return node;
}

export function percent(probability) {
  if (probability > 0 && probability < 0.001) return "<0.1%";
  return `${(100 * probability).toFixed(probability < 0.0995 ? 1 : 0)}%`;
}

export function formatNumber(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 10 ** -digits)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 1000 ? 0 : digits });
}

export function formatTime(ms) {
  return ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// Rows with a bar each: {label, share, value, onClick?, isBest?}. The label may be a string or a node.
export function barList(rows, name) {
  const list = element("ol", { class: "bars", "aria-label": name });
  for (const { label, share, value, onClick, isBest } of rows) {
    const text = element("span", { class: "bar-label", dir: "auto" }, label);
    const parts = [text, element("span", { class: "bar-value" }, value)];
    const row = onClick ? element("button", { type: "button", class: "bar", click: onClick }, ...parts)
      : element("div", { class: "bar" }, ...parts);
    row.classList.toggle("best", Boolean(isBest));
    list.append(element("li", {}, withShare(row, share)));
  }
  return list;
}

// A table with a caption for screen readers; columns: {title, isNumber}, cells: strings or nodes.
export function table(caption, columns, rows) {
  const kind = ({ isNumber }) => ({ class: isNumber ? "n" : null, dir: isNumber ? null : "auto" });
  const head = columns.map((column) => element("th", { scope: "col", ...kind(column) }, column.title));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, i) => element("td", kind(columns[i]), cell))));
  const grid = element("table", {}, element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, grid);
}

export const note = (text) => element("p", { class: "note" }, text);

// Moves the focus within a group whose members have one tab stop; returns the member moved to.
export function moveFocus(event, members, { previous = "ArrowLeft", next = "ArrowRight" } = {}) {
  const index = members.indexOf(document.activeElement), last = members.length - 1;
  const before = index ? index - 1 : last, after = index < last ? index + 1 : 0;
  const target = { [previous]: before, [next]: after, Home: 0, End: last }[event.key];
  if (index < 0 || target === undefined) return null;
  event.preventDefault();
  members[index].tabIndex = -1;
  members[target].tabIndex = 0;
  members[target].focus();
  return members[target];
}

export function download(name, content) {
  const url = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
