// Requests to the server: the token, errors as one line, the time that each took, and streams of events.

const TOKEN_KEY = "polyseme-token";
let askToken = async () => null;

export class ApiError extends Error {
  constructor(type, message, status = 0) {
    super(message);
    Object.assign(this, { type, status });
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN_KEY));

// `ask` is called with a message if a token is missing or wrong; it resolves to a token, or to null to give up.
export function onMissingToken(ask) {
  askToken = ask;
}

async function send(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN_KEY), headers = { ...options.headers };
    if (token) headers.Authorization = `Bearer ${token}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("unreachable", "the server cannot be reached; is it still running?");
    }
    if (response.status !== 401) return response;
    const next = await askToken(token ? "The server refused this token." : "");
    if (next === null) throw new ApiError("unauthorized", "the server needs a token", 401);
    sessionStorage.setItem(TOKEN_KEY, next);
  }
}

async function checked(response) {
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error;
  } catch { /* not JSON: the status says it */ }
  const wait = response.headers.get("Retry-After");
  const message = error?.message || `the server answered with status ${response.status}`;
  throw new ApiError(error?.type || "error", message + (wait ? ` (try again in ${wait} s)` : ""), response.status);
}

export async function getModels() {
  return (await (await checked(await send("/models"))).json()).models;
}

function post(verb, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return send(`/v1/${verb}`, { method: "POST", headers, body: JSON.stringify(body), signal });
}

// Resolves to the response and its times in ms: `total` in the browser; `queue` and `run` are the server's.
export async function postVerb(verb, body, signal) {
  const start = performance.now();
  const response = await checked(await post(verb, body, signal));
  const data = await response.json();
  return { data, times: { total: performance.now() - start, ...parseTiming(response.headers.get("Server-Timing")) } };
}

function parseTiming(header) {
  const times = {};
  for (const [, name, ms] of (header || "").matchAll(/(\w+);dur=([\d.]+)/g)) times[name] = +ms;
  return times;
}

// Calls `onToken` for each token of a generated text; resolves to the last event, the whole response.
export async function streamVerb(verb, body, signal, onToken) {
  const start = performance.now(), times = {};
  const response = await checked(await post(verb, body, signal));
  for await (const { name, data } of readEvents(response.body)) {
    if (name === "error") throw new ApiError(data.error.type, data.error.message);
    times.total = performance.now() - start;
    if (name === "done") return { data, times };
    times.first ??= times.total;
    onToken(data);
  }
  throw new ApiError("incomplete", "the server ended the stream before the text was complete");
}

async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("data")) yield { name: field("event"), data: JSON.parse(field("data")) };
    }
  }
}
