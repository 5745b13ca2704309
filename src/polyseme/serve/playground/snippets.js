// The request on screen as a command line and as Python.

const quoteShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curlSnippet(verb, body, { stream, needsToken }) {
  const lines = [`curl ${stream ? "-N " : ""}${location.origin}/v1/${verb}`, "-H 'Content-Type: application/json'"];
  if (needsToken) lines.push('-H "Authorization: Bearer $POLYSEME_TOKEN"');
  lines.push(`-d ${quoteShell(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

// JSON is Python, except for three words.
function toPython(value, useTuple = false) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) {
    const items = value.map((item) => toPython(item)).join(", ");
    return useTuple ? `(${items}${value.length === 1 ? "," : ""})` : `[${items}]`;
  }
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${toPython(item)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

// The arguments of the method of each verb: [method, positional values, names of options].
const DECODING = [
  "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed", "num_return_sequences", "num_beams",
];
const CALLS = {
  fill: (body) => ["fill", [body.text], ["top_k"]],
  embed: (body) => ["embed", [body.texts], ["layers", "granularity"]],
  score: (body) => ["score", [body.texts], ["pll_metric"]],
  classify: (body) => ["classify", body.pairs ? [body.texts, body.pairs] : [body.texts], []],
  tag: (body) => ["tag", [body.texts], []],
  answer: (body) => ["answer", [body.text, body.question], []],
  choose: (body) => ["rank_choices", [body.text, body.choices], ["normalization"]],
  rerank: (body) => ["rerank", [body.query, body.texts], ["top_k"]],
  generate: (body) => ["generate", [body.text], DECODING],
  translate: (body) => ["translate", [body.texts], [...DECODING, "split_sentences"]],
  neighbors: (body) => ["neighbors", [body.text], ["top_k"]],
  attention: (body) => ["attention", [body.text], ["pair", "target"]],
  encode: (body) => ["encode", [body.text], []],
  next_sentence: (body) => ["next_sentence", [body.text, body.pair], []],
};

export function pythonSnippet(verb, body, { model, needsToken }) {
  const token = needsToken ? ', token=os.environ["POLYSEME_TOKEN"]' : "";
  const start = `${needsToken ? "import os\n\n" : ""}import polyseme\n\n`
    + `model = polyseme.connect(${toPython(location.origin)}, ${toPython(model.name)}${token})\n`;
  return start + pythonCall(verb, body, model);
}

function pythonCall(verb, body, model) {
  if (verb === "predict" || (verb === "tag" && body.predicate !== undefined)) {
    const examples = body.examples || body.texts.map((text) => [text.split(/\s+/).filter(Boolean), body.predicate]);
    return `print(model.predict([${examples.map((example) => toPython(example, true)).join(", ")}]))\n`;
  }
  if (verb === "choose" && model.task) {
    return `print(model.predict((${toPython(body.text)}, ${toPython(body.choices, true)})))\n`;
  }
  const [method, values, names] = CALLS[verb](body);
  const options = names.filter((name) => body[name] !== undefined).map((name) => `${name}=${toPython(body[name])}`);
  const written = [...values.map((value) => toPython(value)), ...options].join(", ");
  if (verb === "generate" && body.stream && !(body.num_return_sequences > 1)) {
    return `for piece in model.stream(${written}):\n    print(piece, end="", flush=True)\n`;
  }
  return `print(model.${method}(${written}))\n`;
}
