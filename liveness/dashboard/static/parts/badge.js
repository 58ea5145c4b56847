import { html } from '../html.js';
import { toneOf } from '../words.js';

/** A state as a word, with a dot in its colour. */
export function Badge({ word, tone = toneOf(word), title }) {
  return html`<span class=${`badge ${tone}`} title=${title}><i class="dot" aria-hidden="true"></i>${word || 'unknown'}</span>`;
}
