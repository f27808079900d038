// Reads server-sent events from a fetch body. Owns framing only: what an event means is the caller's.

/** The `data` of each whole event, in order. A last event without its blank line is not given. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      // A lone CR at the end may be half of a CRLF that is still on its way.
      const held = rest.endsWith("\r") ? "\r" : "";
      const text = (held ? rest.slice(0, -1) : rest).replace(/\r\n?/g, "\n");
      const parts = text.split("\n\n");
      rest = parts.pop() + held;
      for (const part of parts) {
        const data = part
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).replace(/^ /, ""));
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
