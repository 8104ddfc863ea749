// Runs before the first paint, so that the page never flashes in the other theme.
(() => {
  "use strict";
  const root = document.documentElement;
  const stored = localStorage.getItem("theme");
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
})();
