// What an answer of the planner says in sentences. No arithmetic beyond shares of what is given.

import * as f from "./format.js";
import { arrow } from "./stages.js";

export const times = (factor) => (f.missing(factor) ? f.NONE : `×${f.significant(factor)}`);
export const roles = (plan) => `${plan.n_prefill} prefill / ${plan.n_decode} decode`;
const lower = (text) => text.charAt(0).toLowerCase() + text.slice(1);
const stage = (name) => name.replace(/^(.*?):(.*)$/, (_, kind, where) =>
  `${kind.replace("_", " ")} (${arrow(where)})`);
const several = (list) => (list.length < 2 ? list.join("")
  : `${list.slice(0, -1).join(", ")} and ${list.at(-1)}`);

export function threshold(plan) {
  if (plan.threshold_tokens !== null) return `t = ${f.tokens(plan.threshold_tokens)}`;
  return plan.mode === "always_remote" ? "everything remote" : "everything local";
}

export function totalDemand(answer) {
  return Object.values(answer.demand_rps).reduce((sum, rate) => sum + rate, 0);
}

export function best(answer) {
  const { optimum, cluster, clusters } = answer;
  const plan = optimum.clusters[cluster];
  const asked = totalDemand(answer);
  const where = clusters.length > 1 ? ` in ${cluster}` : "";
  const who = clusters.length > 1 ? "The fleet" : "It";
  const limits = several(optimum.binding.map(stage));
  const load = optimum.headroom >= 1
    ? `carries ${f.rate(optimum.lambda_max_rps)}, ${times(optimum.headroom)} the `
      + `${f.rate(asked)} asked`
    : `carries ${f.rate(optimum.lambda_max_rps)}, only ${f.percent(optimum.headroom)} of the `
      + `${f.rate(asked)} asked: queues would grow`;
  return `Best is ${threshold(plan)} with ${roles(plan)}${where}. ${who} ${load}; `
    + `limited by ${limits || "nothing"}.`;
}

// The figures under the sentence: [label, figure, what it is of, how full, hue].
export function figures(answer) {
  const { optimum, cluster, sweep, slo } = answer;
  const plan = optimum.clusters[cluster];
  const [link, use] = Object.entries(optimum.links)
    .sort(([, a], [, b]) => b.utilisation - a.utilisation)[0] ?? [null, null];
  const now = (value) => value / optimum.headroom;
  return [
    ["Carries", f.rate(optimum.lambda_max_rps),
      `${times(optimum.headroom)} what is asked`, 1 / optimum.headroom, ""],
    ["Threshold t", plan.threshold_tokens === null ? "all local" : f.tokens(plan.threshold_tokens),
      roles(plan), null, ""],
    ["Remote share", f.percent(plan.remote_fraction),
      f.rate(answer.demand_rps[cluster] * plan.remote_fraction), plan.remote_fraction, "remote"],
    link === null ? ["Link", f.NONE, "no link is used", null, ""]
      : [Object.keys(optimum.links).length > 1 ? "Fullest link" : "Link",
        f.gbps(now(use.egress_gbps)), `of ${f.gbps(use.planned_gbps)}, ${arrow(link)}`,
        now(use.utilisation), "remote"],
    ["First token, estimated",
      f.missing(sweep.ttft_now_s) ? "no end" : f.duration(sweep.ttft_now_s),
      `mean; ${f.duration(sweep.service_s)} unloaded`,
      f.missing(sweep.ttft_now_s) ? 1.01 : sweep.ttft_now_s / slo.ttft_s, ""],
  ];
}

export function inForce(answer) {
  const { running, plan } = answer;
  if (running.why_not) return `No comparison with the plan in force: ${running.why_not}.`;
  return `The line in a bar is the plan in force, ${plan}: ${times(running.headroom)} what is `
    + "asked.";
}

