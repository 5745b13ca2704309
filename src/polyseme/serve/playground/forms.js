// Forms: the fields of a verb, filled with the model's example, and the values that were typed, which are never lost.

import { element } from "./dom.js";

const KEY = "polyseme-values"; // in this tab of the browser, so that a reload keeps what was typed
const typed = JSON.parse(sessionStorage.getItem(KEY) || "{}");

const save = () => sessionStorage.setItem(KEY, JSON.stringify(typed));

export function forget(verb) {
  delete typed[verb];
  save();
}

function remember(verb, name, value) {
  typed[verb] = { ...typed[verb], [name]: value };
  save();
}

// Replaces the mask of one model by that of another in all texts that were typed.
export function translateMasks(from, to) {
  if (!from || !to || from === to) return;
  for (const values of Object.values(typed)) {
    for (const [name, value] of Object.entries(values)) {
      if (typeof value === "string") values[name] = value.replaceAll(from, to);
    }
  }
  save();
}

// A field: {name, label, kind, help?, isOption?, shown?(model, example), ...attributes of its input}. Kinds: text (several
// lines), lines (one value per line), word, number, select, checkbox, json. What is empty is left out of a request.
const show = (kind, value) => {
  if (value === undefined || value === null) return kind === "checkbox" ? false : "";
  if (kind === "lines") return (Array.isArray(value) ? value : [value]).join("\n");
  return kind === "json" ? JSON.stringify(value, null, 1) : kind === "checkbox" ? value : String(value);
};

const READ = {
  text: (text) => text,
  word: (text) => text.trim(),
  lines: (text) => text.split("\n").map((line) => line.trim()).filter(Boolean),
  number: (text) => Number(text),
  select: (text) => (/^\d+$/.test(text) ? Number(text) : text),
  json: (text) => JSON.parse(text),
};

// The value of a field in the model's example; a list may be given there as one text.
function exampleValue(field, example) {
  const single = { texts: "text", pairs: "pair" }[field.name];
  return example[field.name] ?? (single && example[single]) ?? field.value;
}

export class Form {
  constructor(verb, spec, model, { onChange, onReset }) {
    Object.assign(this, { verb, model, inputs: new Map() });
    const example = { ...(model.examples[verb] || {}), ...(spec.example ? spec.example(model) : {}) };
    this.fields = spec.fields.filter((field) => !field.shown || field.shown(model, example));
    const rows = this.fields.map((field) => [field, this.buildField(field, exampleValue(field, example), onChange)]);
    const options = rows.filter(([field]) => field.isOption).map(([, row]) => row);
    const reset = element("button", { type: "button", class: "quiet", click: onReset }, "Reset to the example");
    this.run = element("button", { type: "button", class: "primary" }, "Run");
    this.node = element("div", { class: "form", role: "group", "aria-label": "Request" },
      ...rows.filter(([field]) => !field.isOption).map(([, row]) => row),
      options.length ? element("details", { open: spec.openOptions && innerWidth > 640 },
        element("summary", {}, "Settings"), element("div", { class: "options" }, ...options)) : null,
      element("div", { class: "actions" }, this.run, reset, element("span", { class: "hint" }, "Ctrl + Enter runs")));
  }

  buildField(field, initial, onChange) {
    const { verb } = this, id = `${verb}-${field.name}`;
    const value = typed[verb]?.[field.name] ?? show(field.kind, initial);
    const help = field.help ? element("small", { id: `${id}-help` }, field.help) : null;
    const common = { id, "aria-describedby": help?.id, spellcheck: field.kind === "json" ? "false" : null };
    const limits = { min: field.min, max: field.max, step: field.step, placeholder: field.placeholder };
    let input;
    if (field.kind === "select") {
      const options = field.choices.map(([key, label]) => element("option", { value: key }, label));
      input = element("select", common, ...options);
    } else if (["text", "lines", "json"].includes(field.kind)) {
      input = element("textarea", { ...common, rows: field.rows || 3, dir: "auto" });
    } else {
      const type = { number: "number", checkbox: "checkbox" }[field.kind] || "text";
      input = element("input", { ...common, type, dir: type === "text" ? "auto" : null, autocomplete: "off", ...limits });
    }
    if (field.kind === "checkbox") input.checked = Boolean(value);
    else input.value = value;
    input.addEventListener("input", () => {
      remember(verb, field.name, field.kind === "checkbox" ? input.checked : input.value);
      onChange();
    });
    this.inputs.set(field.name, input);
    const label = element("label", { for: id }, field.label), extra = field.extra?.(input, this.model);
    return element("div", { class: `field ${field.kind}` }, label, input, extra, help);
  }

  // The values of all fields that are filled in; throws if one cannot be read.
  values() {
    const values = {};
    for (const field of this.fields) {
      const input = this.inputs.get(field.name);
      if (field.kind === "checkbox") {
        if (input.checked) values[field.name] = true;
      } else if (input.validity && !input.validity.valid) {
        throw new Error(`${field.label}: ${input.validationMessage}`);
      } else if (input.value.trim() !== "" || field.isRequired) {
        try {
          values[field.name] = READ[field.kind](input.value);
        } catch {
          throw new Error(`${field.label} is not valid JSON`);
        }
      }
    }
    return values;
  }

  setText(name, value) {
    const input = this.inputs.get(name);
    input.value = value;
    input.dispatchEvent(new Event("input"));
  }
}
