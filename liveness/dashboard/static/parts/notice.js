// What a view says when it has nothing to show yet, nothing at all, or cannot.
import { Unreachable } from '../api.js';
import { html } from '../html.js';

export const Loading = ({ what = 'Loading' }) => html`<p class="notice" role="status"><span class="spinner" aria-hidden="true"></span>${what} …</p>`;

export const Empty = ({ children }) => html`<p class="notice">${children}</p>`;

/** That the server cannot be reached at all, the frame says once for all. */
export const Failure = ({ error }) => (error instanceof Unreachable ? null : html`<p class="notice bad" role="alert">${error.message}</p>`);
