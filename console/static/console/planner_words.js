// What an answer of the planner says in sentences. No arithmetic beyond shares of what is given.

import * as f from "./format.js";
import { _ } from "./i18n.js";
import { arrow } from "./stages.js";

export const times = (factor) => (f.missing(factor) ? f.NONE : `×${f.significant(factor)}`);
export const roles = (plan) => _("%s prefill / %s decode", plan.n_prefill, plan.n_decode);
const lower = (text) => text.charAt(0).toLowerCase() + text.slice(1);
const STAGES = { local_prefill: _("local prefill"), remote_prefill: _("remote prefill"),
  decode: _("decode"), link: _("link") };
const stage = (name) => name.replace(/^(.*?):(.*)$/, (all, kind, where) =>
  `${STAGES[kind] ?? kind} (${arrow(where)})`);
const several = (list) => (list.length < 2 ? list.join("")
  : _("%s and %s", list.slice(0, -1).join(", "), list.at(-1)));

export function threshold(plan) {
  if (plan.threshold_tokens !== null) return `t = ${f.tokens(plan.threshold_tokens)}`;
  return plan.mode === "always_remote" ? _("everything remote") : _("everything local");
}

export function totalDemand(answer) {
  return Object.values(answer.demand_rps).reduce((sum, rate) => sum + rate, 0);
}

const MOST_BINDING = 4;

export function best(answer) {
  const { optimum, cluster, clusters } = answer;
  const plan = optimum.clusters[cluster];
  const asked = totalDemand(answer);
  const said = clusters.length > 1
    ? _("Best is %s with %s in %s.", threshold(plan), roles(plan), cluster)
    : _("Best is %s with %s.", threshold(plan), roles(plan));
  const binding = optimum.binding.slice(0, MOST_BINDING).map(stage);
  const rest = optimum.binding.length - binding.length;
  const limits = several(rest > 0 ? [...binding, _("%s more", rest)] : binding) || _("nothing");
  const carries = f.rate(optimum.lambda_max_rps);
  const enough = optimum.headroom >= 1;
  const load = clusters.length > 1
    ? enough ? _("The fleet carries %s, %s the %s asked; limited by %s.", carries,
      times(optimum.headroom), f.rate(asked), limits)
      : _("The fleet carries %s, only %s of the %s asked: queues would grow; limited by %s.",
        carries, f.percent(optimum.headroom), f.rate(asked), limits)
    : enough ? _("It carries %s, %s the %s asked; limited by %s.", carries,
      times(optimum.headroom), f.rate(asked), limits)
      : _("It carries %s, only %s of the %s asked: queues would grow; limited by %s.",
        carries, f.percent(optimum.headroom), f.rate(asked), limits);
  return `${said} ${load}`;
}

// The figures under the sentence: [label, figure, what it is of, how full, hue].
export function figures(answer) {
  const { optimum, cluster, sweep, slo } = answer;
  const plan = optimum.clusters[cluster];
  const [link, use] = Object.entries(optimum.links)
    .sort(([, a], [, b]) => b.utilisation - a.utilisation)[0] ?? [null, null];
  const now = (value) => value / optimum.headroom;
  return [
    [_("Carries"), f.rate(optimum.lambda_max_rps),
      _("%s what is asked", times(optimum.headroom)), 1 / optimum.headroom, ""],
    [_("Threshold t"),
      plan.threshold_tokens === null ? _("all local") : f.tokens(plan.threshold_tokens),
      roles(plan), null, ""],
    [_("Remote share"), f.percent(plan.remote_fraction),
      f.rate(answer.demand_rps[cluster] * plan.remote_fraction), plan.remote_fraction, "remote"],
    link === null ? [_("Link"), f.NONE, _("no link is used"), null, ""]
      : [Object.keys(optimum.links).length > 1 ? _("Fullest link") : _("Link"),
        f.gbps(now(use.egress_gbps)), _("of %s, %s", f.gbps(use.planned_gbps), arrow(link)),
        now(use.utilisation), "remote"],
    [_("First token, estimated"),
      f.missing(sweep.ttft_now_s) ? _("no end") : f.duration(sweep.ttft_now_s),
      _("mean; %s unloaded", f.duration(sweep.service_s)),
      f.missing(sweep.ttft_now_s) ? 1.01 : sweep.ttft_now_s / slo.ttft_s, ""],
  ];
}

