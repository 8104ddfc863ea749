// The onboarding page stays true while somebody looks, and its commands are a click away.

import { _ } from "./i18n.js";
import { refresh } from "./refresh.js";

const FEW = 500;
const EVERY_MS = 5000;
const EVERY_MANY_MS = 15000;
const SAID_MS = 2000;

const regions = () => [...document.querySelectorAll("main [data-region]")].map((one) => one.id);
const many = Number(document.getElementById("onboarding-now").dataset.sources) > FEW;

setInterval(() => document.hidden || refresh(...regions()), many ? EVERY_MANY_MS : EVERY_MS);

// Browsers give the clipboard to secure origins only; elsewhere a click selects the whole command.
function showCopy() {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  const command = button.closest("figure").querySelector(".command");
  try {
    await navigator.clipboard.writeText(command.textContent);
    button.textContent = _("Copied");
  } catch {
    getSelection().selectAllChildren(command);
    button.textContent = _("Selected");
  }
  setTimeout(() => { button.textContent = _("Copy"); }, SAID_MS);
});

document.addEventListener("regions", showCopy);
showCopy();
