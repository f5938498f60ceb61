// A chart of values over time, drawn by uPlot, with the same figures as a table.

import { Table, column, count, html, numeric, to, useEffect, useRef, useState } from "./lib.js";

export const HOUR = 3600;
export const DAY = 86400;
export const RANGES = { __proto__: null,
  "24h": ["24 hours", HOUR, 24], "7d": ["7 days", DAY, 7], "30d": ["30 days", DAY, 30] };
const HEIGHT = 220;
const TICKS = [1, 2, 3, 4, 6, 7, 12, 14, 24, 48]; // steps between two ticks

function formatter(options) {
  const format = new Intl.DateTimeFormat("en-GB", options);
  return (time) => format.format(time * 1000);
}

const MONTH_DAY = { day: "numeric", month: "short" };
const CLOCK = { hour: "2-digit", minute: "2-digit" };
const local = formatter({ ...MONTH_DAY, ...CLOCK });
const localDay = formatter(MONTH_DAY);
const localClock = formatter(CLOCK);
const utcDay = formatter({ ...MONTH_DAY, timeZone: "UTC" }); // days are counted in UTC

export const dayOf = (time) => new Date(time * 1000).toISOString().slice(0, 10);

/** Starts of the hours or days of a range that ends now. */
export function timesOf(step, steps) {
  const last = Math.floor(Date.now() / 1000 / step) * step;
  return Array.from({ length: steps }, (_, index) => last - (steps - 1 - index) * step);
}

/** Links to the ranges of a view; the address holds the chosen one. */
export const Ranges = ({ view, params, chosen }) => html`<div class="tabs" role="group" aria-label="Time">
  ${Object.entries(RANGES).map(([range, [text]]) => html`<a href=${to(view, { ...params, range })}
    aria-current=${range === chosen ? "true" : undefined}>${text}</a>`)}</div>`;

/** `times`: starts of steps of `step` seconds, in Unix seconds. `series`: [{name, values, line}], with null where there
 * is no value. `isStacked`: as bars on top of each other, else as lines (`line`: "dashed", or none). `totals`: the text
 * beside a name while no time is pointed at. `children`: controls of the chart. */
export function Chart({ title, times, step, series, format, isStacked, totals, children }) {
  const frame = useRef();
  const probe = useRef();
  const [pointed, setPointed] = useState(null);
  const place = pointed < times.length ? pointed : null;
  const nameOf = step === DAY ? utcDay : local;
  useEffect(() => {
    const tone = (name) => () => {
      probe.current.style.color = `var(--${name})`; // a canvas knows no variables
      return getComputedStyle(probe.current).color;
    };
    const tick = step === DAY ? utcDay : (time) => (localClock(time) === "00:00" ? localDay : localClock)(time);
    const value = (number) => (format === count && number % 1 ? "" : format(number));
    const axis = { stroke: tone("dim"), grid: { stroke: tone("line"), width: 1 }, ticks: { show: false } };
    const paths = uPlot.paths.bars({ align: 1, size: [0.85, 48] });
    const bar = (entry) => ({ fill: tone(entry.tone), points: { show: false }, paths });
    const line = (entry) => ({ stroke: tone(entry.tone), width: 2, dash: entry.line ? [6, 4] : [] });
    const drawn = series.map((entry, index) => ({ ...entry, tone: `tone-${index + 1}` }));
    if (isStacked) { // the bar of all is drawn first, and each one covers the lower part of the bar before it
      const sums = times.map(() => 0);
      for (const entry of drawn) entry.values = entry.values.map((number, at) => (sums[at] += number));
      drawn.reverse();
    }
    const plot = new uPlot({
      width: frame.current.clientWidth,
      height: HEIGHT,
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
        { ...axis, values: (_, at) => at.map(tick), incrs: TICKS.map((ticks) => ticks * step), space: 64, size: 34 },
        { ...axis, values: (_, at) => at.map(value), size: 76 },
      ],
      tzDate: (time) => (step === DAY ? uPlot.tzDate(new Date(time * 1000), "Etc/UTC") : new Date(time * 1000)),
      series: [{}, ...drawn.map(isStacked ? bar : line)],
      hooks: { setCursor: [(self) => setPointed(self.cursor.left < 0 ? null : self.cursor.idx)] },
    }, [times, ...drawn.map((entry) => entry.values)], frame.current);
    const observer = new ResizeObserver(([{ target }]) => plot.setSize({ width: target.clientWidth, height: HEIGHT }));
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
  const start = column(step === DAY ? "Day (UTC)" : "From", (at) => nameOf(times[at]));
  const columns = [start, ...series.map((entry) => numeric(entry.name, (at) => format(entry.values[at])))];
  return html`<figure class="chart">
    <figcaption>${title} <span class="note">${place !== null && nameOf(times[place])}</span>${children}</figcaption>
    <span ref=${probe} hidden></span>
    <div class="plot" ref=${frame} aria-hidden="true"></div>
    <ul class="legend">${series.map((entry, index) => html`<li key=${entry.name}>
      <span class="swatch ${isStacked ? "block" : entry.line}" style=${{ color: `var(--tone-${index + 1})` }}></span>
      <span class="name">${entry.name}</span>
      <b>${place === null ? totals?.[index] : format(entry.values[place])}</b></li>`)}</ul>
    <details><summary>As a table</summary>
      <${Table} caption=${title} columns=${columns} rows=${times.map((_, at) => at)} empty="Nothing" /></details>
  </figure>`;
}
