// Markup in templates. Values become text nodes and properties, never markup: texts that come from workers are shown as
// they are and cannot inject anything.
import { h } from './vendor/preact.js';
import htm from './vendor/htm.js';

export const html = htm.bind(h);
export { render } from './vendor/preact.js';
export { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from './vendor/hooks.js';
