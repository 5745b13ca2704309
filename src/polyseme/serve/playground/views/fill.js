// Masks as chips with bars: a click puts a candidate into the text.

import { element, note, percent, withShare } from "../dom.js";

// The button beside the text that inserts the model's mask at the cursor.
export function insertMask(input, model) {
  const insert = () => {
    input.setRangeText(model.mask_token, input.selectionStart, input.selectionEnd, "end");
    input.dispatchEvent(new Event("input"));
    input.focus();
  };
  return element("button", { type: "button", class: "quiet small", click: insert }, `Insert ${model.mask_token}`);
}

// A piece of a word is joined to what precedes it; markers of a space are not shown.
function putIn(before, token) {
  if (token.startsWith("##")) return before.trimEnd() + token.slice(2);
  return before + token.replace(/^[▁Ġ_ ](?=.)/u, "");
}

function compose(parts, picks, mask) {
  const add = (text, part, i) => (picks[i] === null ? text + mask : putIn(text, picks[i])) + part;
  return parts.slice(1).reduce(add, parts[0]);
}

export function drawFill(results, { model, body, form }) {
  const parts = body.text.split(model.mask_token), picks = results[0].map(() => null);
  const requested = form.inputs.get("text").value;
  let written = requested;
  const sentence = element("p", { class: "sentence", dir: "auto" });
  const warning = element("p", { class: "note", role: "status" });
  const groups = results[0].map((candidates, mask) => {
    const chips = candidates.map(({ token, probability }) => {
      const chip = element("button", { type: "button", class: "chip", "aria-pressed": "false" },
        element("span", { dir: "auto" }, token), element("small", {}, percent(probability)));
      chip.addEventListener("click", () => pick(mask, token, chips, chip));
      return withShare(chip, probability);
    });
    const rest = 1 - candidates.reduce((sum, { probability }) => sum + probability, 0);
    const title = results[0].length > 1 ? `Mask ${mask + 1}` : "Candidates";
    return element("section", { class: "mask" }, element("h3", {}, title),
      element("div", { class: "chips", role: "group", "aria-label": `Candidates for mask ${mask + 1}` }, ...chips),
      note(`All other words: ${percent(Math.max(rest, 0))}`));
  });

  function pick(mask, token, chips, chip) {
    if (form.inputs.get("text").value !== written) {
      warning.textContent = "The text has changed since: run it again.";
      return;
    }
    picks[mask] = picks[mask] === token ? null : token;
    for (const each of chips) each.setAttribute("aria-pressed", String(each === chip && picks[mask] !== null));
    const ownMask = form.model.mask_token;
    written = compose(requested.split(ownMask), picks, ownMask);
    form.setText("text", written);
    show();
  }

  function show() {
    const nodes = [];
    parts.forEach((part, i) => {
      nodes.push(part);
      if (i === picks.length) return;
      const empty = picks.length > 1 ? String(i + 1) : "?";
      nodes.push(element("mark", { class: picks[i] === null ? "slot" : "slot filled" }, picks[i] ?? empty));
    });
    sentence.replaceChildren(...nodes);
  }
  show();
  return [sentence, warning, ...groups];
}
