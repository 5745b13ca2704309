// The page: the choice of models, one tab per verb, requests and their results.

import { getModels, hasToken, onMissingToken, postVerb } from "./api.js";
import { byId, element, formatTime, moveFocus, note, plural } from "./dom.js";
import { Form, forget, translateMasks } from "./forms.js";
import { curlSnippet, pythonSnippet } from "./snippets.js";
import { TABS, tabsOf } from "./verbs.js";

const state = { models: [], model: null, other: null, tab: "", language: "curl" };
const panels = new Map(); // tab: {node, form, results, code, running}

// ------------------------------------------------------------------------------------------------ state in the URL

function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const find = (name) => state.models.find((model) => model.name === hash.get(name));
  const model = find("model") || state.models[0], tabs = tabsOf(model);
  const tab = tabs.includes(hash.get("verb")) ? hash.get("verb") : tabs[0];
  choose({ model, tab, other: find("compare") || null });
}

function writeHash() {
  const hash = new URLSearchParams({ model: state.model.name, verb: state.tab });
  if (state.other) hash.set("compare", state.other.name);
  history.replaceState(null, "", `#${hash}`);
}

function choose(change) {
  const previous = state.model;
  Object.assign(state, change);
  if (state.model !== previous) {
    translateMasks(previous?.mask_token, state.model.mask_token);
    for (const panel of panels.values()) buildForm(panel);
  }
  const tabs = tabsOf(state.model);
  if (!tabs.includes(state.tab)) state.tab = tabs[0];
  if (state.other === state.model) state.other = null;
  showModels();
  showTabs(tabs);
  writeHash();
}

function showModels() {
  const option = (model) => element("option", { value: model.name }, model.name);
  byId("model").replaceChildren(...state.models.map(option));
  byId("model").value = state.model.name;
  const others = state.models.filter((model) => model !== state.model);
  byId("compare").replaceChildren(element("option", { value: "" }, "no other"), ...others.map(option));
  byId("compare").value = state.other?.name || "";
  byId("compare").parentElement.hidden = !others.length;
  byId("about").textContent = [state.model, state.other].filter(Boolean).map(describe).join("  —  ");
}

function describe(model) {
  const parts = [model.description];
  if (model.labels) parts.push(plural(model.labels.length, "label"));
  if (model.max_tokens) parts.push(`reads ${plural(model.max_tokens, "token")}`);
  if (model.dim) parts.push(plural(model.dim, "dimension"));
  if (model.engine === "onnx") parts.push("onnxruntime");
  return `${state.other ? `${model.name}: ` : ""}${parts.join(" · ")}`;
}

// ------------------------------------------------------------------------------------------------ tabs

function showTabs(names) {
  const list = byId("tabs"), hadFocus = list.contains(document.activeElement);
  const tabs = names.map((name) => {
    const isSelected = name === state.tab;
    return element("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(isSelected), "aria-controls": `panel-${name}`,
      tabindex: isSelected ? 0 : -1, click: () => choose({ tab: name }),
    }, TABS[name].label);
  });
  list.replaceChildren(...tabs);
  if (!panels.has(state.tab)) buildPanel(state.tab);
  for (const [name, panel] of panels) panel.node.hidden = name !== state.tab;
  const selected = byId(`tab-${state.tab}`);
  selected.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (hadFocus) selected.focus();
  showCode(panels.get(state.tab));
}

function buildPanel(tab) {
  const panel = { tab, form: null, running: null };
  panel.formBox = element("div", { class: "form-box" });
  panel.results = element("div", { class: "results", role: "region", "aria-label": "Results" },
    note("Run the example, or type your own."));
  panel.code = element("pre", { tabindex: 0 });
  panel.node = element("section", { role: "tabpanel", id: `panel-${tab}`, "aria-labelledby": `tab-${tab}`, class: "panel" },
    element("p", { class: "about" }, TABS[tab].about), panel.formBox, panel.results, codeBox(panel));
  panels.set(tab, panel);
  byId("panels").append(panel.node);
  buildForm(panel);
}

function buildForm(panel) {
  if (!tabsOf(state.model).includes(panel.tab)) return;
  stop(panel);
  const onReset = () => { forget(panel.tab); buildForm(panel); panel.form.run.focus(); };
  panel.form = new Form(panel.tab, TABS[panel.tab], state.model, { onChange: () => showCode(panel), onReset });
  panel.form.run.addEventListener("click", () => (panel.running ? stop(panel) : run(panel)));
  panel.formBox.replaceChildren(panel.form.node);
  showCode(panel);
}

// ------------------------------------------------------------------------------------------------ code

