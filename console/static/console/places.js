// Where the evidence of a figure is: addresses of the pages of a fleet's things.

const fleet = `/fleets/${encodeURIComponent(document.body.dataset.fleet ?? "")}`;

const asked = (page, query) => `${fleet}/${page}/?${new URLSearchParams(query)}`;

export const clusterPage = (name) => asked("cluster", { id: name });
export const linkPage = (id) => asked("link", { id });
export const linksPage = () => `${fleet}/links/`;
export const instancesPage = (query) => asked("instances", query);
export const signalPage = (query) => asked("signals", query);
export const tickPage = (seq) => `${fleet}/ticks/${seq}/`;
export const decisionPage = (id) => `${fleet}/decisions/${id}/`;
export const decisionsPage = () => `${fleet}/decisions/`;

// A stage of the model by its name: `decode:pd` is of a cluster, `link:A->B` of a link.
export function stagePage(name) {
  const [kind, where] = name.split(/:(.*)/);
  return kind === "link" ? linkPage(where) : clusterPage(where);
}
