// Sends a prompt as a request, in the sandbox or live, and shows the answer with the decision beside it.

import { read, tryRequest } from "../api.js";
import { Area, Badge, Empty, Failure, Field, Figure, Form, Here, Loaded, Section, Select, Table, View } from "../lib.js";
import { count, html, ms, setParams, to, useContext, useEffect, useRead, useRef, useState, usd } from "../lib.js";
import { CANDIDATES, Text } from "./trace.js";

const PLACES = [["sandbox", "Sandbox: canned answers, free of charge"], ["production", "Live: calls models, costs money"]];
const OPEN = [["", "As the policy or default"]];
const GOALS = [...OPEN, "cost", "quality", "stability"];
const STRATEGIES = [...OPEN, "balanced", "cost-optimized", "quality-first", "latency-optimized"];
const OWNER = "default"; // requests of this page are its

export function Try({ params }) {
  const { writes } = useContext(Here).session;
  const policies = useRead("policy-states", {}, { skip: !writes });
  const models = useRead("models", {}, { skip: !writes });
  const [trial, setTrial] = useState(null);
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  const start = async (values) => {
    const { environment, system, prompt, max_cost_usd, models: words, ...options } = values;
    setParams({ ...options, cache: options.cache ? 1 : "", models: words, place: environment }, { replace: true });
    const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt ?? "" }];
    const budget = max_cost_usd === undefined ? undefined : { maxCostUsd: max_cost_usd };
    running.current = new AbortController();
    let state = { environment, text: "", reasoning: "", fallbacks: [], state: "Waiting" };
    const show = (changes) => { state = { ...state, ...changes }; setTrial(state); };
    show({});
    try {
      await tryRequest({ ...options, environment, messages, budget, models: words?.split(/[\s,]+/).filter(Boolean) },
        (name, data) => show(changesOf(name, data, state)), running.current.signal);
      if (state.state === "Streaming" || state.state === "Waiting") show({ state: "Broken off" });
    } catch (error) {
      if (error.name === "AbortError") show({ state: "Stopped" });
      else show({ state: "Failed", error });
    }
  };
  if (!writes) {
    return html`<${View} title="Try it"><${Empty}>A request is a change: it makes a trace, and may cost money. Sign in with a key
      that has console:write: <code>routewright keys create _system --name you --scope console:write</code><//><//>`;
  }
  const names = (policies.data ?? []).filter(({ version }) => version).map(({ record }) => record.name);
  const isRunning = trial?.state === "Waiting" || trial?.state === "Streaming";
  return html`<${View} title="Try it"><div class="columns">
    <${Section} title="Request"><${Form} action="Send" onSubmit=${start}>
      <${Area} label="Prompt" name="prompt" rows="6" autofocus />
      <${Area} label="System prompt" name="system" rows="2" />
      <${Select} label="Where" name="environment" options=${PLACES} value=${params.place ?? "sandbox"} />
      <div class="filters">
        <${Select} label="Policy" name="policy_id" options=${[["", "None"], ...names]} value=${params.policy_id ?? ""} />
        <${Select} label="Goal" name="goal" options=${GOALS} value=${params.goal ?? ""} />
        <${Select} label="Strategy" name="strategy" options=${STRATEGIES} value=${params.strategy ?? ""} />
        <${Field} label="Models" name="models" defaultValue=${params.models} list="model-ids" autocomplete="off"
          hint="Ids or aliases, with commas. Empty: all." />
        <datalist id="model-ids">${(models.data ?? []).map(({ id }) => html`<option value=${id} />`)}</datalist>
        <${Field} label="Budget in US dollars" name="max_cost_usd" inputmode="decimal" autocomplete="off" />
      </div>
      <${Field} label="May be answered from the cache" name="cache" type="checkbox" defaultChecked=${params.cache === "1"} />
      <p class="note">It is a request of the account ${OWNER}.</p><//>
      ${isRunning && html`<button type="button" class="danger" onClick=${() => running.current.abort()}>Stop</button>`}<//>
    ${trial ? html`<${Answer} trial=${trial} />` : html`<${Section} title="Answer"><${Empty}>Nothing was sent so far.<//><//>`}
  </div><//>`;
}

