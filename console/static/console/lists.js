// Lists that the server sorts, filters and pages change in place: in a region marked `data-list`,
// links and GET forms that lead to this same page fetch it again by htmx and morph the region, so
// that focus and what is typed stay. The address follows; without scripts they are plain links.

const FAILED = ["htmx:error", "htmx:response:error"];

const isHere = (url) => url.origin === location.origin && url.pathname === location.pathname;

function go(region, url) {
  const { htmx } = window;
  if (!htmx || !region.id) {
    location.assign(url);
    return;
  }
  region.setAttribute("aria-busy", "true");
  htmx.ajax("GET", url.pathname + url.search, { source: region, target: `#${region.id}`,
    select: `#${region.id}`, swap: "outerMorph", push: "true" });
}

function regionOf({ target }, selector) {
  const found = target.closest(selector);
  return [found, found?.closest("[data-list]")];
}

function onClick(event) {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const [link, region] = regionOf(event, "a[href]");
  if (!region || link.target || link.hasAttribute("download")) return;
  const url = new URL(link.href);
  // A query of its own makes a format of it a file, not this list.
  if (!isHere(url) || url.searchParams.has("format")) return;
  event.preventDefault();
  go(region, url);
}

function onSubmit(event) {
  const [form, region] = regionOf(event, "form");
  if (!region || form.method !== "get") return;
  const url = new URL(form.action);
  if (!isHere(url)) return;
  event.preventDefault();
  const fields = [...new FormData(form, event.submitter)].filter(([, value]) => value !== "");
  url.search = new URLSearchParams(fields);
  go(region, url);
}

// What cannot be had in place is opened, so that the browser shows what is wrong with it.
function onResponse(event) {
  const { ctx } = event.detail;
  const { raw } = ctx.response;
  if (!ctx.sourceElement.matches("[data-list]") || (raw.ok && !raw.redirected)) return;
  event.preventDefault();
  location.assign(ctx.request.action);
}

function onText({ detail: { ctx } }) {
  // The fresh page's style element carries a nonce that is not this page's.
  ctx.text = ctx.text.replace(/<style[^>]*><\/style>/g, "");
}

function onSwapped({ detail: { ctx } }) {
  const region = document.getElementById(ctx.target.id);
  if (!region) return;
  region.removeAttribute("aria-busy");
  // What was pressed may be gone with the rows it belonged to.
  if (document.activeElement === document.body) {
    region.querySelector("[data-search], select, button, a")?.focus({ preventScroll: true });
  }
  document.dispatchEvent(new CustomEvent("regions", { detail: [ctx.target.id] }));
}

function onFailed({ detail: { ctx } }) {
  if (ctx?.sourceElement?.matches("[data-list]")) location.assign(ctx.request.action);
}

export function startLists() {
  if (!document.querySelector("[data-list]")) return;
  document.addEventListener("click", onClick);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("htmx:before:response", onResponse);
  document.addEventListener("htmx:after:request", onText);
  document.addEventListener("htmx:after:swap", onSwapped);
  for (const name of FAILED) document.addEventListener(name, onFailed);
}
