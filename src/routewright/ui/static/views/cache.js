import { View, html } from "../lib.js";

export const Cache = () => html`<${View} title="Cache" />`;
