// This view as an address, and as a call of the API: copied, and told to who cannot see the button.

import { setText } from "./dom.js";
import { _ } from "./i18n.js";

const TOLD_MS = 2500;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// The call behind a page or panel; the token stays a name, so that no secret is copied.
export function curlOf(url) {
  const address = new URL(url, location.href).href;
  return `curl -s -H "Authorization: Bearer $PRFAAS_TOKEN" ${quoted(address)}`;
}

// Copies and says so beside the button and in the page's status line.
export async function copy(button, text) {
  const words = await written(text)
    ? _("Copied") : _("The browser did not allow copying.");
  const label = button.querySelector("span");
  button.dataset.label ??= label.textContent;
  setText(document.getElementById("copied"), words);
  setText(label, words);
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => {
    setText(label, button.dataset.label);
    setText(document.getElementById("copied"), "");
  }, TOLD_MS);
}

async function written(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

export function startSharing() {
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("button[data-share]");
    if (!button) return;
    copy(button, button.dataset.share === "curl" ? curlOf(button.dataset.url) : location.href);
  });
}
