// What the openai SDK for Node makes of a gateway: as openai_python.py. One JSON in, one out.
import OpenAI from "openai";
import { text as readAll } from "node:stream/consumers";

const asked = JSON.parse(await readAll(process.stdin));
const messages = [{ role: "user", content: "hi" }];
const client = (apiKey) => new OpenAI({ baseURL: asked.base_url, apiKey, maxRetries: 0 });
const tokens = (usage) => [usage.prompt_tokens, usage.completion_tokens];

async function errorOf(call) {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    return [error.constructor.name, error.status, error.code];
  }
  return [];
}

async function streamed(sdk, model, more = {}) {
  const stream = await sdk.chat.completions.create({ model, messages, max_tokens: 16, stream: true, ...more });
  const told = [""];
  for await (const part of stream) {
    told[0] += part.choices[0]?.delta.content ?? "";
    if (part.usage) told.push(tokens(part.usage));
  }
  return told;
}

async function talk() {
  const sdk = client(asked.key);
  const told = { models: {}, errors: {} };
  for (const model of asked.models) {
    const whole = await sdk.chat.completions.create({ model, messages, max_tokens: 16 });
    const completion = await sdk.completions.create({ model, prompt: "hi", max_tokens: 16 });
    told.models[model] = {
      whole: whole.choices[0].message.content,
      named: whole.model,
      tokens: tokens(whole.usage),
      stream: await streamed(sdk, model),
      "stream with usage": await streamed(sdk, model, { stream_options: { include_usage: true } }),
      completion: completion.choices[0].text !== "",
    };
  }
  const vectors = await sdk.embeddings.create({ model: asked.vectors, input: "hi" });
  told.embedding = vectors.data[0].embedding.length;
  told.listed = [];
  for await (const model of sdk.models.list()) told.listed.push(model.id);
  told.listed.sort();
  const ask = (model, by = sdk) => by.chat.completions.create({ model, messages });
  told.errors["unknown model"] = await errorOf(() => ask("nobody's"));
  told.errors["no replica"] = await errorOf(() => ask(asked.away));
  told.errors["not offered"] = await errorOf(() => sdk.embeddings.create({ model: asked.models[0], input: "hi" }));
  told.errors["wrong key"] = await errorOf(() => ask(asked.models[0], client(asked.wrong_key)));
  return told;
}

async function leave() {
  const stream = await client(asked.key).chat.completions.create({ model: asked.slow, messages, stream: true });
  for await (const part of stream) {
    const text = part.choices[0]?.delta.content;
    if (text) return text; // leaving the loop ends the call
  }
  return "";
}

async function breakOff() {
  let came = "";
  try {
    const stream = await client(asked.key).chat.completions.create({ model: asked.slow, messages, stream: true });
    for await (const part of stream) came += part.choices[0]?.delta.content ?? "";
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    return [came, error.constructor.name, error.code];
  }
  return [came];
}

const steps = { talk, leave, break_off: breakOff };
console.log(JSON.stringify(await steps[asked.step]()));
