// The live log: follows a task's log by websocket and goes on from its own offset after every break.
// Used by the portal's service page and the console's task page; shows text, never markup.

const LONGEST = 400_000; // characters kept in the page while it follows; earlier ones are asked for by page
const LONGEST_READ = 10 * LONGEST; // while somebody reads back
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
    this.earlier = root.querySelector("[data-loads-earlier]");
    this.earlier?.addEventListener("click", () => this.back());
    this.select?.addEventListener("change", () => this.open(this.select.value));
    this.open(this.select ? this.select.value : root.dataset.task);
  }

  async open(task) {
    this.task = task;
    this.attempt = null;
    this.end = 0;
    this.begins(0);
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
    this.take(piece);
  }

  /** The page before the first one shown; what is shown keeps its place on the screen. */
  async back() {
    const { task, attempt, start } = this;
    this.earlier.disabled = true;
    try {
      const response = await fetch(`/api/v1/tasks/${task}/logs?attempt=${attempt}&to=${start}`);
      if (!response.ok) return;
      const piece = await response.json();
      if (task !== this.task || attempt !== this.attempt || start !== this.start) return;
      if (this.follow) this.follow.checked = false; // who reads back is not thrown to the end
      const fromEnd = this.text.scrollHeight - this.text.scrollTop;
      this.text.prepend(piece.text);
      this.text.scrollTop = this.text.scrollHeight - fromEnd;
      this.begins(piece.text ? piece.start : 0); // nothing before it is kept any more
    } catch {
      return; // the button stays for another try
    } finally {
      this.earlier.disabled = false;
    }
  }

  /** From which byte on the log is shown; before it there is more to ask for. */
  begins(start) {
    this.start = start;
    if (this.earlier) this.earlier.hidden = start === 0;
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
        this.begins(0);
        this.text.textContent = "";
        this.connect();
        return;
      }
      if (this.attempt !== null) this.add(this.heading(piece.attempt));
      this.attempt = piece.attempt;
      this.end = 0;
      this.begins(piece.start);
    }
    if (piece.end <= this.end) return; // had it before the break
    this.end = piece.end;
    this.add(piece.text);
    this.say("live", this.words.live);
  }

  add(text) {
    this.text.append(text);
    const shown = this.text.textContent;
    const following = !this.follow || this.follow.checked;
    if (shown.length > (following ? LONGEST : LONGEST_READ)) {
      const kept = shown.slice(-LONGEST / 2);
      this.text.textContent = kept;
      // From where this attempt's text is left: unless its whole beginning still is.
      if (!kept.includes(this.heading())) this.begins(this.end - new TextEncoder().encode(kept).length);
    }
    if (!this.follow || this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }

  heading(attempt = this.attempt) {
    return `\n── ${this.words.attempt} ${attempt} ──\n`;
  }

  say(link, sentence) {
    this.root.dataset.link = link;
    this.status.textContent = sentence;
  }
}

for (const root of document.querySelectorAll("[data-live-log]")) new LiveLog(root);
