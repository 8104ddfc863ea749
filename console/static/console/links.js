// What the loop's newest pass found of a link: tones and words as console/link_states.py has them.

import { serverNow } from "./clock.js";
import { clock } from "./format.js";
import { _ } from "./i18n.js";

const TONES = { clear: "good", congested: "bad", down: "bad" };
const words = (label) => ({ clear: _("clear"), near_limit: _("near limit"), congested: _("congested"),
  flow_limited: _("flow-limited"), burst: _("burst"), down: _("down"), unknown: _("unknown") }[label]
  ?? label.replaceAll("_", " "));
const LOOP_STALE_S = Math.max(3 * Number(document.body.dataset.tickS), 6);

// null where the loop knows nothing of the link; `old` where it has been silent since.
export function judged(loop, id) {
  const found = loop?.links?.[id];
  if (!found?.label) return null;
  const { label, signs, breaker } = found;
  const said = words(label);
  const old = serverNow() - loop.at_s > LOOP_STALE_S;
  return { label, signs, breaker, old, tone: old ? "warn" : TONES[label] ?? "warn",
    words: old ? _("%1 at %2", said, clock(loop.at_s)) : said };
}

// What to add to a link's figures where it has a trouble that they do not show; else nothing.
export function trouble(loop, id) {
  const found = judged(loop, id);
  return !found || found.old || ["clear", "unknown"].includes(found.label) ? null : found;
}
