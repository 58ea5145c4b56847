// Markup in templates. Values become text nodes and properties, never markup: what workers say about themselves is
// shown as it is and can do nothing.
import { h } from './vendor/preact.js';
import htm from './vendor/htm.js';

export const html = htm.bind(h);
export { render } from './vendor/preact.js';
export { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from './vendor/hooks.js';
