// The playground: a conversation through /v1/chat/completions with a key that lives in this module's
// memory and in the password field, never in storage. Shows what comes as text, never as markup.

import { events } from "./sse.js";

const byId = (id) => document.getElementById(id);
const words = JSON.parse(byId("playground-words").textContent);
const turns = byId("play-turns");
const keyField = byId("play-key");
const keyNote = byId("play-key-note");
const modelField = byId("play-model");
const textField = byId("play-text");
const errorBox = byId("play-error");

const said = []; // the conversation as the gateway gets it
let running = null; // AbortController of the answer in flight

const fill = (text, values) => text.replace(/%\((\w+)\)s/g, (_, name) => values[name] ?? "?");

/** An error that already is a sentence for the reader. */
class Told extends Error {}

/** The reader's sentence for an answer that isn't ok: our problem shape or OpenAI's. */
async function sentenceOf(response) {
  let message = "";
  try {
    const body = await response.json();
    message = body.error?.message ?? body.detail ?? "";
  } catch {
    message = "";
  }
  if (response.status === 401 && !message) return words.key_refused;
  return message || fill(words.refused, { status: response.status });
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Told(words.unreachable);
  }
  if (!response.ok) throw new Told(await sentenceOf(response));
  return response;
}

function complain(text) {
  errorBox.textContent = text;
  errorBox.hidden = !text;
}

// --- the key -----------------------------------------------------------------------------------

async function tryKey() {
  const key = keyField.value.trim();
  keyNote.textContent = "";
  if (!key) return;
  try {
    const response = await ask("/v1/models", { headers: { Authorization: `Bearer ${key}` } });
    const names = (await response.json()).data.map((model) => model.id).sort();
    if (key !== keyField.value.trim()) return; // changed meanwhile
    keyNote.textContent = names.length ? fill(words.key_good, { n: names.length }) : words.key_no_models;
    offer(names);
  } catch (error) {
    keyNote.textContent = error instanceof Told ? error.message : words.unreachable;
  }
}

/** The key's own list is what counts; the page's list was only a first guess. */
function offer(names) {
  const chosen = modelField.value;
  const first = modelField.options[0];
  modelField.replaceChildren(first, ...names.map((name) => new Option(name, name)));
  modelField.value = names.includes(chosen) ? chosen : names.length === 1 ? names[0] : "";
}

keyField.addEventListener("change", tryKey);

byId("play-make-key")?.addEventListener("click", async (event) => {
  const button = event.currentTarget;
  const form = new FormData(byId("play-settings"));
  const tenant = byId("play-tenant");
  if (tenant) form.set("tenant", tenant.value);
  button.disabled = true;
  try {
    const url = byId("playground").dataset.keyUrl;
    const made = await (await ask(url, { method: "POST", body: form })).json();
    keyField.value = made.key;
    await tryKey();
    keyNote.textContent = `${words.key_made} ${keyNote.textContent}`;
  } catch (error) {
    keyNote.textContent = error instanceof Told ? error.message : words.unreachable;
  } finally {
    button.disabled = false;
  }
});

byId("play-settings").addEventListener("submit", (event) => event.preventDefault());

// --- the conversation ---------------------------------------------------------------------------

function addTurn(role, text) {
  byId("play-empty")?.remove();
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  const parts = { who: role === "user" ? words.you : modelField.value, said: text, figures: "" };
  for (const [name, content] of Object.entries(parts)) {
    const part = document.createElement("div");
    part.className = name;
    part.textContent = content;
    turn.append(part);
  }
  turns.append(turn);
  turns.scrollTop = turns.scrollHeight;
  return turn;
}

function busy(now) {
  byId("play-send").disabled = now;
  byId("play-stop").hidden = !now;
}

async function send(text) {
  const key = keyField.value.trim();
  if (!key) throw new Told(words.no_key);
  if (!modelField.value) throw new Told(words.no_model);
  said.push({ role: "user", content: text });
  addTurn("user", text);
  textField.value = "";
  const turn = addTurn("assistant", "");
  turn.classList.add("waiting");
  running = new AbortController();
  busy(true);
  const answer = { text: "", tokens: null, started: performance.now(), first: null };
  try {
    await stream(key, turn, answer);
    if (!answer.text) turn.querySelector(".said").textContent = words.nothing;
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    turn.querySelector(".figures").textContent = words.stopped;
  } finally {
    running = null;
    busy(false);
    turn.classList.remove("waiting", "streaming");
    // What was said stays in the conversation, also when it was cut; an empty answer doesn't.
    if (answer.text) said.push({ role: "assistant", content: answer.text });
    else said.pop();
    if (!turn.textContent.replace(modelField.value, "").trim()) turn.remove();
  }
}

async function stream(key, turn, answer) {
  const system = byId("play-system").value.trim();
  const body = {
    model: modelField.value,
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    temperature: Number(byId("play-temperature").value),
    max_tokens: Number(byId("play-max").value),
    stream: true,
    stream_options: { include_usage: true },
  };
  const response = await ask("/v1/chat/completions", {
    method: "POST",
    signal: running.signal,
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  let ended = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      ended = true;
      break;
    }
    take(JSON.parse(data), turn, answer);
  }
  figures(turn, answer);
  if (!ended) throw new Told(words.cut);
}

function take(piece, turn, answer) {
  if (piece.error) throw new Told(piece.error.message);
  if (piece.usage) answer.tokens = piece.usage.completion_tokens;
  const text = piece.choices?.[0]?.delta?.content;
  if (!text) return;
  answer.first ??= performance.now();
  answer.text += text;
  turn.classList.replace("waiting", "streaming");
  const follows = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 60;
  turn.querySelector(".said").textContent = answer.text;
  if (follows) turns.scrollTop = turns.scrollHeight;
}

function figures(turn, answer) {
  if (answer.first === null) return;
  const end = performance.now();
  const first = Math.round(answer.first - answer.started);
  const seconds = (end - answer.first) / 1000;
  const known = answer.tokens !== null && seconds > 0;
  turn.querySelector(".figures").textContent = known
    ? fill(words.figures, { tokens: answer.tokens, first, rate: (answer.tokens / seconds).toFixed(1) })
    : fill(words.figures_short, { first, total: ((end - answer.started) / 1000).toFixed(1) });
}

byId("play-composer").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = textField.value.trim();
  if (!text || running) return;
  complain("");
  try {
    await send(text);
  } catch (error) {
    complain(error instanceof Told ? error.message : words.cut);
  }
});

textField.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("play-composer").requestSubmit();
});

byId("play-stop").addEventListener("click", () => running?.abort());
byId("play-clear").addEventListener("click", () => {
  running?.abort();
  said.length = 0;
  turns.replaceChildren();
  complain("");
});