/** What an event changes in a trial. */
function changesOf(name, data, trial) {
  switch (name) {
    case "route.started": return { state: "Streaming", trace_id: data.trace_id, routing: data.routing };
    case "output.delta": return { text: trial.text + data.text };
    case "reasoning.delta": return { reasoning: trial.reasoning + data.text };
    case "route.fallback": return { fallbacks: [...trial.fallbacks, data], ...(data.restart && { text: "", reasoning: "" }) };
    case "route.completed": return { state: "Done", trace_id: data.trace_id, text: data.output, result: data, routing: data.routing };
    case "error": return { state: "Failed", error: data.error };
    default: return {};
  }
}

const KINDS = { Done: "good", Failed: "bad", "Broken off": "bad", Stopped: "warn" };

function Answer({ trial: { environment, state, text, reasoning, fallbacks, trace_id, routing, result, error } }) {
  const id = trace_id ?? error?.trace_id;
  const link = id && html`<a href=${to(["traces", id], { account: OWNER, environment })}>Its trace</a>`;
  return html`<div><${Section} title="Answer" actions=${html`<span role="status"><${Badge} kind=${KINDS[state]}>${state}<//></span>
      ${result?.cache_hit && html`<${Badge}>from the cache<//>`}${link}`}>
    ${error && html`<${Failure} error=${error} />`}
    ${fallbacks.map((change) => html`<p class="warning">${change.from_model} failed (${change.reason}): ${change.to_model}
      ${" "}${change.restart ? "begins again" : "takes over"}</p>`)}
    ${reasoning && html`<details><summary>Reasoning</summary><pre class="text answer">${reasoning}</pre></details>`}
    <pre class="text answer" tabindex="0" role="region" aria-label="Answer" aria-busy=${!result && !error}>${text}</pre><//>
    ${routing && html`<${Section} title="Decision"><dl class="figures">
      <${Figure} name="Model" value=${routing.selected_model} note=${result?.fallback_model && `in place of ${result.primary_model}`} />
      <${Figure} name="Policy" value=${routing.policy_version} />
      ${result && html`
        <${Figure} name="Cost" value=${usd(routing.cost_usd)} note=${routing.saved_usd > 0 && `${usd(routing.saved_usd)} saved by the vendor's cache`} />
        <${Figure} name="Latency" value=${ms(routing.latency_ms)} />
        <${Figure} name="Tokens" value=${`${count(routing.tokens.input)} in, ${count(routing.tokens.output)} out`}
          note=${routing.tokens.cached > 0 && `${count(routing.tokens.cached)} in the vendor's cache`} />
        <${Figure} name="Ended" value=${result.finish_reason ?? "–"} />`}
    </dl>
    ${routing.decision_reason && html`<p>${routing.decision_reason}</p>`}
    ${routing.fallback_chain.length > 0 && html`<p class="note">If it fails: ${routing.fallback_chain.join(", then ")}</p>`}
    ${routing.ignored_params?.length > 0 && html`<p class="note">Ignored: ${routing.ignored_params.join(", ")}</p>`}<//>`}
    ${(result || error) && id && html`<${Candidates} key=${id} id=${id} environment=${environment} />`}</div>`;
}

const SHOWN = 10;

/** Why this model: the explanation of the trace. */
function Candidates({ id, environment }) {
  const why = useRead("explain", { trace_id: id, account: OWNER, environment });
  return html`<${Section} title="Why this model"><${Loaded} of=${why}>${({ explanation, decision, refusal }) => html`
    ${refusal && html`<p class="warning">${refusal}</p>`}
    ${decision && html`<${Table} caption="Candidates" rows=${decision.candidates.slice(0, SHOWN)} keyOf=${({ model }) => model} columns=${CANDIDATES} />
      <p class="note">${count(Math.min(SHOWN, decision.candidates.length))} of ${count(decision.candidates.length)} that fit;
      ${" "}${count(decision.rejected.length)} do not.</p>`}
    <details><summary>Explanation</summary><${Text} label="Explanation">${explanation}<//></details>`}<//><//>`;
}
