// The live log: follows a task's log by websocket and goes on from its own offset after every break.
// Used by the portal's service page and the console's task page; shows text, never markup.

const LONGEST = 400_000; // characters kept in the page; the REST API has the rest
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const NO_RETRY = new Set([4400, 4401, 4404]); // a wrong question, no session, not there: waiting mends nothing

class LiveLog {
  constructor(root) {
    this.root = root;
    this.words = root.dataset;
    this.text = root.querySelector(".log-text");
    this.status = root.querySelector(".log-status");
    this.follow = root.querySelector("[data-follows]");
    this.select = root.querySelector("select");
    this.select?.addEventListener("change", () => this.open(this.select.value));
    this.open(this.select ? this.select.value : root.dataset.task);
  }

  async open(task) {
    this.task = task;
    this.attempt = null;
    this.end = 0;
    this.wait = FIRST_WAIT_MS;
    this.text.textContent = "";
    this.socket?.close();
    this.socket = null;
    this.say("lost", this.words.connecting);
    await this.tail(task);
    if (task === this.task) this.connect();
  }

  /** The last part of a log that may be long; the socket goes on from its end. */
  async tail(task) {
    let piece;
    try {
      const response = await fetch(`/api/v1/tasks/${task}/logs`);
      if (!response.ok) return; // the socket says why
      piece = await response.json();
    } catch {
      return;
    }
    if (task !== this.task || !piece.text) return;
    if (piece.start > 0) this.add(`${this.words.earlier}\n`);
    this.take(piece);
  }

  connect() {
    clearTimeout(this.timer);
    const before = this.socket;
    this.socket = null;
    before?.close();
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    // Without an attempt the server follows the newest one, also into later ones.
    const from = this.end ? `?from=${this.end}` : "";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/tasks/${this.task}/logs${from}`);
    this.socket = socket;
    this.say("lost", this.words.connecting);
    socket.addEventListener("open", () => {
      this.wait = FIRST_WAIT_MS;
      this.say("live", this.text.textContent ? this.words.live : this.words.empty);
    });
    socket.addEventListener("message", (event) => socket === this.socket && this.take(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => this.closed(socket, event.code));
  }

  closed(socket, code) {
    if (socket !== this.socket) return; // another one has taken its place
    if (NO_RETRY.has(code)) {
      this.say("closed", this.words.closed);
      return;
    }
    this.say("lost", this.words.lost);
    this.timer = setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }

  take(piece) {
    if (piece.attempt !== this.attempt) {
      if (this.attempt !== null && piece.start > 0) {
        // A new attempt began while the line was cut: its beginning was skipped, read it from 0.
        this.attempt = piece.attempt;
        this.end = 0;
        this.text.textContent = "";
        this.connect();
        return;
      }
      if (this.attempt !== null) this.add(`\n── ${this.words.attempt} ${piece.attempt} ──\n`);
      this.attempt = piece.attempt;
      this.end = 0;
    }
    if (piece.end <= this.end) return; // had it before the break
    this.end = piece.end;
    this.add(piece.text);
    this.say("live", this.words.live);
  }

  add(text) {
    this.text.append(text);
    if (this.text.textContent.length > LONGEST) {
      this.text.textContent = this.text.textContent.slice(-LONGEST / 2);
    }
    if (!this.follow || this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }

  say(link, sentence) {
    this.root.dataset.link = link;
    this.status.textContent = sentence;
  }
}

for (const root of document.querySelectorAll("[data-live-log]")) new LiveLog(root);
