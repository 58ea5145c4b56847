// Buttons for the next and the previous page. The API only goes forward, so the pager keeps the tokens of earlier pages.
import { html, useState } from '../html.js';

export function usePages(inputs) {
  const key = JSON.stringify(inputs);
  const [kept, setKept] = useState({ key, tokens: [''] });
  const tokens = kept.key === key ? kept.tokens : [''];
  return {
    token: tokens.at(-1),
    number: tokens.length,
    next: (token) => setKept({ key, tokens: [...tokens, token] }),
    back: () => setKept({ key, tokens: tokens.slice(0, -1) }),
  };
}

export function Pager({ pages, nextToken, shown }) {
  if (pages.number === 1 && !nextToken) return null;
  return html`<nav class="pager" aria-label="Pages">
    <button type="button" class="button" disabled=${pages.number === 1} onClick=${pages.back}>Previous</button>
    <span class="mute">page ${pages.number} · ${shown} shown</span>
    <button type="button" class="button" disabled=${!nextToken} onClick=${() => pages.next(nextToken)}>Next</button>
  </nav>`;
}
