// One live connection: hello, frames, heartbeats, gaps, silence, coming back. Knows nothing of
// pages: it dispatches "frame" ({frame, gap}) and "state" ({state, sinceS, attempt}).
//
// A hidden tab takes nothing in and asks for nothing; seen again it asks for one snapshot.
//
// States: connecting, live, polling (the socket is away, REST answers), down (nothing answers),
// signed-out. `silent` tells whether nothing at all was heard for two heartbeats.

import { heard, serverNow } from "./clock.js";

const FIRST_DELAY_S = 0.5;
const LONGEST_DELAY_S = 15;
const HEARTBEAT_S = 5;
const SIGNED_OUT = 4401;

export class LiveSocket extends EventTarget {
  constructor({ url, snapshotUrl }) {
    super();
    this.url = url;
    this.snapshotUrl = snapshotUrl;
    this.state = "connecting";
    this.silent = false;
    this.attempt = 0;
    this.heartbeatS = HEARTBEAT_S;
    this.stream = null;
    this.seq = null;
    this.heardMs = performance.now();
    this.heardS = serverNow();
    this.frame = null;
    this.scope = null;
    this.scopeTold = false;
    this.isBehind = false;
  }

  start() {
    this.connect();
    setInterval(() => this.watch(), 500);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) return;
      if (this.timer) this.retryNow();
      else if (this.isBehind) this.askSnapshot();
    });
    window.addEventListener("online", () => this.timer && this.retryNow());
  }

  connect() {
    this.timer = null;
    const socket = new WebSocket(this.url);
    this.socket = socket;
    this.scopeTold = false;
    socket.onmessage = (event) => this.socket === socket && this.receive(JSON.parse(event.data));
    socket.onclose = (event) => this.socket === socket && this.lost(event.code);
  }

  receive(message) {
    this.noted();
    if (message.type === "hello") {
      this.heartbeatS = message.heartbeat_s;
    } else if (message.type === "heartbeat") {
      heard(message.at_s);
      this.socket.send('{"type":"pong"}');
    } else if (message.type === "frame") {
      this.attempt = 0;
      this.enter("live");
      this.take(message);
    }
  }

  take(frame) {
    heard(frame.at_s);
    this.isBehind ||= document.hidden;
    const waits = this.isBehind && (document.hidden || !frame.snapshot);
    const follows = frame.stream === this.stream && frame.seq === this.seq + 1;
    const known = frame.stream === this.stream && frame.seq <= this.seq;
    const gap = this.isBehind || (this.seq !== null && !follows && !known);
    if (waits) return;
    if (gap && !frame.snapshot) this.askSnapshot();
    this.isBehind = false;
    this.stream = frame.stream;
    this.seq = frame.seq;
    this.frame = frame;
    this.tellScope();
    this.dispatchEvent(new CustomEvent("frame", { detail: { frame, gap } }));
  }

  askSnapshot() {
    // One that is not open yet begins with a snapshot by itself.
    if (!this.socket || this.socket.readyState === WebSocket.CONNECTING) return;
    this.socket.send('{"type":"snapshot"}');
  }

  // The rows that the page shows, by name: frames of a large fleet tell of no others unasked.
  look(instances, agents) {
    this.scope = JSON.stringify({ type: "scope", instances, agents });
    this.scopeTold = false;
    this.tellScope();
  }

  tellScope() {
    if (this.scope === null || this.scopeTold || !this.frame?.partial) return;
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    this.socket.send(this.scope);
    this.scopeTold = true;
  }

  lost(code) {
    this.socket = null;
    if (code === SIGNED_OUT) {
      this.enter("signed-out");
      return;
    }
    if (this.state === "live") this.enter("connecting");
    const base = Math.min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** this.attempt);
    this.attempt += 1;
    // In a hidden tab the timer only marks that it is time: being seen tries again.
    this.timer = setTimeout(() => document.hidden || this.retryNow(),
      base * (0.5 + Math.random()) * 1000);
  }

  async retryNow() {
    clearTimeout(this.timer);
    this.timer = null;
    await this.poll();
    if (this.state !== "signed-out") this.connect();
  }

  // While the socket is away the newest state is asked for once per attempt.
  async poll() {
    try {
      const answer = await fetch(this.snapshotUrl, { headers: { Accept: "application/json" } });
      if (answer.status === 401 || answer.status === 403) {
        this.enter("signed-out");
      } else if (answer.ok) {
        this.noted();
        this.enter("polling");
        const frame = await answer.json();
        this.seq = null; // whatever the socket sends next begins anew
        heard(frame.at_s);
        this.frame = frame;
        this.dispatchEvent(new CustomEvent("frame", { detail: { frame, gap: true } }));
      } else {
        this.enter("down");
      }
    } catch {
      this.enter("down");
    }
  }

  noted() {
    this.heardMs = performance.now();
    this.heardS = serverNow();
    if (this.silent) {
      this.silent = false;
      this.tell();
    }
  }

  watch() {
    const quietS = (performance.now() - this.heardMs) / 1000;
    if (this.silent || quietS <= 2 * this.heartbeatS) return;
    this.silent = true;
    this.tell();
    // A connection that is open but says nothing is as good as none.
    if (this.socket) {
      const dead = this.socket;
      this.lost(0);
      dead.close();
    }
  }

  enter(state) {
    if (this.state === state) return;
    this.state = state;
    this.tell();
  }

  tell() {
    const { state, silent, heardS, attempt } = this;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, silent, heardS, attempt } }));
  }
}
