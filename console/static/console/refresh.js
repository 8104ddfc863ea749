// Regions that the server renders (lists of decisions, the mode, tables) are brought up to date by
// fetching this very page again and swapping the elements of the same id. One request at a time, at
// most one in two seconds; what a person has open or focused is left alone until later.

const LEAST_MS = 2000;
const ANYWAY = "n-approvals"; // of the frame: as a page is here, what it counts is brought along

const wanted = new Set();
let timer = null;
let lastMs = -LEAST_MS;

export function refresh(...ids) {
  for (const id of ids) if (document.getElementById(id)) wanted.add(id);
  if (timer !== null || wanted.size === 0) return;
  timer = setTimeout(run, Math.max(0, lastMs + LEAST_MS - performance.now()));
}

async function run() {
  lastMs = performance.now();
  const ids = [...wanted];
  wanted.clear();
  const later = [];
  try {
    const answer = await fetch(address(), { headers: { Accept: "text/html" } });
    if (answer.ok && !answer.redirected) {
      // The fresh page's style element carries a nonce that is not this page's.
      const text = (await answer.text()).replace(/<style[^>]*><\/style>/g, "");
      const page = new DOMParser().parseFromString(text, "text/html");
      for (const id of ids) if (!swap(id, page.getElementById(id))) later.push(id);
      if (!ids.includes(ANYWAY)) swap(ANYWAY, page.getElementById(ANYWAY));
      document.dispatchEvent(new CustomEvent("regions", { detail: ids }));
    }
  } catch {
    // The console is away; the next snapshot asks again.
  }
  timer = null;
  if (later.length > 0) refresh(...later);
}

// A form's preview is at an address that a change makes outdated: the conflict is its reader's to
// see when he goes on, not that of the parts around it.
function address() {
  return document.querySelector("form[data-preview]") ? location.pathname : location.href;
}

function swap(id, fresh) {
  const old = document.getElementById(id);
  if (!old) return true;
  if (old.contains(document.activeElement) || old.querySelector("details[open]")) return false;
  if (fresh) old.replaceWith(document.importNode(fresh, true));
  else old.remove();
  return true;
}
