// A row of toggle buttons. If none is on, all count as chosen.
import { html } from '../html.js';
import { Badge } from './badge.js';

export function Chips({ label, choices, chosen, onChange, counts = {} }) {
  const flip = (choice) => onChange(chosen.includes(choice) ? chosen.filter((one) => one !== choice) : [...chosen, choice]);
  return html`<div class="chips" role="group" aria-label=${label}>
    ${choices.map(
      (choice) => html`<button key=${choice} type="button" class="chip" aria-pressed=${chosen.includes(choice)} onClick=${() => flip(choice)}>
        <${Badge} word=${choice} />${counts[choice] !== undefined && html`<span class="chip-count">${counts[choice]}</span>`}
      </button>`,
    )}
  </div>`;
}

/** Parses the list in the address: "active,inactive". */
export const listOf = (text, known) => (text ?? '').split(',').filter((one) => known.includes(one));