// Per PD cluster what a hold would pin, and what to know before.
export function holds(answer) {
  return answer.clusters.map((cluster) => {
    const plan = answer.optimum.clusters[cluster];
    const runs = answer.running.clusters[cluster];
    const bestT = answer.running.best_t_tokens?.[cluster];
    const same = runs && runs.n_prefill === plan.n_prefill && runs.n_decode === plan.n_decode;
    if (runs && !same && bestT !== undefined) {
      return { cluster, threshold_tokens: bestT, roles: roles(runs),
        note: `A hold pins t, not roles: ${cluster} runs ${roles(runs)}, this plan needs `
          + `${roles(plan)}. Offered is the best t for the roles that run, `
          + `${times(answer.running.best_headroom)}.` };
    }
    let note = "";
    if (!runs) note = `No plan runs in ${cluster} yet; this suits ${roles(plan)}.`;
    else if (!same) {
      note = `${cluster} runs ${roles(runs)}; this suits the ${roles(plan)} of the numbers above.`;
    }
    return { cluster, threshold_tokens: plan.threshold_tokens, roles: roles(plan), note };
  });
}

export function holdReason(hold, answer, asked) {
  const numbers = [...asked].filter(([name]) => name in answer.changed)
    .map(([name, value]) => `${name} = ${value}`);
  const with_ = numbers.length > 0 ? `, with ${numbers.join(", ")}` : "";
  return `Planner: best t for ${hold.roles} at ${f.rate(answer.demand_rps[hold.cluster])}${with_}`
    .slice(0, 480);
}

export function baselines(answer) {
  const { optimum, running, same_cost: same } = answer;
  const rows = [["Best plan", optimum.lambda_max_rps, ""]];
  if (running.headroom !== null) {
    rows.push(["Plan in force", running.headroom * totalDemand(answer), ""]);
  }
  const { naive, homogeneous } = optimum.baselines;
  if (naive) rows.push(["Naive: all prefill remote", naive.lambda_max_rps, ""]);
  const n = homogeneous ? homogeneous.n_prefill + homogeneous.n_decode : 0;
  if (homogeneous && n !== same.instances) {
    rows.push([`All local: ${n} as in the scenario`, homogeneous.lambda_max_rps,
      roles(homogeneous)]);
  }
  const alike = same.basis === "instances" ? "as many" : "same cost";
  rows.push([`All local: ${same.instances} ${same.profile}, ${alike}`, same.lambda_max_rps,
    roles(same)]);
  return rows;
}

export function baselinesNote(answer) {
  const { basis } = answer.same_cost;
  const cost = basis === "instances"
    ? "Not every profile says its cost_per_hour, so as many instances count as the same cost."
    : "Same cost is by the profiles' cost_per_hour.";
  return answer.optimum.baselines.naive ? cost
    : `${cost} There is no naive baseline: not every cluster has a link from a PrfaaS cluster.`;
}

function money(cost, basis) {
  const words = f.significant(cost);
  return basis === "instances" ? `${words} instance${cost === 1 ? "" : "s"}` : `${words} an hour`;
}

export function fleetWords(counts) {
  return Object.entries(counts).map(([name, n]) => `${n} ${name}`).join(" + ");
}

export function cheapest(answer) {
  const { cheapest: search } = answer;
  const wanted = `${times(search.least_headroom)} headroom and a mean first token within `
    + f.duration(search.slo_ttft_s);
  if (search.found) {
    const { found, now } = search;
    const saved = now.cost - found.cost;
    const than = (cost, word) => `That is ${money(cost, search.basis)} ${word} than now`;
    const against = !now.will_do ? `Now it is ${money(now.cost, search.basis)}, which will not do`
      : saved > 1e-9 ? than(saved, search.basis === "instances" ? "fewer" : "less")
        : saved < -1e-9 ? than(-saved, "more") : "That is what there is now";
    return `${fleetWords(found.counts)} (${money(found.cost, search.basis)}) carry `
      + `${f.rate(totalDemand(answer))} with ${wanted}. ${against}.`;
  }
  if (search.largest) {
    const { largest } = search;
    return `No fleet within the bounds has ${wanted}. The largest, ${fleetWords(largest.counts)}, `
      + `has ${times(largest.headroom)} and ${f.missing(largest.ttft_s) ? "no bounded wait"
        : f.duration(largest.ttft_s)}.`;
  }
  return `Not searched: ${search.why_not}.`;
}

