// Generated text as it arrives: each token is shaded by how unlikely it was; its alternatives are shown on hover and focus.

import { postVerb, streamVerb } from "../api.js";
import { barList, element, formatNumber, moveFocus, note, percent, withShare } from "../dom.js";

const REASONS = { eos: "The model ended the text.", stop: "A stop string ended it.", length: "The length limit was reached." };
const HINT = "The stronger its color, the less likely a token was. Point at one, or move with the arrow keys, for alternatives.";
const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";

export class GenerateView {
  constructor({ model, body, content, signal }) {
    Object.assign(this, { model, body, content, signal, texts: [], spans: [] });
    this.isContinuation = !model.verbs.includes("translate");
    this.detail = element("div", { class: "detail", "aria-live": "polite" }, note(HINT));
  }

  async run(verb, body) {
    if (!body.stream) {
      const response = await postVerb(verb, body, this.signal);
      response.data.results[0].forEach((result, i) => this.addWhole(result, i));
      return response;
    }
    this.content.replaceChildren(this.textBox(0), this.detail);
    const response = await streamVerb(verb, body, this.signal, (token) => this.addToken(token));
    response.data.results[0].forEach((result, i) => this.textBox(i).after(note(REASONS[result.finish_reason] || "")));
    return response;
  }

  // The paragraph of a text; there are several if more than one was asked for.
  textBox(index) {
    if (!this.texts[index]) {
      const prompt = this.isContinuation ? element("span", { class: "prompt" }, this.body.text) : null;
      const box = element("p", { class: "output", dir: "auto", role: "group", "aria-label": `Text ${index + 1}` }, prompt);
      box.addEventListener("keydown", (event) => moveFocus(event, this.spans[index]));
      this.texts[index] = box;
      this.spans[index] = [];
      if (index) this.detail.before(box);
    }
    return this.texts[index];
  }

  addToken(token) {
    const box = this.textBox(token.index), spans = this.spans[token.index], probability = Math.exp(token.log_prob);
    const show = () => this.showDetail(token, probability, span);
    const span = element("span", {
      class: token.text ? "token" : "token silent", role: "button", tabindex: spans.length ? -1 : 0,
      "aria-label": `${visible(token.token)}, ${percent(probability)}`, pointerenter: show, focus: show, click: show,
    }, token.text || "·");
    spans.push(withShare(span, 1 - probability));
    box.append(span);
  }

  showDetail(token, probability, span) {
    for (const other of this.spans.flat()) other.classList.toggle("shown", other === span);
    const isListed = token.top_tokens.some((each) => each.token === token.token);
    const bars = [...token.top_tokens, ...(isListed ? [] : [token])].map((each) => {
      const share = Math.exp(each.log_prob);
      return { label: visible(each.token), share, value: percent(share), isBest: each.token === token.token };
    });
    const title = element("h3", {}, `${visible(token.token)}  ${percent(probability)}`);
    const score = note(`Log-probability ${formatNumber(token.log_prob, 2)}`);
    this.detail.replaceChildren(title, score, barList(bars, "Most likely tokens"));
  }

  addWhole(result, index) {
    const prompt = this.isContinuation ? element("span", { class: "prompt" }, this.body.text) : null;
    this.content.append(element("h3", {}, `Text ${index + 1}`),
      element("p", { class: "output", dir: "auto" }, prompt, result.text),
      note(`Log-probability ${formatNumber(result.score, 2)} · ${REASONS[result.finish_reason] || ""}`));
  }
}