export function inForce(answer) {
  const { running, plan } = answer;
  if (running.why_not) return _("No comparison with the plan in force: %s.", running.why_not);
  return _("The line in a bar is the plan in force, %s: %s what is asked.", plan,
    times(running.headroom));
}

// Per PD cluster what a hold would pin, and what to know before.
export function holds(answer) {
  return answer.clusters.map((cluster) => {
    const plan = answer.optimum.clusters[cluster];
    const runs = answer.running.clusters[cluster];
    const bestT = answer.running.best_t_tokens?.[cluster];
    const same = runs && runs.n_prefill === plan.n_prefill && runs.n_decode === plan.n_decode;
    if (runs && !same && bestT !== undefined) {
      return { cluster, threshold_tokens: bestT, roles: runs,
        note: _("A hold pins t, not roles: %s runs %s, this plan needs %s. Offered is the best t "
          + "for the roles that run, %s.", cluster, roles(runs), roles(plan),
            times(answer.running.best_headroom)) };
    }
    let note = "";
    if (!runs) note = _("No plan runs in %s yet; this suits %s.", cluster, roles(plan));
    else if (!same) {
      note = _("%s runs %s; this suits the %s of the numbers above.", cluster, roles(runs),
        roles(plan));
    }
    return { cluster, threshold_tokens: plan.threshold_tokens, roles: plan, note };
  });
}

// Stands in the audit: a record, and English as they all are.
export function holdReason(hold, answer, asked) {
  const { n_prefill: prefill, n_decode: decode } = hold.roles;
  const numbers = [...asked].filter(([name]) => name in answer.changed)
    .map(([name, value]) => `${name} = ${value}`);
  const with_ = numbers.length > 0 ? `, with ${numbers.join(", ")}` : "";
  const rate = f.rate(answer.demand_rps[hold.cluster]);
  return `Planner: best t for ${prefill} prefill / ${decode} decode at ${rate}${with_}`
    .slice(0, 480);
}

export function baselines(answer) {
  const { optimum, running, same_cost: same } = answer;
  const rows = [[_("Best plan"), optimum.lambda_max_rps, ""]];
  if (running.headroom !== null) {
    rows.push([_("Plan in force"), running.headroom * totalDemand(answer), ""]);
  }
  const { naive, homogeneous } = optimum.baselines;
  if (naive) rows.push([_("Naive: all prefill remote"), naive.lambda_max_rps, ""]);
  const n = homogeneous ? homogeneous.n_prefill + homogeneous.n_decode : 0;
  if (homogeneous && n !== same.instances) {
    rows.push([_("All local: %s as in the scenario", n), homogeneous.lambda_max_rps,
      roles(homogeneous)]);
  }
  const alike = same.basis === "instances" ? _("as many") : _("same cost");
  rows.push([_("All local: %s %s, %s", same.instances, same.profile, alike), same.lambda_max_rps,
    roles(same)]);
  return rows;
}

export function baselinesNote(answer) {
  const { basis } = answer.same_cost;
  const cost = basis === "instances"
    ? _("Not every profile says its cost_per_hour, so as many instances count as the same cost.")
    : _("Same cost is by the profiles' cost_per_hour.");
  return answer.optimum.baselines.naive ? cost
    : _("%s There is no naive baseline: not every cluster has a link from a PrfaaS cluster.", cost);
}

function money(cost, basis) {
  const words = f.significant(cost);
  if (basis !== "instances") return _("%s an hour", words);
  return cost === 1 ? _("%s instance", words) : _("%s instances", words);
}

export function fleetWords(counts) {
  return Object.entries(counts).map(([name, n]) => `${n} ${name}`).join(" + ");
}