export const sized = (plan) => `${plan.threshold_tokens === null ? "all local"
  : `t = ${f.tokens(plan.threshold_tokens)}`}, ${plan.n_prefill}/${plan.n_decode}`;

export function cheapestNote({ cheapest: search }) {
  const bounds = Object.entries(search.searched)
    .map(([name, [low, high]]) => `${name} ${low} to ${high}`).join(", ");
  const fixed = search.fixed.length > 0 ? ` Kept as it is: ${search.fixed.join(", ")}.` : "";
  const how = search.proven ? "every size was compared"
    : "found by taking one instance away at a time, not proven";
  return `Searched ${bounds}; ${how}. Links stay as above.${fixed}`;
}

export function heatNote({ cluster, clusters, optimum, running }) {
  const instances = optimum.clusters[cluster].n_prefill + optimum.clusters[cluster].n_decode;
  const other = clusters.length > 1 ? "; other clusters keep their best plan" : "";
  const runs = running.clusters[cluster];
  const off = runs && runs.threshold_tokens === null
    ? ` The plan in force is ${threshold(runs)}, which is off this map.` : "";
  return `What ${cluster} carries at each t and split of ${instances} instances${other}.${off}`;
}

export function sweepNote(answer) {
  const { sweep, slo } = answer;
  const within = sweep.slo_rps === null
    ? `even unloaded the mean first token is above the SLO of ${f.duration(slo.ttft_s)}`
    : `the SLO of ${f.duration(slo.ttft_s)} holds up to ${f.rate(sweep.slo_rps)}`;
  return `Knee at ${f.rate(sweep.knee_rps)}; ${within}. An analytic estimate (Poisson arrivals, `
    + "Erlang C with Allen and Cunneen's correction, one queue per pool, transfers hidden): bursts, "
    + "batching and the link's tail are not in it. The twin simulates them.";
}

const KINDS = { rate: "Rate", mean_length: "Prompt length", output: "Output length",
  prefill_instances: "Local prefill", decode_instances: "Decode", remote_instances: "Remote prefill",
  link: "Link" };

// What is of the cluster looked from needs no name of it.
export const sensitivityLabel = ({ kind, place }, { cluster }) => (place === cluster ? KINDS[kind]
  : `${KINDS[kind]} (${arrow(place)})`);

export function sensitivityNote(answer) {
  const [first] = answer.sensitivity.rows;
  const worst = Math.min(...first.kept);
  return `Headroom with t and roles kept, most sensitive first: `
    + `${lower(sensitivityLabel(first, answer))} can take it to ${times(worst)}. Diamonds: with the `
    + "best plan again. Instances here are fractions of a role's.";
}

export function lengthsNote(answer) {
  const { lengths, recorded, changed, cluster } = answer;
  const from = changed[`${cluster}.lengths`]?.asked === "recorded"
    ? `recorded ${f.clock(recorded.at_s)} UTC` : "described";
  return `Mean ${f.tokens(lengths.mean_tokens)}, ${from}. `
    + `${f.percent(answer.optimum.clusters[cluster].remote_fraction)} are longer than t.`;
}

export function hitWorth({ sensitivity: { rows, changes } }) {
  const shorter = rows.find((row) => row.kind === "mean_length");
  const i = changes.indexOf(-0.2);
  const value = shorter.followed[i] ?? shorter.kept[i];
  return "What a hit is worth: 20 % fewer uncached tokens in every prompt would make headroom "
    + `${times(value)}.`;
}
