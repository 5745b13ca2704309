// Answers that are lists of labels or texts with numbers: bars and tables.

import { barList, element, formatNumber, note, percent, table, withShare } from "../dom.js";

const heading = (text) => element("h3", { dir: "auto" }, text);
const sharesOf = (logs) => {
  const top = Math.max(...logs), weights = logs.map((log) => Math.exp(log - top));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
};

export function drawScore(results, { body }) {
  const titles = ["Text", "Bits per character", "Perplexity", "Log-probability", "Tokens"];
  const bits = results.map((score) => score.bits_per_character), most = Math.max(...bits);
  const rows = results.map((score, i) => [body.texts[i], formatNumber(bits[i]), formatNumber(score.perplexity, 1),
    formatNumber(score.log_prob, 2), String(score.num_tokens)]);
  const grid = table("Scores", titles.map((title, i) => ({ title, isNumber: i > 0 })), rows);
  grid.querySelectorAll("td:nth-child(2)").forEach((cell, i) => withShare(cell, bits[i] / most).classList.add("meter"));
  return grid;
}

export function drawClassify(results, { body }) {
  return results.flatMap((result, i) => {
    const title = body.pairs ? `${body.texts[i]} — ${body.pairs[i]}` : body.texts[i];
    return [heading(title), prediction(result)];
  });
}

export function prediction({ label, probabilities, number, similarity }) {
  if (number !== undefined) return element("p", { class: "figure" }, formatNumber(number));
  if (similarity !== undefined) {
    return barList([{ label: "similarity", share: similarity, value: formatNumber(similarity) }], "Similarity");
  }
  const rows = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const bars = rows.map(([name, share]) => ({ label: name, share, value: percent(share), isBest: name === label }));
  return barList(bars, "Labels");
}

export function drawChoose([{ scores, best_index: best, log_probs: logProbs }], { body }) {
  const shares = logProbs ? sharesOf(scores) : scores;
  const order = scores.map((_, i) => i).sort((i, j) => scores[j] - scores[i]);
  const value = (i) => (logProbs ? `${percent(shares[i])} (${formatNumber(scores[i], 2)})` : percent(scores[i]));
  const bars = order.map((i) => ({ label: body.choices[i], share: shares[i], value: value(i), isBest: i === best }));
  const comment = logProbs ? note("Shares among these choices; in parentheses the score that they are compared by.") : null;
  return [barList(bars, "Choices, best first"), comment].filter(Boolean);
}

export function drawRerank(results) {
  const scores = results.map((row) => row.score), low = Math.min(...scores), high = Math.max(...scores);
  const isBounded = low >= -1 && high <= 1;
  const share = (score) => (isBounded ? score : (score - low) / (high - low || 1));
  const bars = results.map(({ text, score }, i) => (
    { label: text, share: share(score), value: formatNumber(score), isBest: i === 0 }
  ));
  return barList(bars, "Texts, best match first");
}

export function drawNeighbors([neighbors], { form, run }) {
  const follow = (word) => () => { form.setText("text", word); run(); };
  const bars = neighbors.map(({ word, similarity }) => (
    { label: word, share: similarity, value: formatNumber(similarity), onClick: follow(word) }
  ));
  return barList(bars, "Neighbors, nearest first");
}

export function drawNextSentence([probability]) {
  const shares = [["follows", probability], ["does not", 1 - probability]];
  return barList(shares.map(([label, share]) => ({ label, share, value: percent(share) })), "Next sentence");
}
