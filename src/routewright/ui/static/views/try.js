import { View, html } from "../lib.js";

export const Try = () => html`<${View} title="Try" />`;
