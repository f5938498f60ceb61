// Sends a prompt as a request, in the sandbox or live, and shows the answer with the decision beside it.

import { tryRequest } from "../api.js";
import { Area, Badge, Empty, Failure, Field, Figure, Form, Here, Section, Select, View } from "../lib.js";
import { count, html, ms, setParams, to, useContext, useEffect, useRead, useRef, useState, usd } from "../lib.js";
import { Button } from "./draft.js";
import { Text, Why, nameInParts, useReplay } from "./trace.js";

const PLACES = [["sandbox", "Sandbox: canned answers, free"], ["production", "Live: calls models, costs money"]];
const OWNER = "default"; // the account of these requests
let last = {}; // outlives the view, so that going back finds the request and its answer

export function Try({ params }) {
  const { writes, token } = useContext(Here).session;
  if (last.token !== token) last = { token };
  const policies = useRead("policies.states", {}, { skip: !writes });
  const models = useRead("router.models", {}, { skip: !writes });
  const fields = useRead("page.policy_fields", {}, { skip: !writes });
  const [trial, setTrial] = useState(last.trial);
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  const start = async ({ environment, system, prompt, max_cost_usd: cost, models: words, ...options }) => {
    setParams({ ...options, cache: options.cache ? 1 : "", models: words, place: environment }, { replace: true });
    const messages = [{ role: "user", content: prompt ?? "" }];
    if (system) messages.unshift({ role: "system", content: system });
    const budget = cost === undefined ? undefined : { maxCostUsd: cost };
    const request = { ...options, environment, messages, budget, models: words?.split(/[\s,]+/).filter(Boolean) };
    running.current = new AbortController();
    last.trial = { environment, state: "Waiting", text: "", reasoning: "", fallbacks: [] };
    const show = (changes) => { last.trial = { ...last.trial, ...changes }; setTrial(last.trial); };
    show({});
    try {
      await tryRequest(request, (name, data) => show(CHANGES[name]?.(data, last.trial)), running.current.signal);
      if (isRunning(last.trial)) show({ state: "Interrupted" });
    } catch (error) {
      show(error.name === "AbortError" ? { state: "Stopped" } : { state: "Failed", error });
    }
  };
  if (!writes) {
    return html`<${View} title="Try it"><${Empty}>A request is a change: it makes a trace, and may cost money.
      ${" "}Sign in with a key that has console:write:
      ${" "}<code>routewright keys create _system --name you --scope console:write</code><//><//>`;
  }
  const textField = (name) => (
    { name, defaultValue: last[name], onInput: ({ target }) => { last[name] = target.value; } });
  const choicesOf = (name) => [["", "As the policy or default"],
    ...fields.data?.find(({ path }) => path === name)?.choices ?? []];
  const isUnserved = models.data?.every(({ availability }) => availability.status === "unavailable");
  const names = (policies.data ?? []).filter(({ version }) => version).map(({ record }) => record.name);
  return html`<${View} title="Try it"><div class="columns">
    <${Section} title="Request"><${Form} action="Send" onSubmit=${start}>
      <${Area} label="Prompt" ...${textField("prompt")} rows="6" autofocus />
      <${Area} label="System prompt" ...${textField("system")} rows="2" />
      <${Select} label="Where" name="environment" options=${PLACES} value=${params.place ?? "sandbox"}
        onChange=${({ target: { value } }) => setParams({ place: value }, { replace: true })} />
      ${isUnserved && params.place === "production" && html`<p class="warning">No provider serves a model here, so a
        live request will fail. Set a provider's key, such as OPENAI_API_KEY, and start this page again.</p>`}
      <div class="filters">
        <${Select} label="Policy" name="policy_id" options=${[["", "None"], ...names]} value=${params.policy_id} />
        <${Select} label="Goal" name="goal" options=${choicesOf("goal")} value=${params.goal ?? ""} />
        <${Select} label="Strategy" name="strategy" options=${choicesOf("strategy")} value=${params.strategy ?? ""} />
        <${Field} label="Models, with commas" name="models" defaultValue=${params.models} placeholder="all"
          list="model-ids" autocomplete="off" />
        <datalist id="model-ids">${(models.data ?? []).map(({ id }) => html`<option value=${id} />`)}</datalist>
        <${Field} label="Budget in US dollars" ...${textField("max_cost_usd")} inputmode="decimal" autocomplete="off" />
      </div>
      <${Field} label="May be answered from the cache" name="cache" type="checkbox"
        defaultChecked=${params.cache === "1"} />
      <p class="note">It is a request of the account ${OWNER}.</p><//>
      ${isRunning(trial) && html`<${Button} kind="danger" onClick=${() => running.current.abort()}>Stop<//>`}<//>
    ${trial && html`<${Answer} trial=${trial} />`}
  </div><//>`;
}

