// Words in the page's language: the catalogue (a script before the modules) knows them by their
// English. English itself needs no catalogue, and what is not translated stays English.
//
//   _("loop silent since %s", clock(atS))             values in order, or %1 … %9 by place
//   n_("%s gate", "%s gates", gates.length)           the count is the first value

const catalogue = globalThis.django;

function fill(text, values) {
  if (values.length === 0) return text;
  let next = 0;
  return text.replace(/%(s|[1-9]|%)/g, (mark, what) => {
    if (what === "%") return "%";
    const value = values[what === "s" ? next++ : Number(what) - 1];
    return value === undefined ? mark : String(value);
  });
}

export function _(msgid, ...values) {
  return fill(catalogue?.gettext(msgid) ?? msgid, values);
}

export function n_(singular, plural, n, ...values) {
  const text = catalogue?.ngettext(singular, plural, n) ?? (n === 1 ? singular : plural);
  return fill(text, [n, ...values]);
}
