// A chart of values over time, drawn by uPlot, with the same figures as a table.

import { Table, count, html, to, useEffect, useRef, useState } from "./lib.js";

export const HOUR = 3600;
export const DAY = 86400;
export const RANGES = { "24h": ["24 hours", HOUR, 24], "7d": ["7 days", DAY, 7], "30d": ["30 days", DAY, 30] };
const HEIGHT = 220;
const TICKS = [1, 2, 3, 4, 6, 7, 12, 14, 24, 48]; // steps between two ticks
const DASHES = { solid: [], dashed: [6, 4] };
const local = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const utcDay = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

/** The start of a step: a day in UTC, since days are counted in it, else in the viewer's zone. */
const nameOf = (time, step) => (step === DAY ? utcDay : local).format(time * 1000);
const tickOf = (time, step) => {
  if (step === DAY) return utcDay.format(time * 1000);
  const text = clock.format(time * 1000);
  return text === "00:00" ? day.format(time * 1000) : text;
};

export const dayOf = (time) => new Date(time * 1000).toISOString().slice(0, 10);

/** Starts of the hours or days of a range that ends now. */
export function timesOf(step, steps) {
  const last = Math.floor(Date.now() / 1000 / step) * step;
  return Array.from({ length: steps }, (_, index) => last - (steps - 1 - index) * step);
}

/** Links to the ranges of a view; the address holds the chosen one. */
export const Ranges = ({ view, params, chosen }) => html`<div class="tabs" role="group" aria-label="Time">${Object.entries(RANGES).map(([name, [text]]) =>
  html`<a href=${to(view, { ...params, range: name })} aria-current=${name === chosen ? "true" : undefined}>${text}</a>`)}</div>`;

/** `times`: starts of steps of `step` seconds, in Unix seconds. `series`: [{name, values, line}], with null where there
 * is no value. `isStacked`: as bars on top of each other, else as lines (`line`: "solid" or "dashed"). `totals`: the
 * text beside a name while no time is pointed at. `children`: controls of the chart. */
export function Chart({ title, times, step, series, format, isStacked, totals, children }) {
  const frame = useRef();
  const probe = useRef();
  const [place, setPlace] = useState(null);
  useEffect(() => {
    const tone = (name) => () => {
      probe.current.style.color = `var(--${name})`; // a canvas knows no variables
      return getComputedStyle(probe.current).color;
    };
    const axis = { stroke: tone("dim"), grid: { stroke: tone("line"), width: 1 }, ticks: { show: false } };
    const splits = (values) => values.map((value) => (format === count && value % 1 ? "" : format(value)));
    const line = (entry) => ({ stroke: tone(entry.tone), width: 2, dash: DASHES[entry.line || "solid"], spanGaps: false });
    const bar = (entry) => ({ fill: tone(entry.tone), points: { show: false }, paths: uPlot.paths.bars({ align: 1, size: [0.85, 48] }) });
    const drawn = series.map((entry, index) => ({ ...entry, tone: `tone-${index + 1}` }));
    if (isStacked) { // each bar covers the upper part of the one before
      drawn.forEach((entry, index) => { if (index) entry.values = entry.values.map((value, at) => value + drawn[index - 1].values[at]); });
      drawn.reverse();
    }
    const plot = new uPlot({
      width: frame.current.clientWidth || 300,
      height: HEIGHT,
      tzDate: (time) => (step === DAY ? uPlot.tzDate(new Date(time * 1000), "Etc/UTC") : new Date(time * 1000)),
      legend: { show: false },
      select: { show: false },
      cursor: {
        y: false,
        points: { show: !isStacked },
        drag: { x: false, y: false },
        dataIdx: (_, __, nearest, time) => (isStacked ? Math.max(0, Math.floor((time - times[0]) / step)) : nearest),
      },
      scales: {
        x: { range: [times[0], times.at(-1) + (isStacked ? step : 1)] },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] },
      },
      axes: [
        { ...axis, incrs: TICKS.map((ticks) => ticks * step), values: (_, values) => values.map((value) => tickOf(value, step)), space: 64, size: 34 },
        { ...axis, values: (_, values) => splits(values), size: 76 },
      ],
      series: [{}, ...drawn.map(isStacked ? bar : line)],
      hooks: { setCursor: [(self) => setPlace(self.cursor.left < 0 ? null : self.cursor.idx)] },
    }, [times, ...drawn.map((entry) => entry.values)], frame.current);
    const observer = new ResizeObserver(([entry]) => plot.setSize({ width: entry.contentRect.width, height: HEIGHT }));
    observer.observe(frame.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => plot.redraw();
    scheme.addEventListener("change", redraw);
    return () => {
      scheme.removeEventListener("change", redraw);
      observer.disconnect();
      plot.destroy();
    };
  }, [JSON.stringify([times, step, series])]);
  const columns = series.map((entry) => ({ name: entry.name, kind: "number", of: (at) => format(entry.values[at]) }));
  return html`<figure class="chart">
    <figcaption>${title}${place !== null && html` <span class="note">${nameOf(times[place], step)}</span>`}${children}</figcaption>
    <span ref=${probe} hidden></span>
    <div class="plot" ref=${frame} aria-hidden="true"></div>
    <ul class="legend">${series.map((entry, index) => html`<li key=${entry.name}>
      <span class="swatch ${entry.line || ""}" style=${{ color: `var(--tone-${index + 1})` }}></span>
      <span class="name">${entry.name}</span>
      <b>${place === null ? totals?.[index] : format(entry.values[place])}</b></li>`)}</ul>
    <details><summary>As a table</summary>
      <${Table} caption=${title} columns=${[{ name: step === DAY ? "Day (UTC)" : "From", of: (at) => nameOf(times[at], step) }, ...columns]}
        rows=${times.map((_, at) => at)} empty="Nothing" /></details>
  </figure>`;
}
