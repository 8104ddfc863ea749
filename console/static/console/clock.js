// The server's time, told from what it sends. Ages are counted by it, so that a laptop whose clock
// is wrong does not call fresh data old.

let offsetS = null;

export function heard(serverS) {
  const seen = serverS - Date.now() / 1000;
  // What arrives late looks like a slow server clock: the largest offset is the truest; slowly
  // giving way lets a clock that is stepped back be followed.
  offsetS = offsetS === null || seen > offsetS ? seen : offsetS + 0.02 * (seen - offsetS);
}

export function serverNow() {
  return Date.now() / 1000 + (offsetS ?? 0);
}
