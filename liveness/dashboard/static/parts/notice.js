// Notices for views that are loading, empty or failed.
import { Unreachable } from '../api.js';
import { html } from '../html.js';

export const Loading = ({ what = 'Loading' }) => html`<p class="notice" role="status"><span class="spinner" aria-hidden="true"></span>${what} …</p>`;

export const Empty = ({ children }) => html`<p class="notice">${children}</p>`;

/** Shows nothing if the server cannot be reached: the frame of the page says that once. */
export const Failure = ({ error }) => (error instanceof Unreachable ? null : html`<p class="notice bad" role="alert">${error.message}</p>`);
