// Runs before the first paint, so that the page never flashes in the other theme and what only
// works with scripts (`js-only`) has its place from the start.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const stored = localStorage.getItem("theme");
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
})();
