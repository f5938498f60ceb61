import { View, html } from "../lib.js";

export const Webhooks = () => html`<${View} title="Webhooks" />`;
