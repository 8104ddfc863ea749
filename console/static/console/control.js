// Forms that change something: steppers, the end of a hold, and what the form would do, asked for
// while it is filled. The server decides and words everything; without scripts the button asks.

const PAUSE_MS = 350;

for (const form of document.querySelectorAll("form[data-preview]")) preview(form);
for (const stepper of document.querySelectorAll("[data-stepper]")) step(stepper);
for (const until of document.querySelectorAll("[data-until]")) end(until);

function preview(form) {
  let timer = null;
  let asking = null;
  const shown = () => document.getElementById(form.dataset.preview);

  async function ask() {
    asking?.abort();
    const mine = (asking = new AbortController());
    const query = new URLSearchParams(new FormData(form));
    const url = `${location.pathname}?${query}`;
    const panel = shown();
    panel.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(url, { signal: mine.signal, headers: { Accept: "text/html" } });
      if (answer.redirected || (!answer.ok && answer.status !== 422)) {
        location.assign(url); // signed out, or somebody else changed it: the page itself says so
        return;
      }
      const text = (await answer.text()).replace(/<style[^>]*><\/style>/g, "");
      if (mine.signal.aborted) return;
      const page = new DOMParser().parseFromString(text, "text/html");
      const fresh = page.getElementById(panel.id);
      if (!fresh) return;
      if (panel.contains(document.activeElement)) {
        panel.addEventListener("focusout", ask, { once: true });
        return;
      }
      panel.replaceWith(document.importNode(fresh, true));
      form.querySelector(".actions button").classList.toggle("main",
        !fresh.querySelector("[data-confirm]"));
      history.replaceState(null, "", url);
    } catch (error) {
      if (error.name !== "AbortError") panel.removeAttribute("aria-busy");
    }
  }

  form.addEventListener("input", () => {
    // What is shown is no longer what is typed: only that may be confirmed, once it is shown.
    for (const button of shown().querySelectorAll("[data-confirm]")) button.disabled = true;
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE_MS);
  });
  form.addEventListener("change", (event) => {
    // Another cluster has other instances: the form itself is another one.
    if (event.target.name === "cluster" && form.querySelector("[data-stepper]")) {
      location.assign(`${location.pathname}?cluster=${encodeURIComponent(event.target.value)}`);
    }
  });
  form.addEventListener("submit", () => clearTimeout(timer));
}

function step(stepper) {
  const input = stepper.querySelector("input");
  const rest = document.querySelector("[data-rest]");
  const total = Number(stepper.dataset.total);
  input.min = 0;
  input.max = total;
  const show = () => {
    const value = Number(input.value);
    const known = input.value !== "" && value >= 0 && value <= total;
    if (rest) rest.textContent = known ? String(total - value) : "–";
  };
  for (const button of stepper.querySelectorAll("[data-step]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const value = (Number(input.value) || 0) + Number(button.dataset.step);
      input.value = Math.min(Math.max(value, 0), total);
      input.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }
  input.addEventListener("input", show);
  show();
}

// The time of day counts only where the span says so.
function end(until) {
  const span = until.querySelector("select");
  const show = () => {
    for (const part of until.querySelectorAll("[data-until-part]")) part.hidden = span.value !== "0";
  };
  span.addEventListener("change", show);
  show();
}