const isRunning = (trial) => ["Waiting", "Streaming"].includes(trial?.state);

/** What events change in a trial. */
const CHANGES = {
  "route.started": (data) => ({ ...data, state: "Streaming" }),
  "output.delta": (data, { text }) => ({ text: text + data.text }),
  "reasoning.delta": (data, { reasoning }) => ({ reasoning: reasoning + data.text }),
  "route.fallback": (data, { fallbacks }) => (
    { fallbacks: [...fallbacks, data], ...(data.restart && { text: "", reasoning: "" }) }),
  "route.completed": (data) => ({ ...data, state: "Done", text: data.output, result: data }),
  error: ({ error }) => ({ state: "Failed", error }),
};
const STATE_BADGES = { Done: "good", Failed: "bad", Interrupted: "bad", Stopped: "warn" };

function Answer({ trial: { environment, state, text, reasoning, fallbacks, trace_id, routing, result, error } }) {
  const id = trace_id ?? error?.trace_id;
  const query = { trace_id: id, account: OWNER, environment };
  const trace = useRead("traces.get", query, { skip: !id || !(result || error) });
  const replay = useReplay(query, trace.data);
  return html`<div><${Section} title="Answer" actions=${html`
      <span role="status"><${Badge} kind=${STATE_BADGES[state]}>${state}<//></span>
      ${result?.cache_hit && html`<${Badge}>from the cache<//>`}
      ${id && html`<a href=${to(["traces", id], { account: OWNER, environment })}>Its trace</a>`}`}>
    ${error && html`<${Failure} error=${error} />`}
    ${fallbacks.map((change) => html`<p class="warning">${change.from_model} failed (${change.reason}):
      ${" "}${change.to_model} ${change.restart ? "begins again" : "takes over"}</p>`)}
    ${reasoning && html`<details><summary>Reasoning</summary><${Text} label="Reasoning">${reasoning}<//></details>`}
    <${Text} label="Answer">${text}<//><//>
    ${routing && html`<${Section} title="Decision"><dl class="figures">
      <${Figure} name="Model" value=${nameInParts(routing.selected_model)}
        note=${result?.fallback_model && `in place of ${result.primary_model}`} />
      <${Figure} name="Policy" value=${nameInParts(routing.policy_version)} />
      ${result && html`<${Figure} name="Cost" value=${usd(routing.cost_usd)} />
        <${Figure} name="Latency" value=${ms(routing.latency_ms)} />
        <${Figure} name="Tokens" value=${`${count(routing.tokens.input)} in, ${count(routing.tokens.output)} out`}
          note=${routing.tokens.cached > 0 && `${count(routing.tokens.cached)} in the vendor's cache`} />
        <${Figure} name="Ended" value=${result.finish_reason ?? "–"} />`}
    </dl>
    ${routing.fallback_chain.length > 0 && html`
      <p class="note">If it fails: ${routing.fallback_chain.join(", then ")}</p>`}<//>`}
    ${id && trace.data?.id === id && html`<${Section} title="Why this model">
      <${Why} trace=${trace.data} query=${query} replay=${replay} /><//>`}</div>`;
}