function codeBox(panel) {
  const languages = [["curl", "curl"], ["python", "Python"]].map(([value, label]) => {
    const input = element("input", { type: "radio", name: `language-${panel.tab}`, value });
    input.addEventListener("change", () => { state.language = value; panels.forEach(showCode); });
    return element("label", {}, input, element("span", {}, label));
  });
  const copy = element("button", { type: "button", class: "quiet" }, "Copy");
  copy.addEventListener("click", async () => {
    const isCopied = await copyText(panel.code);
    copy.textContent = isCopied ? "Copied" : "Select and copy";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const choice = element("fieldset", {}, element("legend", {}, "This request as"), ...languages);
  return element("section", { class: "code", "aria-label": "Code for this request" },
    element("div", { class: "code-head" }, choice, copy), panel.code);
}

// The clipboard needs a secure context, which a server on another machine may not be: then the text is selected.
async function copyText(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}

function showCode(panel) {
  for (const input of panel.node.querySelectorAll(".code input")) input.checked = input.value === state.language;
  try {
    const { verb, body } = request(panel, state.model);
    const options = { model: state.model, stream: body.stream, needsToken: hasToken() };
    panel.code.textContent = (state.language === "curl" ? curlSnippet : pythonSnippet)(verb, body, options);
  } catch (error) {
    panel.code.textContent = `# ${error.message}`;
  }
}

// ------------------------------------------------------------------------------------------------ requests

function request(panel, model) {
  const spec = TABS[panel.tab], values = panel.form.values();
  const body = { model: model.name, ...(spec.body ? spec.body(values) : values) };
  if (model !== state.model && model.mask_token && state.model.mask_token && body.text) {
    body.text = body.text.replaceAll(state.model.mask_token, model.mask_token);
  }
  return { verb: spec.verb || panel.tab, body, values };
}

function stop(panel) {
  panel.running?.abort();
}

async function run(panel) {
  stop(panel);
  const controller = new AbortController();
  panel.running = controller;
  panel.form.run.textContent = "Stop";
  const cards = [state.model, state.other].filter(Boolean).map((model) => buildCard(model));
  panel.results.replaceChildren(...cards.map((card) => card.node));
  panel.results.classList.toggle("two", cards.length > 1);
  for (const card of cards) { // one after the other, so that they do not slow each other down
    card.node.setAttribute("aria-busy", "true");
    await answer(panel, card, controller.signal);
    card.node.setAttribute("aria-busy", "false");
  }
  if (panel.running === controller) {
    panel.running = null;
    panel.form.run.textContent = "Run";
  }
}

function buildCard(model) {
  const status = element("p", { class: "status", role: "status" }), content = element("div", { class: "content" });
  const header = element("header", {}, element("h2", {}, model.name), status);
  return { model, status, content, node: element("article", { class: "card" }, header, content) };
}

async function answer(panel, card, signal) {
  const { model, content, status } = card, spec = TABS[panel.tab];
  if (!tabsOf(model).includes(panel.tab)) return content.append(note(`${model.name} does not support this.`));
  try {
    signal.throwIfAborted();
    const { verb, body, values } = request(panel, model);
    const context = { model, body, values, content, signal, form: panel.form, run: () => run(panel) };
    status.textContent = "Running …";
    const sent = { ...body, ...spec.hidden };
    const { data, times } = spec.View ? await new spec.View(context).run(verb, sent) : await postVerb(verb, sent, signal);
    status.textContent = describeTimes(times, data.usage);
    if (spec.draw) content.replaceChildren(...[spec.draw(data.results, context)].flat());
  } catch (error) {
    status.textContent = "";
    if (error.name === "AbortError") status.textContent = "Stopped";
    else content.append(element("p", { class: "error", role: "alert" }, sentence(error.message)));
  }
  return null;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1).replace(/\.?$/, ".");

function describeTimes(times, usage) {
  const parts = [formatTime(times.total)];
  if (times.run !== undefined) parts.push(`${formatTime(times.queue)} waiting`, `${formatTime(times.run)} computing`);
  if (times.first !== undefined) parts.push(`first token after ${formatTime(times.first)}`);
  const numTokens = usage.num_generated_tokens || usage.num_tokens;
  parts.push(plural(numTokens, "token"));
  if (usage.num_generated_tokens) parts.push(`${(1000 * numTokens / times.total).toFixed(0)} tokens/s`);
  return parts.join(" · ");
}

// ------------------------------------------------------------------------------------------------ the rest of the page

function askToken(problem) {
  const dialog = byId("token-dialog");
  byId("token-problem").hidden = !problem;
  byId("token-problem").textContent = problem;
  byId("token").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const finish = (token) => { dialog.onclose = null; dialog.close(); resolve(token); };
    dialog.querySelector("form").onsubmit = (event) => { event.preventDefault(); finish(byId("token").value.trim()); };
    byId("token-cancel").onclick = () => finish(null);
    dialog.onclose = () => finish(null);
  });
}

function setUpTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)"), button = byId("theme"), root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    dispatchEvent(new Event("themechange"));
  };
  const stored = localStorage.getItem("polyseme-theme");
  if (stored) root.dataset.theme = stored;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("polyseme-theme", root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}

function setUpKeys() {
  byId("tabs").addEventListener("keydown", (event) => {
    const tab = moveFocus(event, [...byId("tabs").children]);
    if (tab) tab.click();
  });
  document.addEventListener("keydown", (event) => {
    const panel = panels.get(state.tab);
    if (!panel || byId("token-dialog").open) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run(panel);
    } else if (event.key === "Escape") stop(panel);
    else if (event.key === "Enter" && event.target.matches?.(".form input")) run(panel);
  });
}

async function start() {
  setUpTheme();
  onMissingToken(askToken);
  try {
    state.models = await getModels();
  } catch (error) {
    const retry = element("button", { type: "button", click: () => location.reload() }, "Try again");
    byId("message").replaceChildren(`${sentence(error.message)} `, retry);
    return;
  }
  byId("message").remove();
  const byName = (name) => state.models.find((model) => model.name === name) || null;
  byId("model").addEventListener("change", (event) => choose({ model: byName(event.target.value) }));
  byId("compare").addEventListener("change", (event) => choose({ other: byName(event.target.value) }));
  setUpKeys();
  addEventListener("hashchange", readHash);
  readHash();
}

start();
