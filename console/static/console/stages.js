// The model's stages by name, as people read them and in their colours: `local_prefill:pd`.

import { _ } from "./i18n.js";

const WORDS = { local_prefill: _("Prefill, local"), remote_prefill: _("Prefill, remote"),
  decode: _("Decode"), link: _("Link") };
const HUES = { local_prefill: "local", remote_prefill: "remote", decode: "decode", link: "remote" };

export const arrow = (id) => id.replace("->", " → ");

export function stageWords(name) {
  const [kind, where] = name.split(/:(.*)/);
  return `${WORDS[kind] ?? kind} (${arrow(where)})`;
}

export const stageHue = (name) => HUES[name.split(":")[0]] ?? "";
