import { _ } from "./i18n.js";

// What a reading that went wrong says of its source, as a tone and words.

export function unread({ state, error }) {
  // No answer in time is weak evidence of busy, and none of idle.
  if (state === "slow") return ["warn", error ?? _("unresponsive, maybe busy")];
  const word = state === "down" ? _("down") : _("read failed");
  return ["bad", error ? `${word}: ${error}` : word];
}
