// What a reading that went wrong says of its source, as a tone and words.

export function unread({ state, error }) {
  // No answer in time is weak evidence of busy, and none of idle.
  if (state === "slow") return ["warn", error ?? "unresponsive, maybe busy"];
  const word = state === "down" ? "down" : "read failed";
  return ["bad", error ? `${word}: ${error}` : word];
}
