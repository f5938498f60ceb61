import { View, html } from "../lib.js";

export const Overview = () => html`<${View} title="Overview" />`;