export function cheapest(answer) {
  const { cheapest: search } = answer;
  const wanted = _("%s headroom and a mean first token within %s", times(search.least_headroom),
    f.duration(search.slo_ttft_s));
  if (search.found) {
    const { found, now } = search;
    const saved = now.cost - found.cost;
    const cost = (value) => money(value, search.basis);
    const less = search.basis === "instances" ? _("That is %s fewer than now", cost(saved))
      : _("That is %s less than now", cost(saved));
    const against = !now.will_do ? _("Now it is %s, which will not do", cost(now.cost))
      : saved > 1e-9 ? less
        : saved < -1e-9 ? _("That is %s more than now",
          cost(-saved)) : _("That is what there is now");
    return _("%s (%s) carry %s with %s. %s.", fleetWords(found.counts), money(found.cost,
      search.basis), f.rate(totalDemand(answer)), wanted, against);
  }
  if (search.largest) {
    const { largest } = search;
    const wait = f.missing(largest.ttft_s) ? _("no bounded wait") : f.duration(largest.ttft_s);
    return _("No fleet within the bounds has %s. The largest, %s, has %s and %s.", wanted,
      fleetWords(largest.counts), times(largest.headroom), wait);
  }
  return _("Not searched: %s.", search.why_not);
}

export const sized = (plan) => `${plan.threshold_tokens === null ? _("all local")
  : `t = ${f.tokens(plan.threshold_tokens)}`}, ${plan.n_prefill}/${plan.n_decode}`;

export function cheapestNote({ cheapest: search }) {
  const bounds = Object.entries(search.searched)
    .map(([name, [low, high]]) => _("%s %s to %s", name, low, high)).join(", ");
  const fixed = search.fixed.length > 0
    ? ` ${_("Kept as it is: %s.", search.fixed.join(", "))}` : "";
  const how = search.proven ? _("every size was compared")
    : _("found by taking one instance away at a time, not proven");
  return _("Searched %s; %s. Links stay as above.", bounds, how) + fixed;
}

export function heatNote({ cluster, clusters, optimum, running }) {
  const instances = optimum.clusters[cluster].n_prefill + optimum.clusters[cluster].n_decode;
  const runs = running.clusters[cluster];
  const off = runs && runs.threshold_tokens === null
    ? ` ${_("The plan in force is %s, which is off this map.", threshold(runs))}` : "";
  const said = clusters.length > 1
    ? _("What %s carries at each t and split of %s instances; other clusters keep their best "
      + "plan.", cluster, instances)
    : _("What %s carries at each t and split of %s instances.", cluster, instances);
  return said + off;
}

export function sweepNote(answer) {
  const { sweep, slo } = answer;
  const within = sweep.slo_rps === null
    ? _("even unloaded the mean first token is above the SLO of %s", f.duration(slo.ttft_s))
    : _("the SLO of %s holds up to %s", f.duration(slo.ttft_s), f.rate(sweep.slo_rps));
  return _("Knee at %s; %s. An analytic estimate (Poisson arrivals, Erlang C with Allen and "
    + "Cunneen's correction, one queue per pool, transfers hidden): bursts, batching and "
    + "the link's tail are not in it. The twin simulates them.", f.rate(sweep.knee_rps), within);
}

const KINDS = { rate: _("Rate"), mean_length: _("Prompt length"), output: _("Output length"),
  prefill_instances: _("Local prefill"), decode_instances: _("Decode"),
    remote_instances: _("Remote prefill"),
  link: _("Link") };

// What is of the cluster looked from needs no name of it.
export const sensitivityLabel = ({ kind, place }, { cluster }) => (place === cluster ? KINDS[kind]
  : `${KINDS[kind]} (${arrow(place)})`);

export function sensitivityNote(answer) {
  const [first] = answer.sensitivity.rows;
  const worst = Math.min(...first.kept);
  return _("Headroom with t and roles kept, most sensitive first: %s can take it to %s. "
    + "Diamonds: with the best plan again. Instances here are fractions of a role's.",
      lower(sensitivityLabel(first, answer)), times(worst));
}

export function lengthsNote(answer) {
  const { lengths, recorded, changed, cluster } = answer;
  const from = changed[`${cluster}.lengths`]?.asked === "recorded"
    ? _("recorded %s", f.moment(recorded.at_s)) : _("described");
  return _("Mean %s, %s. %s are longer than t.", f.tokens(lengths.mean_tokens), from,
    f.percent(answer.optimum.clusters[cluster].remote_fraction));
}

export function hitWorth({ sensitivity: { rows, changes } }) {
  const shorter = rows.find((row) => row.kind === "mean_length");
  const i = changes.indexOf(-0.2);
  const value = shorter.followed[i] ?? shorter.kept[i];
  return _("What a hit is worth: 20 %% fewer uncached tokens in every prompt would make "
    + "headroom %s.", times(value));
}
